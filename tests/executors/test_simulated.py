"""The simulated executor as a truth machine: a scheduler's mistake shows in the tokens. And its clock and its text."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ConfigError, EngineFailed
from headway.core.request import Reason, SamplingParams
from headway.core.scheduler.step import Row, Step
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor, StepCost
from headway.executors.simulated_text import EOS, VOCAB_SIZE, simulated_model
from tests.executors.driving import generate, one_row, step_of

PROMPT = list(range(300, 370))  # three blocks, the last one partly filled
TOKENIZER = simulated_model().tokenizer


def virtual(**changes: object) -> SimulatedExecutor:
    config = {"clock": "virtual", "num_blocks": 128, "mean_output_tokens": 1e9, **changes}
    return SimulatedExecutor(SimulatedConfig(**config))  # type: ignore[arg-type]


def prefilled(executor: SimulatedExecutor, prompt: list[int], blocks: list[int]) -> Row:
    """Feed the prompt; returns the row of the first decode."""
    row = one_row(prompt, blocks=blocks, max_tokens=100)
    [result] = executor.run(step_of([row])).results
    return Row(row.seq, len(prompt), result.tokens, blocks, samples=True)


def decoded(executor: SimulatedExecutor, row: Row) -> int:
    return executor.run(step_of([row])).results[0].tokens[0]


@pytest.mark.parametrize("audit", [False, True])
def test_the_truth_is_a_function_of_the_history(audit: bool):
    outputs = {
        tuple(generate(virtual(audit=audit, block_size=size), [PROMPT], max_tokens=9, chunk=chunk)[0])
        for size in (1, 16, 32)
        for chunk in (3, 32, 500)
    }
    assert len(outputs) == 1
    assert tuple(generate(virtual(), [[301, *PROMPT[1:]]], max_tokens=9)[0]) not in outputs


def test_the_block_that_is_read_decides():
    executor = virtual()
    right = decoded(executor, prefilled(executor, PROMPT, [1, 2, 3]))
    prefilled(executor, PROMPT[::-1], [4, 5, 6])
    row = prefilled(executor, PROMPT, [7, 8, 9])
    for wrong in ([7, 8, 6], [7, 8, 50]):  # another sequence's block, an empty one
        row.blocks = wrong
        kv = executor._kv
        assert kv is not None
        assert kv.before(row) != kv.before(Row(row.seq, 70, row.tokens, [7, 8, 9], samples=True))
    row.blocks = [7, 8, 6]
    assert decoded(executor, row) != right


def test_an_overwritten_tail_changes_the_tokens():
    executor = virtual()
    right = decoded(executor, prefilled(executor, PROMPT, [1, 2, 3]))
    row = prefilled(executor, PROMPT, [4, 5, 6])
    prefilled(executor, PROMPT[::-1], [7, 8, 6])  # takes a block that is in use
    assert decoded(executor, row) != right


def test_what_a_step_writes_cannot_be_read_in_the_same_step():
    executor = virtual()
    right = decoded(executor, prefilled(executor, PROMPT, [1, 2, 3]))
    reader = prefilled(executor, PROMPT, [4, 5, 6])
    writer = one_row(PROMPT, blocks=[10, 11, 12])
    reader.blocks = [10, 11, 12]
    results = executor.run(step_of([writer, reader])).results
    assert results[1].tokens[0] != right


def test_an_audit_names_a_lost_block_that_the_tail_does_not_show():
    for audit in (False, True):
        executor = virtual(audit=audit)
        row = prefilled(executor, PROMPT, [1, 2, 3])
        prefilled(executor, PROMPT[::-1][:32], [2])
        if audit:
            with pytest.raises(EngineFailed, match="position 32, in block 2"):
                decoded(executor, row)
        else:
            decoded(executor, row)


def test_an_audit_finds_one_foreign_token_inside_a_block():
    executor = virtual(audit=True)
    row = prefilled(executor, PROMPT, [1, 2, 3])
    assert executor._kv is not None
    executor._kv._hashes[1 * 32 + 5] ^= 1
    with pytest.raises(EngineFailed, match="position 5, in block 1"):
        decoded(executor, row)


def test_greedy_ignores_the_seed():
    params = [SamplingParams(temperature=0.0, seed=seed) for seed in (1, 2)]
    one, other = generate(virtual(), [PROMPT, PROMPT], max_tokens=9, params=params)
    assert one == other


def test_outputs_end_by_themselves_at_the_configured_length():
    prompts = [[300 + i % 300, 300 + i // 300] for i in range(400)]
    outputs = generate(
        virtual(mean_output_tokens=20.0, num_blocks=4_000),
        prompts,
        max_tokens=2_000,
        params=SamplingParams(temperature=0.0),
    )
    assert all(output[-1] == EOS for output in outputs)
    assert 17 < sum(map(len, outputs)) / len(outputs) < 23


def test_ends_are_honoured():
    ends_at_once = virtual(mean_output_tokens=1.0)

    def run(params: SamplingParams) -> list[int]:
        return generate(ends_at_once, [PROMPT], max_tokens=5, params=params)[0]

    assert run(SamplingParams()) == [EOS]
    assert len(run(SamplingParams(ignore_eos=True))) == 5
    assert run(SamplingParams(min_tokens=3)).index(EOS) == 3


def test_the_virtual_clock_reports_and_does_not_wait():
    cost = StepCost(1_000_000_000, 10_000_000, 1_000_000, 1_000, 100)
    executor = virtual(cost=cost)
    started = time.perf_counter()
    prefill = executor.run(step_of([one_row(PROMPT, blocks=[0, 1, 2])], pad_tokens=10))
    assert prefill.seconds == (1_000_000_000 + 80 * 10_000_000 + 100 * 70 * 70 // 2) / 1e9
    decode = executor.run(Step(1, [one_row([5])], 0, 1, 2_000))
    assert decode.seconds == (1_000_000_000 + 1_000_000 + 2_000 * 1_000) / 1e9
    assert executor.run(Step(2, [], 0, 0, 0)).seconds == 0.0
    assert time.perf_counter() - started < 0.5


def test_the_sleeping_clock_lasts():
    executor = virtual(clock="sleep", cost=StepCost(20_000_000, 0, 0, 0, 0))
    started = time.perf_counter()
    executor.run(step_of([one_row([5])]))
    assert time.perf_counter() - started >= 0.02


@pytest.mark.parametrize(
    "changes", [{"block_size": 0}, {"num_blocks": 0}, {"first_token_id": VOCAB_SIZE}, {"mean_output_tokens": 0.5}]
)
def test_impossible_configurations(changes: dict[str, object]):
    with pytest.raises(ConfigError):
        virtual(**changes)


# -- repeated steps ----------------------------------------------------------------------------------------------


def decoding(executor: SimulatedExecutor, sequences: int, max_tokens: int) -> list[Row]:
    """Rows of the first decode of `sequences` prompts, with blocks for 28 tokens more."""
    rows = [one_row([300 + i, *PROMPT[1:]], blocks=[4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3]) for i in range(sequences)]
    for row in rows:
        assert row.begin is not None
        row.begin = replace(row.begin, max_tokens=max_tokens)
    results = executor.run(step_of(rows)).results
    return [Row(row.seq, 70, result.tokens, row.blocks, True) for row, result in zip(rows, results, strict=True)]


def repeated(rows: list[Row], times: int) -> Step:
    return replace(step_of(rows), repeat=times)


@given(
    repeat=st.integers(1, 28),
    sequences=st.integers(1, 4),
    max_tokens=st.integers(2, 40),
    mean_output_tokens=st.sampled_from([3.0, 1e9]),
    keeps_kv=st.booleans(),
)
def test_a_repeated_step_is_as_many_single_ones(repeat, sequences, max_tokens, mean_output_tokens, keeps_kv):
    changes = {"keeps_kv": keeps_kv, "audit": keeps_kv, "mean_output_tokens": mean_output_tokens}
    together, single = virtual(**changes), virtual(**changes)
    rows = decoding(together, sequences, max_tokens)
    alone = decoding(single, sequences, max_tokens)
    outcome = together.run(repeated(rows, repeat))
    steps = len(outcome.results[0].tokens)
    assert {len(result.tokens) for result in outcome.results} == {steps}
    assert 1 <= steps <= repeat
    cost, total_ns = StepCost(), 0
    for done in range(steps):
        step = step_of(alone)
        total_ns += cost.of(step)
        results = single.run(step).results
        assert [r.tokens[0] for r in results] == [r.tokens[done] for r in outcome.results]
        ended = any(result.ended for result in results)
        assert ended is (done == steps - 1 and any(result.ended for result in outcome.results))
        alone = [
            Row(row.seq, row.start + 1, result.tokens, row.blocks, True)
            for row, result in zip(alone, results, strict=True)
        ]
    assert steps == repeat or ended
    assert [r.ended for r in results] == [r.ended for r in outcome.results]
    assert cost.of_repeat(repeated(rows, repeat), steps) == total_ns
    assert cost.of_decode(sequences, 70 * sequences, steps) == total_ns
    assert outcome.seconds == total_ns / 1e9


def test_only_decode_can_be_repeated():
    with pytest.raises(EngineFailed, match="repeats prefill"):
        virtual().run(repeated([one_row(PROMPT, blocks=range(9))], 2))


def test_a_repeated_step_needs_blocks_for_all_of_it():
    executor = virtual()
    rows = decoding(executor, 1, 100)
    with pytest.raises(EngineFailed, match="59 tokens from position 70 do not fit 4 blocks"):
        executor.run(repeated(rows, 59))
    assert len(virtual_decode(58)) == 58


def virtual_decode(times: int) -> list[int]:
    executor = virtual()
    return executor.run(repeated(decoding(executor, 1, 100), times)).results[0].tokens


@pytest.mark.parametrize("keeps_kv", [True, False])
@pytest.mark.parametrize(("length", "reason"), [(1, "stop"), (7, "stop"), (10, "stop"), (11, "length")])
def test_an_output_ends_where_the_world_says_and_nowhere_else(keeps_kv: bool, length: int, reason: str):
    executor = virtual(keeps_kv=keeps_kv, mean_output_tokens=2.0)
    row = one_row(PROMPT, blocks=range(9), params=SamplingParams(), max_tokens=10)
    executor.end_after(row.seq, length)
    [result] = executor.run(step_of([row])).results
    tokens = list(result.tokens)
    while result.ended is None:
        row = Row(row.seq, len(PROMPT) + len(tokens) - 1, result.tokens[-1:], row.blocks, samples=True)
        [result] = executor.run(step_of([row])).results
        tokens += result.tokens
    assert (len(tokens), result.ended.value) == (min(length, 10), reason)
    assert tokens.index(EOS) == len(tokens) - 1 if reason == "stop" else EOS not in tokens


def test_a_model_believes_what_the_executor_states():
    executor = virtual()
    step = step_of([one_row(PROMPT, blocks=range(9))])
    assert executor.info.step_time is not None
    assert executor.info.step_time.predict_ns(step.shape) == StepCost().of(step)


def test_closed_is_closed():
    executor = virtual()
    executor.close()
    executor.close()
    with pytest.raises(EngineFailed, match="closed"):
        executor.run(Step(0, [], 0, 0, 0))


def test_the_end_token_ends():
    [result] = virtual(mean_output_tokens=1.0).run(step_of([one_row([5], params=SamplingParams())])).results
    assert result.ended is Reason.STOP


@given(st.text())
def test_text_survives(text: str):
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    detokenizer = TOKENIZER.stream()
    pieces = [detokenizer.add([token]) for token in tokens]
    assert "".join(pieces) + detokenizer.flush() == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert b"".join(map(TOKENIZER.token_bytes, tokens)).decode() == text


@given(st.lists(st.integers(0, VOCAB_SIZE - 1)))
def test_any_tokens_have_a_text(tokens: list[int]):
    detokenizer = TOKENIZER.stream()
    assert detokenizer.add(tokens) + detokenizer.flush() == TOKENIZER.decode(tokens)
    assert TOKENIZER.decode(tokens, skip_special_tokens=False).count("<|end|>") >= tokens.count(EOS)


def test_output_reads_as_words():
    [output] = generate(virtual(), [TOKENIZER.encode("Tell me a story")], max_tokens=20)
    words = TOKENIZER.decode(output)
    assert words.isascii()
    assert len(words.split()) > 10
    assert TOKENIZER.encode_batch([" the sun", "the"]) == [TOKENIZER.encode(" the sun"), TOKENIZER.encode("the")]
    assert len(TOKENIZER.encode("the sun")) == 2, "a word begins a text as it goes on in it: one token"
    assert len(TOKENIZER.encode("xthe")) == 4, "and is none inside another"


def test_a_lone_surrogate_is_no_crash():
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud800b")) == "a?b"
