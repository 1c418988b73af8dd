"""What is known of others on a server: read from its metrics, lately, and heeded."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from headway.core.batch.hours import Hours
from headway.core.batch.promises import Promises
from headway.core.errors import ConfigError
from headway.offline.items import Item
from headway.offline.job import JobLimits
from headway.offline.recent import ITL, TTFT, WINDOW_S, Recent, histograms, quantile
from headway.offline.remote import ServerConfig, ServerWorker
from headway.offline.worker import Answered
from tests.cli.running import Server
from tests.offline.fakes import FakeWorker, begin, ids, openai_line, wanted, write_lines
from tests.wire.scripted import Turn, scripted

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """A server's histograms, written by Prometheus' own library."""

    def __init__(self, ttft: str = "vllm:time_to_first_token_seconds", itl: str = "vllm:inter_token_latency_seconds"):
        self.registry = CollectorRegistry()
        self.ttft, self.itl = (
            Histogram(name, "told", ["lane"], buckets=BOUNDS, registry=self.registry) for name in (ttft, itl)
        )

    def text(self) -> str:
        return generate_latest(self.registry).decode()


@given(st.lists(st.floats(0.001, 4.9), min_size=1, max_size=200))
def test_the_quantile_lies_in_the_bucket_of_the_exact_one(values):
    metrics = Metrics()
    for value in values:
        metrics.ttft.labels("x").observe(value)
    got = quantile(histograms(metrics.text())[TTFT], 0.95) or 0.0
    exact = sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]
    upper = next(bound for bound in BOUNDS if exact <= bound)
    lower = max((bound for bound in (0.0, *BOUNDS) if bound < upper), default=0.0)
    assert lower <= got <= upper


def test_lanes_are_added_up_and_batch_work_is_nobody():
    metrics = Metrics("headway_time_to_first_token_seconds", "headway_inter_token_latency_seconds")
    for lane, value in (("short", 0.03), ("long", 0.03), ("batch", 4.0)):
        metrics.ttft.labels(lane).observe(value)
    read = histograms(metrics.text())
    assert read[TTFT][float("inf")] == 2
    assert (quantile(read[TTFT], 0.95) or 9.9) <= 0.05


def test_only_what_is_recent_counts_and_a_restart_begins_anew():
    metrics, recent = Metrics(), Recent()
    metrics.itl.labels("x").observe(4.0)
    recent.feed(0.0, histograms(metrics.text()))
    assert recent.p95_s(ITL) is None, "of one look nobody knows when it was"
    for second in range(1, 30):
        metrics.itl.labels("x").observe(0.015)
        recent.feed(float(second), histograms(metrics.text()))
        assert 0.01 < (recent.p95_s(ITL) or 0.0) <= 0.02
    assert recent.p95_s(TTFT) is None, "nobody came"
    recent.feed(30 + 2 * WINDOW_S, histograms(metrics.text()))
    recent.feed(31 + 2 * WINDOW_S, histograms(metrics.text()))
    assert recent.p95_s(ITL) is None, "and nobody is there any more"
    again = Metrics()
    again.itl.labels("x").observe(0.4)
    recent.feed(32 + 2 * WINDOW_S, histograms(again.text()))
    assert recent.p95_s(ITL) is None, "counts that fell are another process's"


def test_old_and_new_names_of_one_thing_are_not_added():
    metrics = Metrics()
    old = Histogram("vllm:time_per_output_token_seconds", "told", buckets=BOUNDS, registry=metrics.registry)
    for _ in range(3):
        old.observe(0.03)
        metrics.itl.labels("x").observe(0.03)
    assert histograms(metrics.text())[ITL][float("inf")] == 3
    assert histograms("") == histograms("# nothing\nup 1\n") == {}


async def test_a_server_s_metrics_become_strain():
    metrics = Metrics()

    async def act(turn: Turn) -> None:
        body = metrics.text().encode()
        status = "200 OK" if turn.path == "/metrics" else "404 Not Found"
        await turn.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    async with scripted(act) as server:
        worker = ServerWorker(ServerConfig(url=server.url, model="m", promises=Promises(itl_s=0.05)))
        assert worker.shared
        with pytest.raises(ConfigError, match=r"--protect-itl.*no histogram"):
            await worker.start()
        metrics.itl.labels("x").observe(0.03)
        await worker.start()
        assert await worker.strain() == 0.0
        for _ in range(100):
            metrics.itl.labels("x").observe(0.15)
        assert 2 <= await worker.strain() <= 10
        await worker.close()


@pytest.mark.slow
async def test_a_real_server_tells_what_is_needed():
    with Server("--executor", "simulated", "--served-model-name", "m") as server:
        worker = ServerWorker(ServerConfig(url=server.url, model="m", promises=Promises(ttft_s=1e-4, itl_s=1e-4)))
        with contextlib.suppress(ConfigError):
            await worker.start()
        body = b'{"model": "m", "prompt": "a", "max_tokens": 16}'
        await worker.strain()
        answer = await worker.run(Item(1, "a", "/v1/completions", body, 1, 1), asyncio.Event())
        assert isinstance(answer, Answered), answer
        assert await worker.strain() > 1
        await worker.close()


async def test_outside_of_its_window_a_batch_waits_and_nothing_is_lost(tmp_path, monkeypatch):
    clock = [(23, 59, 0)]
    monkeypatch.setattr("headway.offline.job.TICK_S", 0.02)
    monkeypatch.setattr("headway.offline.job._clock", lambda: clock[0])
    worker = FakeWorker(at_once=1, delay_s=0.01)
    write_lines(tmp_path / "in.jsonl", [openai_line(number) for number in range(6)])
    limits = JobLimits(hours=Hours.parse(("00:00-01:00",)))
    going = asyncio.create_task(begin(tmp_path / "in.jsonl", tmp_path / "out.jsonl", worker, wanted(limits=limits)))
    await asyncio.sleep(0.3)
    assert not worker.tries, "a minute too early"
    clock[0] = (0, 0, 0)
    while not worker.tries:
        await asyncio.sleep(0.005)
    clock[0] = (1, 0, 0)
    await asyncio.sleep(0.1)
    begun = sum(worker.tries.values())
    await asyncio.sleep(0.2)
    assert sum(worker.tries.values()) == begun < 6, "it is one o'clock"
    clock[0] = (0, 30, 0)
    await going
    assert sorted(ids(tmp_path / "out.jsonl")) == [f"item-{number}" for number in range(6)]
    assert set(worker.tries.values()) == {1}
