"""From a name and a config to the parts of an engine: the model's text side here, its executor in the child."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from headway.engine.assembly import BYTES_PER_GIB
from headway.engine.config import EngineConfig
from headway.engine.supervisor import ExecutorFactory
from headway.engine.text import Detokenizer
from headway.executors.executor import Executor
from headway.models import ChatTemplate, Model, Progress, Tokenizer, load_model


class TextTokenizer(Protocol):
    """What the server needs of a tokenizer: `headway.models.Tokenizer`, or the simulated model's."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = True) -> list[list[int]]: ...
    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token: int) -> bytes: ...
    def token_text(self, token: int) -> str: ...
    def stream(self) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The text side of a model: what the server's own process needs of it. `files` is None for the simulated one."""

    name: str
    tokenizer: TextTokenizer
    chat_template: ChatTemplate
    files: Model | None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)  # what the model's makers recommend


def load(name: str, executor: str, report: Callable[[Progress], None] | None = None) -> LoadedModel:
    """Fetch and read a model. Blocks; raises `ModelError`."""
    if executor == "simulated":
        from headway.executors.simulated_text import simulated_model

        simulated = simulated_model()
        template = ChatTemplate(simulated.chat_template, simulated.special_tokens)
        return LoadedModel(simulated.name, simulated.tokenizer, template, None)
    model = load_model(name, report=report)
    template = ChatTemplate(model.chat_template, model.special_tokens)
    return LoadedModel(model.name, Tokenizer(model.tokenizer_file), template, model, model.sampling_defaults)


def executor_factory(model: LoadedModel, config: EngineConfig) -> ExecutorFactory:
    """What the child process calls to get its executor. Picklable, and cheap until called."""
    kv_cache_bytes = int(config.kv_cache_gib * BYTES_PER_GIB)
    if model.files is None:
        return partial(_simulated, kv_cache_bytes)
    return partial(_openvino, model.files, config, kv_cache_bytes)


def _openvino(model: Model, config: EngineConfig, kv_cache_bytes: int) -> Executor:
    from headway.models import telemetry

    telemetry.turn_off()  # before the first import of OpenVINO in this process
    from headway.executors.openvino import OpenVinoExecutor

    return OpenVinoExecutor(
        model,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        kv_cache_bytes=kv_cache_bytes,
        device=config.device,
        threads=config.threads,
    )


def _simulated(kv_cache_bytes: int) -> Executor:
    from headway.executors.simulated import SimulatedConfig, SimulatedExecutor

    config = SimulatedConfig()
    num_blocks = max(1, kv_cache_bytes // (config.kv_bytes_per_token * config.block_size))
    return SimulatedExecutor(replace(config, num_blocks=num_blocks))
