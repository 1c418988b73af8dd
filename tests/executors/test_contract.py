"""What every executor promises (`headway.executors.executor.Executor`), held against each implementation."""

from __future__ import annotations

import copy
import math

import pytest

from headway.core.errors import EngineFailed
from headway.core.request import Reason, SamplingParams
from headway.core.scheduler.step import Row, Step
from headway.executors.executor import Executor
from tests.executors.driving import GREEDY, HANDLES, generate, one_row, step_of

# Lengths around the block size of 32, so that tables of one, exactly one and several blocks occur.
PROMPTS = [[300 + (7 * i + j) % 300 for j in range(length)] for i, length in enumerate((1, 5, 32, 33, 70))]
SAMPLED = [SamplingParams(temperature=1.0, top_p=0.9, seed=seed, ignore_eos=True) for seed in range(len(PROMPTS))]


_ALONE: dict[str, list[list[int]]] = {}


@pytest.fixture
def alone(executor: Executor) -> list[list[int]]:
    """What each prompt yields by itself, its prompt in one piece. Computed once for each implementation."""
    if executor.info.name not in _ALONE:
        _ALONE[executor.info.name] = [generate(executor, [prompt], max_tokens=6)[0] for prompt in PROMPTS]
    return _ALONE[executor.info.name]


def test_info_states_real_numbers(executor: Executor):
    info = executor.info
    assert info.num_blocks > 0
    assert info.block_size % info.chunk_multiple_tokens == 0
    assert info.kv_bytes_per_token > 0
    assert info.vocab_size > 600
    assert info.threads >= 1


def test_every_sampling_row_yields_one_result_in_row_order(executor: Executor):
    rows = [one_row(prompt, blocks=range(4 * i, 4 * i + 4)) for i, prompt in enumerate(PROMPTS)]
    rows[1].samples = rows[3].samples = False
    outcome = executor.run(step_of(rows, step_id=9))
    assert outcome.step_id == 9
    assert [result.seq for result in outcome.results] == [row.seq for row in rows if row.samples]
    assert all(len(result.tokens) == 1 for result in outcome.results)
    assert outcome.seconds > 0


def test_a_step_in_which_nothing_samples_has_no_results(executor: Executor):
    row = one_row(PROMPTS[3], blocks=(2, 1))
    row.samples = False
    assert executor.run(step_of([row])).results == []


def test_a_step_without_rows_only_forgets(executor: Executor):
    row = one_row([5, 6, 7])
    executor.run(step_of([row]))
    assert executor.run(Step(3, [], 0, 0, 0, dropped=[row.seq, 10**9])).results == []
    with pytest.raises(EngineFailed, match=str(row.seq)):
        executor.run(step_of([Row(row.seq, 3, [8], [0], samples=True)]))


def test_the_length_limit_ends_a_sequence(executor: Executor):
    first = one_row([5, 6, 7], max_tokens=2)
    [result] = executor.run(step_of([first])).results
    assert result.ended is None
    [result] = executor.run(step_of([Row(first.seq, 3, result.tokens, [0], samples=True)])).results
    assert result.ended is Reason.LENGTH


def test_a_stop_token_ends_a_sequence_and_is_included(executor: Executor, alone: list[list[int]]):
    stop = alone[0][2]
    params = SamplingParams(temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
    assert generate(executor, PROMPTS[:1], max_tokens=6, params=params) == [alone[0][: alone[0].index(stop) + 1]]


def test_no_stop_token_before_min_tokens(executor: Executor, alone: list[list[int]]):
    params = SamplingParams(temperature=0.0, ignore_eos=True, stop_token_ids=(alone[0][0],), min_tokens=4)
    [output] = generate(executor, PROMPTS[:1], max_tokens=6, params=params)
    assert len(output) >= 4
    assert alone[0][0] not in output[:4]


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 7, 32])
def test_chunks_do_not_change_tokens(executor: Executor, alone: list[list[int]], chunk: int):
    assert generate(executor, PROMPTS, max_tokens=6, chunk=chunk) == alone


