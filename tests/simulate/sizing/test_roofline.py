"""The roofline: its two slopes, its bounds, the linear model laid over it. Times are of the formula, not a clock's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.pace import Shape, chunk_attention
from headway.simulate.sizing import (
    Efficiency,
    Roofline,
    StepRange,
    fit_roofline,
    hardware_named,
    shape_from_config,
    transfer,
)
from tests.simulate.sizing import configs as c

LLAMA = shape_from_config(c.LLAMA_31_8B)
PERFECT = Efficiency(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
RTX_4090 = hardware_named("RTX 4090")


def test_one_sequence_waits_for_the_weights():
    """Decode alone reads every weight once: bytes over bandwidth, the embedding table aside."""
    seconds = Roofline(LLAMA, RTX_4090, efficiency=PERFECT).step_s(Shape(0, 1, 0, 0))
    read = 2 * (LLAMA.parameters.total - LLAMA.parameters.embedding)
    assert seconds == pytest.approx(read / 1008e9)


def test_a_large_chunk_waits_for_the_multiplier():
    tokens = 8192
    seconds = Roofline(LLAMA, RTX_4090, efficiency=PERFECT).step_s(Shape(tokens, 0, 0, 0))
    assert seconds == pytest.approx(2 * LLAMA.parameters.body * tokens / 165.2e12)


def test_context_costs_its_bytes():
    roofline = Roofline(LLAMA, RTX_4090, efficiency=PERFECT)
    more = roofline.step_s(Shape(0, 8, 80_000, 0)) - roofline.step_s(Shape(0, 8, 0, 0))
    assert more == pytest.approx(80_000 * 131_072 / 1008e9)


def test_a_window_is_read_only_to_its_width():
    shape = shape_from_config({**c.MISTRAL_7B, "sliding_window": 1024})
    roofline = Roofline(shape, RTX_4090, efficiency=PERFECT)
    assert roofline.step_s(Shape(0, 1, 2000, 0)) == roofline.step_s(Shape(0, 1, 20_000, 0))


def test_few_tokens_touch_few_experts():
    shape = shape_from_config(c.QWEN3_30B_A3B)
    roofline = Roofline(shape, hardware_named("H100"), efficiency=PERFECT)
    one, many = roofline.step_s(Shape(0, 1, 0, 0)), roofline.step_s(Shape(0, 256, 0, 0))
    assert one < 0.2 * many
    assert many == pytest.approx(2 * (shape.parameters.total - shape.parameters.embedding) / 3350e9, rel=0.01)


work = st.builds(
    lambda chunk, start, seqs, context: Shape(chunk, seqs, seqs * context, chunk_attention(start, chunk)),
    st.integers(0, 4096), st.integers(0, 30_000), st.integers(0, 256), st.integers(0, 30_000),
)  # fmt: skip


@given(work, work, st.sampled_from([1, 2, 4, 8]))
def test_more_work_is_never_faster(one, other, ranks):
    both = Shape(*(a + b for a, b in zip(one, other, strict=True)))
    roofline = Roofline(LLAMA, RTX_4090, ranks)
    assert roofline.step_s(both) >= roofline.step_s(one)


def test_ranks_share_the_weights_and_pay_for_talking():
    free = Roofline(LLAMA, hardware_named("H100"), 8, efficiency=PERFECT).step_s(Shape(0, 1, 0, 0))
    alone = Roofline(LLAMA, hardware_named("H100"), 1, efficiency=PERFECT).step_s(Shape(0, 1, 0, 0))
    assert alone / 8 < free < alone / 4
    paid = Roofline(LLAMA, hardware_named("H100"), 8, efficiency=Efficiency(1.0, 1.0, 1.0, 0.0, 0.0, 1e-5))
    assert paid.step_s(Shape(0, 1, 0, 0)) - free == pytest.approx(2 * 32 * 1e-5)


def test_the_linear_model_and_its_bounds():
    fit = fit_roofline(LLAMA, RTX_4090, valid=StepRange(2048, 64, 8192))
    assert 0 < fit.median_error < 0.15
    assert fit.median_error <= fit.worst_error < 0.6
    coefficients = [getattr(fit.step_time, name) for name in fit.step_time.__slots__]
    assert all(math.isfinite(value) and value >= 0 for value in coefficients)
    for shape in fit.valid.grid():
        assert shape in fit.valid
        assert fit.fastest.predict_ns(shape) < fit.slowest.predict_ns(shape)


def test_outside_of_the_range_is_told():
    valid = StepRange(2048, 64, 8192)
    assert Shape(0, 65, 65) not in valid
    assert Shape(4096, 0) not in valid
    assert Shape(0, 1, 8193) not in valid
    assert Shape(0, 64, 64 * 8192) in valid


def test_the_measured_run_lies_between_the_bounds():
    """RTX 4090, Llama-3.1-8B, vLLM 0.19: the quickest of 300 requests had 21.5 ms a token, beside about 25 others."""
    fit = fit_roofline(LLAMA, RTX_4090)
    shape = Shape(0, 26, 26 * 900)
    assert fit.fastest.predict_ns(shape) < 21.5e6 < fit.slowest.predict_ns(shape)
    assert Roofline(LLAMA, RTX_4090).step_s(shape) == pytest.approx(21.5e-3, rel=0.15)


def test_carrying_a_measurement_over():
    small, large = (fit_roofline(LLAMA, hardware_named(name)) for name in ("RTX 4090", "H100"))
    assert transfer(small.step_time, small, small) == small.step_time
    carried = transfer(small.step_time, small, large)
    for name in carried.__slots__:
        if getattr(small.step_time, name) > 0:
            assert getattr(carried, name) == pytest.approx(getattr(large.step_time, name), rel=1e-9)


def test_eight_bits_are_faster_only_where_they_are_multiplied():
    narrow = shape_from_config({**c.LLAMA_31_8B, "quantization_config": c.FP8})
    packed = shape_from_config({**c.LLAMA_31_8B, "quantization_config": c.AWQ})
    chunk = Shape(8192, 0, 0, 0)
    plain, eight, four = (
        Roofline(shape, hardware_named("H100"), efficiency=PERFECT).step_s(chunk) for shape in (LLAMA, narrow, packed)
    )
    assert eight == pytest.approx(plain / 2, rel=0.01)
    assert four == pytest.approx(plain, rel=0.01)
