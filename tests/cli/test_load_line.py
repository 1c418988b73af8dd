"""The line about the load: what happened between two snapshots, and silence when nothing did."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headway.cli.load_line import load_line, tell_load
from headway.metrics.snapshot import Snapshot

NOTHING: dict[str, Any] = {field.name: {} if "dict" in str(field.type) else 0 for field in dataclasses.fields(Snapshot)}
IDLE = Snapshot(**NOTHING)


def after(**changes: Any) -> Snapshot:
    return replace(IDLE, **changes)


def test_the_line() -> None:
    busy = after(
        requests=4, running=3, waiting=1, kv_blocks_used=12, kv_blocks_total=100, prefill_tokens_total=12_340,
        decode_tokens_total=2_100,
    )  # fmt: skip
    expected = "running 3, waiting 1, KV 12%, prefill 1,234 tok/s, decode 210 tok/s"
    assert load_line(IDLE, busy, 10.0) == expected
    assert load_line(busy, busy, 10.0).endswith("prefill 0 tok/s, decode 0 tok/s"), "stuck is worth a line"


def test_what_came_and_went_between_is_told_and_idleness_is_not() -> None:
    over = after(prefill_tokens_total=50, decode_tokens_total=50)
    assert load_line(IDLE, over, 10.0) == "running 0, waiting 0, KV 0%, prefill 5 tok/s, decode 5 tok/s"
    assert not load_line(over, over, 10.0)


async def test_only_what_is_worth_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    seen: Iterator[Snapshot] = iter([IDLE, IDLE, after(requests=1), IDLE])
    with caplog.at_level(logging.INFO, "headway"), contextlib.suppress(RuntimeError):  # the iterator is exhausted
        await asyncio.wait_for(tell_load(lambda: next(seen), every_s=0.001), timeout=5)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["running 0"]
