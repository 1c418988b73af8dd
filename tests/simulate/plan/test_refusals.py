"""What cannot be: a promise that breaks alone, a model that does not fit, what nobody measured, and bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from headway.core.errors import ConfigError
from headway.core.pace import Shape
from headway.executors.simulated import StepCost
from headway.simulate.plan import Limits, Promise, Recorded, Room, Steady, plan, rated
from headway.simulate.sizing import engine_named, hardware_named, shape_from_config
from headway.workload.errors import WorkloadError
from headway.workload.item import Arrival, Item
from headway.workload.lengths import Fixed, Uniform
from tests.simulate.plan.worlds import COST, MS, candidate, seen, traffic

SEVENTY_BILLION = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip


def why(promise: Promise, asked: Steady | None = None, **changes: Any) -> str:
    found = plan(asked or traffic(1.0, Fixed(1_000), Fixed(50)), promise, [candidate(**changes)], requests=40)
    assert found.chosen is None
    assert found.best is None
    return f"{found.options[0].status}: {'; '.join(found.options[0].why)}"


def test_a_prefill_that_takes_longer_than_promised_is_named() -> None:
    """1,000 tokens at 20 µs and a step of 10 ms: 30 ms."""
    said = why(Promise(ttft_s=0.02))
    assert said == "impossible: one prefill of p99 length (1,000 tokens) takes 30 ms alone, the promise is 20 ms"


def test_a_step_that_takes_longer_than_promised_is_named() -> None:
    assert why(Promise(itl_s=0.008)) == "impossible: one decode step at batch 1 takes 11 ms, the promise is 8 ms"


def test_a_request_that_takes_longer_than_promised_is_named() -> None:
    """A prefill of 30 ms and 49 steps of 11 ms."""
    said = why(Promise(e2e_s=0.5))
    assert "one request at p99 (1,000 tokens in, 50 out) takes 569 ms alone, the promise is 500 ms" in said


def test_every_promise_that_breaks_alone_is_named() -> None:
    said = why(Promise(ttft_s=0.02, itl_s=0.008, e2e_s=5.0))
    assert "one prefill" in said
    assert "one decode step" in said
    assert "one request" not in said


def test_the_percentile_says_which_length_counts() -> None:
    """Nine of ten prompts are short enough."""
    asked = traffic(0.2, Uniform(1, 1_000), Fixed(2))
    assert plan(asked, Promise(ttft_s=0.03, percentile=60), [candidate()], requests=60).chosen is not None
    assert "prefill" in why(Promise(ttft_s=0.02, percentile=99), asked)


def test_a_model_that_is_too_large_says_by_how_much_and_what_would_do() -> None:
    shape = shape_from_config(SEVENTY_BILLION, where="here", name="large")
    one = rated(shape, hardware_named("H100"), 2.0, engine=engine_named("vllm"))
    option = plan(traffic(1.0, Fixed(100), Fixed(10)), Promise(ttft_s=1.0), [one]).options[0]
    assert option.status == "too-large"
    assert "GiB are missing" in option.why[0]
    assert "--tensor-parallel-size 2" in option.why[0]


def test_a_model_that_is_too_large_for_one_is_planned_for_the_others() -> None:
    """Also where the limits are given, so that there is nothing to search."""
    shape = shape_from_config(SEVENTY_BILLION, where="here", name="large")
    small, large = (
        replace(rated(shape, hardware_named(name), 1.0, engine=engine_named("vllm")), seqs=4, budget=512)
        for name in ("RTX 4090", "MI300X")
    )
    found = plan(traffic(0.5, Fixed(100), Fixed(4)), Promise(ttft_s=2.0), [small, large], requests=30)
    assert [option.status for option in found.options] == ["holds", "too-large"]


def test_limits_that_leave_no_memory_are_not_chosen() -> None:
    """Steps of more than 1,024 tokens, or 8 sequences, would take all there is."""

    def memory(limits: Limits, _max_model_len: int) -> Room:
        if limits.max_num_batched_tokens > 1_024 or limits.max_num_seqs > 8:
            raise ConfigError("nothing is left")
        return Room(6_250, 16)

    found = plan(traffic(1.0, Fixed(100), Fixed(4)), Promise(ttft_s=2.0), [candidate(memory=memory)], requests=40)
    assert found.best is not None
    assert found.best.max_num_seqs is not None
    assert found.best.max_num_seqs <= 8
    assert found.best.max_num_batched_tokens is not None
    assert found.best.max_num_batched_tokens <= 1_024


def test_what_was_not_measured_is_not_guessed() -> None:
    """Prompts of 1,000 tokens from a fit that never saw a chunk behind more than 100."""
    valid = seen(Shape(256, 64, 64 * 2_000, 256 * 100))
    said = why(Promise(ttft_s=5.0), valid=valid)
    assert said.startswith("outside: steps of up to")
    assert "25,600 were seen" in said


def test_limits_stay_within_what_was_measured() -> None:
    """Batches of up to 4 and chunks of up to 64 were seen: so no plan has larger ones."""
    valid = seen(Shape(64, 4, 10_000, 64 * 2_000))
    found = plan(traffic(4.0, Fixed(100), Fixed(10)), Promise(ttft_s=2.0), [candidate(valid=valid)], requests=60)
    assert found.best is not None
    assert found.best.max_num_seqs is not None
    assert found.best.max_num_seqs <= 4
    assert found.best.max_num_batched_tokens is not None
    assert found.best.max_num_batched_tokens <= 64


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf])
def test_prices_are_prices(price: float) -> None:
    with pytest.raises(ConfigError, match="price of box"):
        candidate(price=price)


@pytest.mark.parametrize(
    "given",
    [{}, {"ttft_s": 0.0}, {"itl_s": math.nan}, {"e2e_s": math.inf}, {"ttft_s": 1.0, "percentile": 100.0}],
)
def test_promises_are_promises(given: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Promise(**given)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_rates_are_rates(rate: float) -> None:
    with pytest.raises(WorkloadError, match="rate"):
        traffic(rate, Fixed(10), Fixed(10))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_day_has_requests_some_time_apart(count: int) -> None:
    with pytest.raises(WorkloadError, match="at least two"):
        Recorded("day", [Arrival(5, Item(10, 10))] * count)


def test_requests_fit_into_the_model() -> None:
    with pytest.raises(ConfigError, match=r"9,010 tokens.*8,192"):
        plan(traffic(1.0, Fixed(9_000), Fixed(10)), Promise(ttft_s=1.0), [candidate()])


def test_candidates_have_names_of_their_own() -> None:
    asked, promise = traffic(1.0, Fixed(10), Fixed(10)), Promise(ttft_s=1.0)
    with pytest.raises(ConfigError, match="box is given twice"):
        plan(asked, promise, [candidate(), candidate(cost=StepCost(MS, 0, 0, 0, 0, 0))])
    with pytest.raises(ConfigError, match="--hardware"):
        plan(asked, promise, [])


def test_the_page_of_a_notebook_escapes_names() -> None:
    found = plan(
        traffic(1.0, Fixed(10), Fixed(10)), Promise(ttft_s=1.0), [candidate("<b>", cost=COST, seqs=4)], requests=40
    )
    page = found._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
