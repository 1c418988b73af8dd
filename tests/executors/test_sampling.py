"""Laws of the sampler: the right distribution, and draws that depend on their own row only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import EngineFailed
from headway.core.request import SAMPLING_RANGES, Reason, SamplingParams
from headway.core.scheduler.step import Begin
from headway.executors.choose import Chooser, top_tokens, uniform
from headway.executors.sampling import Sampler

Floats = npt.NDArray[np.float32]
VOCAB = 300  # no multiple of the blocks that rows are summed in
PROMPT = [1, 2, 3, 3]


def reference(row: Floats, params: SamplingParams) -> npt.NDArray[np.float64]:
    """The exact distribution, written the slow way."""
    scaled = row.astype(np.float64) / params.temperature
    p = np.exp(scaled - scaled.max())
    order = np.lexsort((np.arange(len(p)), -p))  # heaviest first, lowest id first among equals
    if params.top_k:
        p[order[params.top_k :]] = 0
    p[p < params.min_p * p.max()] = 0
    p /= p.sum()
    before = p[order].cumsum() - p[order]
    p[order[before >= params.top_p - 1e-12]] = 0 if params.top_p < 1 else p[order[before >= params.top_p - 1e-12]]
    return p / p.sum()


def gaussian(seed: int, spread: float = 2.0, size: int = VOCAB) -> Floats:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def sampler_with(params: list[SamplingParams], *, max_tokens: int = 100, vocab: int = VOCAB) -> Sampler:
    sampler = Sampler(vocab, [0])
    for seq, each in enumerate(params):
        sampler.begin(seq, Begin(each, PROMPT, max_tokens))
    return sampler


def draw_all(sampler: Sampler, seqs: list[int], logits: Floats, produced: int = 0) -> list[int]:
    positions = [len(PROMPT) + produced] * len(seqs)
    return [result.tokens[0] for result in sampler.sample(seqs, positions, logits)]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        pytest.param(SamplingParams(temperature=0.5), marks=pytest.mark.slow),
        SamplingParams(temperature=1.0, top_p=0.9),
        pytest.param(SamplingParams(temperature=1.3, top_p=0.15), marks=pytest.mark.slow),
        SamplingParams(temperature=1.0, top_k=7),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=1.2, min_p=0.02, top_k=40, top_p=0.8),
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.2, 2.0], ids=["flat", "peaked"])
def test_draws_follow_the_exact_distribution(params: SamplingParams, spread: float):
    draws = 20_000
    row = gaussian(3, spread)
    chooser = Chooser(VOCAB)
    peak = float(row.max())
    seen = np.bincount([chooser.choose(row, peak, params, index) for index in range(draws)], minlength=VOCAB)
    expected = reference(row, params) * draws
    assert not seen[expected == 0].any(), "a filtered token was drawn"
    # Pearson's chi-square; rare tokens are pooled. Mean and deviation under the null: df, sqrt(2 df).
    rare = expected < 10
    pooled_seen = np.append(seen[~rare], seen[rare].sum())
    pooled_expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    statistic = float(((pooled_seen - pooled_expected) ** 2 / pooled_expected).sum())
    freedom = max(len(pooled_seen) - 1, 1)
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


# Small integers, so that ties are common; a third of a nat apart, so that nuclei have many members.
rows = st.lists(st.integers(-12, 12), min_size=VOCAB, max_size=VOCAB).map(
    lambda v: (np.array(v) / 3).astype(np.float32)
)
filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.01, 0.33, 0.77, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 299, 300, 1000]),
    min_p=st.sampled_from([0.0, 0.01, 0.4, 1.0]),
    seed=st.integers(-(2**63), 2**64),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(row=rows, params=filters)
def test_only_what_the_filters_leave_is_drawn(row: Floats, params: SamplingParams):
    allowed = reference(row, params) > 0
    chooser = Chooser(VOCAB)
    for index in range(8):
        assert allowed[chooser.choose(row, float(row.max()), params, index)]


@pytest.mark.parametrize("size", [1, 255, 257, 49_152])
def test_equal_logits_keep_the_lowest_ids(size: int):
    row = np.full(size, 3.0, np.float32)
    chooser = Chooser(size)
    for params in (SamplingParams(top_p=0.01), SamplingParams(top_k=max(1, size // 100))):
        drawn = {chooser.choose(row, 3.0, params, index) for index in range(40)}
        assert max(drawn) <= size // 100


@settings(max_examples=40, deadline=None)
@given(params=st.lists(filters, min_size=1, max_size=9), seed=st.integers(0, 2**32), data=st.data())
def test_a_draw_depends_on_its_own_row_only(params: list[SamplingParams], seed: int, data: st.DataObject):
    logits = np.random.default_rng(seed).normal(0, 2, (len(params), VOCAB)).astype(np.float32)
    together = draw_all(sampler_with(params), list(range(len(params))), logits)
    order = data.draw(st.permutations(range(len(params))))
    assert draw_all(sampler_with(params), order, logits[order]) == [together[seq] for seq in order]
    alone = sampler_with(params)
    assert [draw_all(alone, [seq], logits[seq : seq + 1])[0] for seq in range(len(params))] == together


def test_uniforms_are_uniform_and_not_shared():
    values = np.array([uniform(seed, index) for seed in range(64) for index in range(256)])
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert len(np.unique(values)) == len(values)
    steps = np.linspace(0, 1, 201)
    gap = np.abs((np.sort(values).searchsorted(steps) / len(values)) - steps).max()  # Kolmogorov-Smirnov
    assert gap < 1.95 / np.sqrt(len(values))
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)
    assert uniform(5, 1) != uniform(5, 1, 1)


def test_greedy_takes_the_lowest_id_of_equals_and_never_looks_at_the_seed():
    row = np.zeros((1, VOCAB), np.float32)
    row[0, [40, 7, 90]] = 5.0
    for seed in range(3):
        assert draw_all(sampler_with([SamplingParams(temperature=0, seed=seed)]), [0], row) == [7]


def test_a_tiny_temperature_is_greedy():
    row = gaussian(1)[None]
    assert draw_all(sampler_with([SamplingParams(temperature=1e-40)]), [0], row) == [int(row.argmax())]


@settings(max_examples=100, deadline=None)
@given(
    row=rows,
    frequency=st.sampled_from([-2.0, 0.0, 0.5, 2.0]),
    presence=st.sampled_from([-2.0, 0.0, 1.0]),
    repetition=st.sampled_from([0.5, 1.0, 1.3]),
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 1.0, 3.0]), max_size=4),
)
def test_penalties_and_bias(row: Floats, frequency: float, presence: float, repetition: float, bias: dict[int, float]):
    """Against a plain reading of vLLM's definitions, over as many tokens as it takes to repeat."""
    params = SamplingParams(
        temperature=0,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repetition_penalty=repetition,
        logit_bias=tuple(bias.items()),
        ignore_eos=True,
    )
    sampler = sampler_with([params])
    output: list[int] = []
    for produced in range(12):
        expected = row.copy()
        for token, value in bias.items():
            expected[token] += np.float32(value)
        for token in set(PROMPT) | set(output):
            scale = np.float32(repetition)
            expected[token] = expected[token] / scale if expected[token] > 0 else expected[token] * scale
        for token in set(output):
            expected[token] -= np.float32(frequency) * np.float32(output.count(token))
            expected[token] -= np.float32(presence)
        output += draw_all(sampler, [0], row[None], produced)
        assert output[-1] == int(expected.argmax())


