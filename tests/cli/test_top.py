"""`headway top`: what it shows is what was counted; against headway, and with what there is against others."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headway.cli import status
from headway.cli.top.frame import Window, frame_of
from headway.cli.top.page import Page, page_of
from headway.cli.top.view import seconds, view
from headway.metrics.breakdown import Calls, Ended
from headway.metrics.histogram import Histogram
from headway.metrics.names import METRICS
from headway.metrics.text import histograms

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:generation_tokens_total{engine="0",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} %d
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.0
"""


def shown(page: Page, before: Page | None = None) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(view(frame_of(before or page, page), "headway top  http://here"))
    return console.export_text()


@contextmanager
def answering(pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = pages.get(self.path, (404, ""))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# -- what is read ------------------------------------------------------------------------------------------------------


def test_several_engines_of_vllm_are_one_server():
    frame = frame_of(page_of(VLLM % (100, 5, 10), 0.0), page_of(VLLM % (300, 5, 14), 2.0))
    assert frame.server == "vLLM"
    assert frame.now["running"] == 5
    assert frame.now["waiting"] == 7
    assert frame.now["kv_used_ratio"] == 0.75  # the tighter one
    assert frame.rates["generation_tokens"] == 100
    assert frame.now["in_service"] is None  # it does not tell
    assert frame.times["TTFT"].count == 4
    assert math.isinf(frame.times["TTFT"].p50_s)


def test_a_server_that_started_again_is_looked_at_anew():
    window = Window()
    window.add(page_of(VLLM % (1000, 5, 10), 0.0))
    window.add(page_of(VLLM % (10, 0, 1), 1.0))
    assert window.add(page_of(VLLM % (30, 0, 1), 2.0)).rates["generation_tokens"] == 20


def test_rates_are_over_the_window_and_no_longer():
    window = Window(seconds=3)
    frames = [window.add(page_of(VLLM % (10 * second**2, 0, 0), float(second))) for second in range(10)]
    assert frames[-1].window_s == 3
    assert frames[-1].rates["generation_tokens"] == (10 * 81 - 10 * 36) / 3


@settings(deadline=None)
@given(st.lists(st.floats(0.0001, 50), min_size=1, max_size=200))
def test_a_percentile_is_in_the_bucket_of_the_true_one(observed: list[float]):
    metric = METRICS["headway_time_to_first_token_seconds"]
    histogram = Histogram(metric.buckets)
    empty = page_of(histograms(metric, {(): histogram}), 0.0)
    for value in observed:
        histogram.observe(value)
    frame = frame_of(empty, page_of(histograms(metric, {(): histogram}), 1.0))
    spread = frame.times["TTFT"]
    assert spread.count == len(observed)
    assert spread.mean_s == pytest.approx(sum(observed) / len(observed))
    for share, told in ((0.5, spread.p50_s), (0.9, spread.p90_s), (0.99, spread.p99_s)):
        true = sorted(observed)[max(0, math.ceil(share * len(observed)) - 1)]
        bounds = [0.0, *metric.buckets, math.inf]
        place = next(place for place, bound in enumerate(bounds) if bound >= true)
        assert bounds[place - 1] <= told <= bounds[place]


def test_shares_of_tenants_stand_beside_their_weights():
    calls = Calls()
    for tenant, tokens in (("big", 300), ("small", 100)):
        calls.ended(Ended("good", tokens, tokens // 2, labels={"tenant": tenant}))
    calls.refused("limited", {"tenant": "small"})
    weights = 'headway_tenant_weight{tenant="big"} 1\nheadway_tenant_weight{tenant="small"} 3\n'
    frame = frame_of(page_of("headway_replicas 1\n", 0.0), page_of(calls.text() + weights, 2.0))
    big, small = frame.tenants
    assert (big.name, big.share, big.fair, big.tokens_per_s) == ("big", 0.75, 0.25, 75)
    assert (small.name, small.limited_per_s, small.requests_per_s) == ("small", 0.5, 1.0)
    assert frame.outcomes["limited"] == 0.5
    text = shown(page_of(calls.text() + weights, 2.0), page_of("headway_replicas 1\n", 0.0))
    assert "75%" in text
    assert "limited 0.5" in text


def test_what_is_not_told_is_a_dash_and_no_zero():
    text = shown(page_of("sglang:num_running_reqs 4\n", 0.0))
    assert "4 running" in text
    assert "– waiting" in text
    assert "ladder" not in text
    assert seconds(math.inf) == "beyond"


# -- the command -------------------------------------------------------------------------------------------------------


def test_once_prints_one_frame(capsys: pytest.CaptureFixture[str]):
    with answering({"/metrics": (200, VLLM % (100, 5, 10))}) as url:
        assert status(["top", url, "--once", "--interval", "0.1"]) == 0
    out = capsys.readouterr().out
    assert out.count("headway top") == 1
    assert "5 running" in out
    assert "\x1b" not in out


def test_a_server_without_metrics_is_asked_for_its_load(capsys: pytest.CaptureFixture[str]):
    load = json.dumps({"loads": [{"num_running_reqs": 4, "num_waiting_reqs": 1, "token_usage": 0.5}]})
    with answering({"/v1/loads": (200, load)}) as url:
        assert status(["top", url, "--once", "--interval", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "4 running" in out
    assert "50% used" in out


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ({}, "--enable-metrics"),
        ({"/metrics": (401, "")}, "--api-key"),
        ({"/metrics": (200, "node_load1 0.5\n")}, "no name that is known here"),
        ({"/metrics": (200, 'headway_replicas{b="c 1\n')}, "no name that is known here"),
        ({"/metrics": (500, "")}, "answers 500"),
    ],
)
def test_what_cannot_be_watched_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pages: dict[str, tuple[int, str]], said: str
):
    for name in ("HEADWAY_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with answering(pages) as url:
        assert status(["top", url, "--once"]) in {1, 2}
    complaint = capsys.readouterr().err
    assert len(complaint.strip().splitlines()) == 1
    assert said in complaint


def test_nobody_there(capsys: pytest.CaptureFixture[str]):
    with answering({}) as url:
        pass
    assert status(["top", url]) == 1
    assert "nothing listens there" in capsys.readouterr().err
    assert status(["top", "ftp://here"]) == 2
    assert status(["top", url, "--interval", "0"]) == 2


def test_q_quits_and_the_terminal_is_as_before():
    """On a terminal of its own."""
    ours, theirs = pty.openpty()
    with answering({"/metrics": (200, VLLM % (100, 5, 10))}) as url:
        command = [sys.executable, "-m", "headway", "top", url, "--interval", "0.2"]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        seen = b""
        deadline = time.monotonic() + 30
        while b"running" not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 65536)
        os.write(ours, b"q")
        drain = threading.Thread(target=drained, args=(ours,), daemon=True)
        drain.start()
        assert process.wait(10) == 0
    os.close(theirs)
    assert b"5 running" in seen


def drained(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass
