"""The step-time model: what it learns, what it must not be taught, and the chunk that it allows."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.pace import MARGIN_QUANTILE, MAX_MARGIN, Shape, StepTime, StepTimeModel, chunk_attention

TRUTH = StepTime(9e6, 480e3, 680e3, 1e3, 280.0)
GUESS = StepTime(1e6, 1e5, 1e5, 1e2, 10.0)

coefficients = st.builds(
    StepTime,
    step_ns=st.floats(0, 1e8),
    prefill_token_ns=st.sampled_from([0.0, 1.0, 480e3]) | st.floats(0, 1e6),
    decode_seq_ns=st.floats(0, 1e6),
    context_token_ns=st.floats(0, 1e4),
    attention_token_ns=st.sampled_from([0.0, 1e-6, 280.0]) | st.floats(0, 1e3),
)


def shapes(rng: random.Random, count: int) -> list[Shape]:
    """Of every kind: prefill alone, decode alone, both."""
    made = []
    for _ in range(count):
        prefill, decode = rng.choice([0, 32, 128, 512]), rng.choice([0, 1, 4, 16, 64])
        if not prefill and not decode:
            continue
        start = rng.choice([0, 0, 512, 2048]) if prefill else 0
        attention = chunk_attention(start, prefill)
        made.append(Shape(prefill, decode, decode * rng.randrange(20, 2000), attention))
    return made


def noisy(rng: random.Random, shape: Shape, noise: float, truth: StepTime = TRUTH) -> int:
    return int(truth.predict_ns(shape) * (1 + rng.uniform(-noise, noise)))


def errors(model: StepTimeModel, truth: StepTime = TRUTH) -> list[float]:
    probes = shapes(random.Random(99), 100)
    return sorted(abs(model.coefficients.predict_ns(shape) / truth.predict_ns(shape) - 1) for shape in probes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", ["profile", "online"])
def test_a_fit_recovers_known_coefficients_from_noisy_observations(how, seed):
    rng = random.Random(seed)
    seen = [(shape, noisy(rng, shape, 0.05)) for shape in shapes(rng, 400)]
    model = StepTimeModel(GUESS)
    if how == "profile":
        model.profile(seen)
    else:
        for shape, real_ns in seen:
            model.observe(shape, real_ns)
    found = model.coefficients
    assert errors(model)[-1] < 0.05
    for name in ("prefill_token_ns", "decode_seq_ns", "context_token_ns", "attention_token_ns"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.15), name


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.builds(
                Shape, st.integers(0, 500), st.integers(0, 64), st.integers(0, 100_000), st.integers(0, 1_000_000)
            ),
            st.integers(1, 10**10),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_coefficients_are_never_negative_whatever_is_observed(seen):
    """So more work is never predicted to be faster, and less work never to cost less than nothing."""
    model = StepTimeModel(GUESS)
    model.profile(seen)
    for shape, real_ns in seen:
        model.observe(shape, real_ns)
    found = model.coefficients
    values = (found.step_ns, found.prefill_token_ns, found.decode_seq_ns, found.context_token_ns)
    assert all(math.isfinite(value) and value >= 0 for value in (*values, found.attention_token_ns))
    assert 1.0 <= model.margin <= MAX_MARGIN


@settings(max_examples=400, deadline=None)
@given(coefficients, st.integers(0, 100_000), st.floats(0, 1e11) | st.integers(-5, 10**6).map(float))
def test_tokens_within_is_the_largest_chunk_that_fits(found, start, budget_ns):
    tokens = found.tokens_within(start, budget_ns)
    assert tokens >= 0
    if budget_ns <= 0:
        assert tokens == 0
    elif tokens < 1 << 30:
        assert found.prefill_ns(start, tokens) <= budget_ns < found.prefill_ns(start, tokens + 1)
    else:
        assert found.prefill_ns(start, 1 << 20) <= budget_ns


@settings(max_examples=100, deadline=None)
@given(coefficients, st.integers(0, 10_000), st.integers(0, 3000))
def test_tokens_within_gives_back_what_was_asked_the_price_of(found, start, tokens):
    price = found.prefill_ns(start, tokens)
    if price < found.prefill_ns(start, tokens + 1):
        assert found.tokens_within(start, price) == (tokens if price > 0 else 0)


def test_a_prompt_costs_what_its_chunks_cost_but_for_rounding():
    whole = TRUTH.prefill_ns(0, 1000)
    chunks = sum(TRUTH.prefill_ns(start, 100) for start in range(0, 1000, 100))
    assert chunks == pytest.approx(whole, rel=1e-3)


def taught(seed: int = 1) -> tuple[StepTimeModel, random.Random]:
    rng = random.Random(seed)
    model = StepTimeModel(GUESS)
    model.profile([(shape, noisy(rng, shape, 0.02)) for shape in shapes(rng, 60)])
    return model, rng


def test_outliers_do_not_wreck_it():
    model, rng = taught()
    for shape in shapes(rng, 600):
        hiccup = rng.choice([5, 50]) if rng.random() < 0.03 else 1
        model.observe(shape, noisy(rng, shape, 0.02) * hiccup)
    assert errors(model)[50] < 0.03
    assert errors(model)[-1] < 0.10


def test_a_machine_that_has_become_much_slower_is_believed_in_the_end():
    """Every step is an outlier then. Model and margin together must cover what steps really take."""
    model, rng = taught()
    slower = StepTime(*(5 * value for value in (9e6, 480e3, 680e3, 1e3, 280.0)))
    for shape in shapes(rng, 3000):
        model.observe(shape, noisy(rng, shape, 0.02, slower))
    covered = [
        model.coefficients.predict_ns(shape) * model.margin >= 0.95 * slower.predict_ns(shape)
        for shape in shapes(rng, 100)
    ]
    assert sum(covered) >= 0.9 * len(covered)


def test_a_phase_of_pure_decode_does_not_unlearn_prefill():
    model, rng = taught()
    for _ in range(3000):
        decode = rng.randrange(1, 64)
        shape = Shape(0, decode, decode * rng.randrange(20, 2000))
        model.observe(shape, noisy(rng, shape, 0.05))
    for start, tokens in ((0, 32), (0, 512), (2048, 128)):
        assert model.coefficients.prefill_ns(start, tokens) == pytest.approx(TRUTH.prefill_ns(start, tokens), rel=0.1)


def test_a_slow_drift_is_followed():
    model, rng = taught()
    for i, shape in enumerate(shapes(rng, 2500)):
        drifted = StepTime(*(value * min(1.5, 1 + i / 2000) for value in (9e6, 480e3, 680e3, 1e3, 280.0)))
        model.observe(shape, noisy(rng, shape, 0.02, drifted))
    truth = StepTime(*(1.5 * value for value in (9e6, 480e3, 680e3, 1e3, 280.0)))
    assert errors(model, truth)[50] < 0.08


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_the_margin_is_the_quantile_of_what_steps_take_beyond_their_prediction(spread):
    model, rng = taught()
    within = []
    for i, shape in enumerate(shapes(rng, 5000)):
        real_ns = noisy(rng, shape, spread)
        if i > 1500:
            within.append(real_ns <= model.margin * model.coefficients.predict_ns(shape))
        model.observe(shape, real_ns)
    assert sum(within) / len(within) == pytest.approx(MARGIN_QUANTILE, abs=0.03)


def test_a_frozen_model_does_not_learn():
    model = StepTimeModel(TRUTH, frozen=True)
    for shape in shapes(random.Random(0), 100):
        model.observe(shape, 1)
    assert (model.coefficients, model.margin) == (TRUTH, 1.0)


def test_a_stated_model_learns_only_how_late_steps_are():
    model = StepTimeModel(TRUTH, stated=True)
    some = shapes(random.Random(0), 400)
    for shape in some:
        model.observe(shape, round(TRUTH.predict_ns(shape)))
    assert (model.coefficients, model.margin) == (TRUTH, 1.0), "on time, to the ns"
    for shape in some:
        model.observe(shape, round(1.2 * TRUTH.predict_ns(shape)))
    assert model.coefficients == TRUTH
    assert model.margin == pytest.approx(1.2, abs=0.03)


def test_the_same_observations_teach_the_same():
    assert taught()[0].coefficients == taught()[0].coefficients