def test_ends():
    row = np.zeros((1, VOCAB), np.float32)
    row[0, 0], row[0, 8], row[0, 9] = 9.0, 8.0, 7.0  # 0 is the end of sequence

    def outcome(params: SamplingParams, max_tokens: int = 5):
        [result] = sampler_with([params], max_tokens=max_tokens).sample([0], [len(PROMPT)], row)
        return result.tokens[0], result.ended

    greedy = SamplingParams(temperature=0.0)
    assert outcome(greedy) == (0, Reason.STOP)
    assert outcome(greedy, max_tokens=1) == (0, Reason.STOP)
    assert outcome(replace(greedy, ignore_eos=True)) == (0, None)
    assert outcome(replace(greedy, ignore_eos=True), max_tokens=1) == (0, Reason.LENGTH)
    assert outcome(replace(greedy, min_tokens=1)) == (8, None)
    assert outcome(replace(greedy, min_tokens=1, stop_token_ids=(8,))) == (9, None)
    assert outcome(replace(greedy, logit_bias=((8, 2.0),), stop_token_ids=(8,))) == (8, Reason.STOP)
    assert outcome(replace(greedy, logit_bias=((VOCAB, 100.0), (-1, 100.0)))) == (0, Reason.STOP)


@settings(max_examples=50, deadline=None)
@given(row=rows, count=st.sampled_from([0, 1, 2, 5, 20]), temperature=st.sampled_from([0.0, 1.0]))
def test_log_probabilities_are_those_of_the_raw_logits(row: Floats, count: int, temperature: float):
    params = SamplingParams(temperature=temperature, logprobs=count, frequency_penalty=1.0)
    [result] = sampler_with([params]).sample([0], [len(PROMPT)], row[None])
    assert result.logprobs is not None
    [logprob] = result.logprobs
    exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    order = np.lexsort((np.arange(VOCAB), -row))[:count]
    assert [token for token, _ in logprob.top] == order.tolist()
    assert logprob.token == result.tokens[0]
    assert logprob.logprob == pytest.approx(exact[logprob.token], abs=1e-5)
    assert [value for _, value in logprob.top] == pytest.approx(exact[order].tolist(), abs=1e-5)


