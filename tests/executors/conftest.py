"""Executors that several tests share: a model takes seconds to compile, and a contract must hold on a used one too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.executors.executor import Executor
from headway.executors.openvino import OpenVinoExecutor
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor
from headway.models import Model, Tokenizer, load_model

KV_BYTES = 64 << 20


@pytest.fixture(scope="session")
def model() -> Model:
    return load_model("smollm2-135m")


@pytest.fixture(scope="session")
def tokenizer(model: Model) -> Tokenizer:
    return Tokenizer(model.tokenizer_file)


@pytest.fixture(scope="session")
def exact(model: Model) -> Iterator[OpenVinoExecutor]:
    """The real model in exact mode: f32 with f32 KV."""
    executor = OpenVinoExecutor(model, dtype="f32", kv_cache_dtype="f32", kv_cache_bytes=KV_BYTES)
    yield executor
    executor.close()


@pytest.fixture
def simulated() -> SimulatedExecutor:
    return SimulatedExecutor(SimulatedConfig(clock="virtual", num_blocks=64, mean_output_tokens=1e9))


@pytest.fixture(params=["simulated", pytest.param("exact", marks=pytest.mark.model)])
def executor(request: pytest.FixtureRequest) -> Executor:
    """Each implementation in turn, deterministic enough to compare runs token by token."""
    found: Executor = request.getfixturevalue(request.param)
    return found