def test_who_else_is_in_the_batch_does_not_change_tokens(executor: Executor, alone: list[list[int]]):
    assert generate(executor, PROMPTS, max_tokens=6) == alone
    assert generate(executor, PROMPTS, max_tokens=6, stagger=2) == alone
    assert generate(executor, PROMPTS[::-1], max_tokens=6, chunk=16) == alone[::-1]


def test_padding_does_not_change_tokens(executor: Executor, alone: list[list[int]]):
    assert generate(executor, PROMPTS, max_tokens=6, pad_tokens=45) == alone


@pytest.mark.parametrize("params", [[GREEDY] * len(PROMPTS), SAMPLED], ids=["greedy", "sampled"])
def test_preemption_does_not_change_tokens(executor: Executor, params: list[SamplingParams]):
    undisturbed = generate(executor, PROMPTS, max_tokens=6, params=params)
    preempted = generate(
        executor, PROMPTS, max_tokens=6, params=params, chunk=20, preempt_at={(0, 1), (2, 3), (4, 2), (4, 5)}
    )
    assert preempted == undisturbed


def test_the_seed_decides_the_draws(executor: Executor):
    prompts = [PROMPTS[3]] * 3
    params = [SamplingParams(temperature=1.5, seed=seed, ignore_eos=True) for seed in (1, 1, 2)]
    one, same, other = generate(executor, prompts, max_tokens=8, params=params, stagger=1)
    assert one == same
    assert one != other


def test_sequences_may_share_the_blocks_of_a_prefix(executor: Executor):
    size = executor.info.block_size
    prefix = [400 + i % 50 for i in range(size)]
    tails = [[310, 311], [320]]
    expected = [generate(executor, [prefix + tail], max_tokens=1)[0] for tail in tails]
    owner = one_row(prefix, blocks=[9])
    executor.run(step_of([owner]))
    rows = [one_row(prefix + tail, blocks=[9, 11 + i], max_tokens=1) for i, tail in enumerate(tails)]
    for row, tail in zip(rows, tails, strict=True):
        row.start, row.tokens = size, tail
    assert [result.tokens for result in executor.run(step_of(rows)).results] == expected


def test_log_probabilities_come_with_the_token(executor: Executor):
    params = SamplingParams(temperature=0.0, logprobs=3)
    [result] = executor.run(step_of([one_row(PROMPTS[1], params=params)])).results
    assert result.logprobs is not None
    [logprob] = result.logprobs
    assert logprob.token == result.tokens[0] == logprob.top[0][0]
    assert logprob.logprob == logprob.top[0][1]
    values = [value for _, value in logprob.top]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)
    assert sum(map(math.exp, values)) <= 1.0 + 1e-6


def test_the_step_is_not_modified(executor: Executor):
    step = step_of([one_row([5, 6, 7], blocks=[3, 4, 5])], pad_tokens=5, dropped=[10**9])
    before = copy.deepcopy(step)
    executor.run(step)
    assert step == before


def broken(row: Row, **changes: object) -> Row:
    for name, value in changes.items():
        setattr(row, name, value)
    return row


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(lambda: broken(one_row(range(40)), blocks=[0]), id="table too short"),
        pytest.param(lambda: broken(one_row([5]), blocks=[10**7]), id="no such block"),
        pytest.param(lambda: broken(one_row([5]), tokens=[]), id="no tokens"),
        pytest.param(lambda: broken(one_row([5]), begin=None), id="never began"),
        pytest.param(lambda: broken(one_row([5, 6]), tokens=[5]), id="samples inside the prompt"),
    ],
)
def test_a_broken_step_raises(executor: Executor, row):
    with pytest.raises(EngineFailed):
        executor.run(step_of([row()]))


def test_a_handle_begins_once(executor: Executor):
    row = one_row([5])
    executor.run(step_of([row]))
    with pytest.raises(EngineFailed, match="twice"):
        executor.run(step_of([row]))


def test_handles_are_not_reused_by_these_tests():
    assert next(HANDLES) < next(HANDLES)