def test_the_most_likely_of_a_large_vocabulary():
    row = gaussian(5, size=49_152)
    assert top_tokens(row, 20) == np.argsort(-row, kind="stable")[:20].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nonsense_is_never_sampled(temperature: float, poison: float):
    logits = np.zeros((3, VOCAB), np.float32)
    logits[1, 200] = poison
    sampler = sampler_with([SamplingParams(temperature=temperature)] * 3)
    results = sampler.sample([0, 1, 2], [len(PROMPT)] * 3, logits)
    assert ["not finite" in result.failed for result in results] == [False, True, False]
    assert [len(result.tokens) for result in results] == [1, 0, 1]


def test_a_row_without_any_possible_token_fails_alone():
    logits = np.stack([np.full(VOCAB, -np.inf, np.float32), gaussian(2)])
    sampler = sampler_with([SamplingParams(temperature=0)] * 2)
    bad, good = sampler.sample([0, 1], [len(PROMPT)] * 2, logits)
    assert (bad.tokens, bad.ended) == ([], None)
    assert "not finite" in bad.failed
    assert (good.tokens, good.failed) == ([int(logits[1].argmax())], "")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "extreme",
    [
        SamplingParams(min_tokens=9, stop_token_ids=tuple(range(VOCAB))),
        SamplingParams(repetition_penalty=SAMPLING_RANGES["repetition_penalty"][0]),
        SamplingParams(repetition_penalty=SAMPLING_RANGES["repetition_penalty"][1]),
    ],
    ids=["all forbidden", "least penalty", "greatest penalty"],
)
def test_one_request_cannot_fail_the_step_of_all(temperature: float, extreme: SamplingParams):
    logits = np.abs(gaussian(2))[None].repeat(2, axis=0)
    params = [replace(extreme, temperature=temperature), SamplingParams(temperature=0)]
    tokens = draw_all(sampler_with(params), [0, 1], logits)
    assert tokens[1] == int(logits[1].argmax())


def test_impossible_tokens_are_never_drawn():
    row = np.full((1, VOCAB), -np.inf, np.float32)
    row[0, [17, 201]] = 1.0
    for seed in range(50):
        assert draw_all(sampler_with([SamplingParams(temperature=2.0, seed=seed)]), [0], row)[0] in {17, 201}


def test_state_is_forgotten_on_drop():
    sampler = sampler_with([SamplingParams()] * 3)
    sampler.drop([0, 2, 99])
    assert len(sampler) == 1
    with pytest.raises(EngineFailed, match="never began"):
        draw_all(sampler, [0], np.zeros((1, VOCAB), np.float32))


def test_a_sequence_samples_its_next_position_only():
    with pytest.raises(EngineFailed, match="position"):
        draw_all(sampler_with([SamplingParams()]), [0], np.zeros((1, VOCAB), np.float32), produced=1)


def test_nothing_sampling_is_fine():
    assert sampler_with([]).sample([], [], np.zeros((0, VOCAB), np.float32)) == []


def test_logits_are_left_alone():
    params = [SamplingParams(temperature=1.0, top_p=0.5, frequency_penalty=1.0, logit_bias=((4, 5.0),), logprobs=2)]
    logits = gaussian(4)[None]
    before = logits.copy()
    draw_all(sampler_with(params), [0], logits)
    assert (logits == before).all()
