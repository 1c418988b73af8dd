"""Other tools' figures, by hand from their definitions, on a few requests that tell the definitions apart."""

from __future__ import annotations

import pytest

from headway.metrics.rivals import RIVALS, by_definition_of
from tests.metrics.test_latency import timings

# Sent 20 ms late. 1 + 4 tokens over 100 ms in two chunks, the stream ends 30 ms after its last token.
STREAM = {"scheduled": 0, "sent": 20, "first": 70, "gaps": [(40, 1), (60, 3)], "ended": 200}
SINGLE = {"scheduled": 1000, "sent": 1000, "first": 1010, "ended": 1030}
REFUSED = {"scheduled": 2000, "sent": 2000, "ended": 2001, "ok": False}


@pytest.fixture
def requests():
    return timings(STREAM, SINGLE, REFUSED)


def test_aiperf(requests):
    figures = by_definition_of("aiperf", requests)
    assert figures["Time to First Token (ms) avg"] == pytest.approx((50 + 10) / 2)
    assert figures["Time to Second Token (ms) avg"] == pytest.approx(40)
    assert figures["Request Latency (ms) p50"] == pytest.approx((150 + 10) / 2)  # to the last token, not the end
    assert figures["Inter Token Latency (ms) avg"] == pytest.approx(100 / 4)  # a single token has none
    assert figures["Inter Chunk Latency (ms) avg"] == pytest.approx(50)
    assert figures["Output Token Throughput Per User (tokens/sec/user) avg"] == pytest.approx(40)
    assert figures["Request Count (requests)"] == 2
    assert figures["Request Throughput (requests/sec)"] == pytest.approx(2 / 0.990)  # 20 to 1,010 ms
    assert figures["Output Token Throughput (tokens/sec)"] == pytest.approx(6 / 0.990)


def test_guidellm(requests):
    figures = by_definition_of("guidellm", requests)
    assert figures["request_latency mean"] == pytest.approx((0.180 + 0.030) / 2)
    assert figures["time_to_first_token_ms mean"] == pytest.approx(30)
    assert figures["inter_token_latency_ms mean"] == pytest.approx(25)  # the single token weighs nothing
    # With the first token: 150 ms over 5 tokens and 10 ms over 1, weighted by tokens.
    assert figures["time_per_output_token_ms mean"] == pytest.approx((5 * 30 + 1 * 10) / 6)
    assert figures["time_per_output_token_ms p99"] == pytest.approx(30)
    assert figures["requests_per_second mean"] == pytest.approx(2 / 1.010)
    assert figures["output_tokens_per_second mean"] == pytest.approx(6 / 0.940)


def test_several_choices_are_no_faster_than_each_of_them():
    """Two of three tokens each, 10 ms apart, in one request: 100 ms from the send to the last of both."""
    both = {"sent": 20, "first": 100, "last": 120, "gaps": [(10, 1)] * 4, "n": 6, "choices": 2, "ended": 130}
    found = {tool: by_definition_of(tool, timings(both)) for tool in RIVALS}
    assert found["aiperf"]["Inter Token Latency (ms) avg"] == pytest.approx(10)
    assert found["vllm"]["Mean TPOT (ms)"] == pytest.approx(10)
    assert found["guidellm"]["inter_token_latency_ms mean"] == pytest.approx(10)
    assert found["guidellm"]["time_per_output_token_ms mean"] == pytest.approx(100 / 3)


def test_guidellms_percentile_is_a_value_that_was_measured():
    figures = by_definition_of("guidellm", timings(*(STREAM | {"first": 20 + ms} for ms in (10, 20, 30, 40))))
    assert figures["time_to_first_token_ms median"] == pytest.approx(20)
    assert by_definition_of("vllm", timings(*(STREAM | {"first": 20 + ms} for ms in (10, 20, 30, 40))))[
        "Median TTFT (ms)"
    ] == pytest.approx(25)


def test_vllm(requests):
    figures = by_definition_of("vllm", requests)
    assert figures["Successful requests"] == 2
    assert figures["Benchmark duration (s)"] == pytest.approx(0.990)
    assert figures["Mean TTFT (ms)"] == pytest.approx(30)
    assert figures["Mean TPOT (ms)"] == pytest.approx(25)
    assert figures["Mean ITL (ms)"] == pytest.approx(50)  # gaps between chunks, whatever they carry
    assert figures["P99 E2EL (ms)"] == pytest.approx(10 + 0.99 * 140)
    assert figures["Total token throughput (tok/s)"] == pytest.approx((6 + 20) / 0.990)


@pytest.mark.parametrize("tool", RIVALS)
def test_nothing_finished_is_nothing_told(tool):
    figures = by_definition_of(tool, timings(REFUSED))
    assert set(figures.values()) <= {None, 0.0}
    assert figures.keys() == by_definition_of(tool, timings(STREAM)).keys()


def test_another_tool_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'wrk'.*aiperf, guidellm, vllm"):
        by_definition_of("wrk", timings(STREAM))
