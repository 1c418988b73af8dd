"""From logits to tokens: greedy, or drawn with a request's own temperature, filters, penalties and seed.

Two promises shape this file. *A row pays only for what it asked*: greedy rows of a mixed batch cost one pass of
argmax. *A draw depends on nothing but its own row*: its uniform comes from (seed, index of the output token), and
every reduction runs over one row at a time, in an order that the batch cannot change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headway.core.errors import EngineFailed
from headway.core.request import Reason, SamplingParams
from headway.core.scheduler.step import Begin, RowResult, TokenLogprob
from headway.executors.choose import Chooser, top_tokens

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# Below this the distribution is a point in all but name, and 1/temperature would overflow.
GREEDY_BELOW = 1e-5


class Sampler:
    """Draws one token for each sampling row, and says which sequences that ended.

    Holds per-sequence state from `begin` until `drop`. Preemption is invisible here: the state counts what was
    *produced*, so feeding the same tokens again changes nothing.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._eos = frozenset(eos_token_ids)
        self._states: dict[int, _State] = {}
        self._chooser = Chooser(vocab_size)

    def begin(self, seq: int, begin: Begin) -> None:
        """Learn about a sequence. Raises `EngineFailed` when the handle is in use."""
        if seq in self._states:
            raise EngineFailed(f"sequence {seq} began twice; a handle is used once")
        self._states[seq] = _State.of(begin, self._eos, self._vocab_size)

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget sequences. Handles that never began are ignored: a request can be cancelled before it ran."""
        for seq in seqs:
            self._states.pop(seq, None)

    def __len__(self) -> int:
        return len(self._states)

    def sample(self, seqs: ReadOnlySequence[int], positions: ReadOnlySequence[int], logits: Floats) -> list[RowResult]:
        """One result for each of `seqs`, in their order.

        `positions` are the positions the new tokens will have (prompt and output tokens before them); `logits` is
        f32 of [len(seqs), vocab size] and is not modified. Raises `EngineFailed` on an unknown sequence, on a
        position that is not the next one. A row whose logits are not numbers fails
        alone: nothing is drawn from nonsense.
        """
        states = [self._expect(seq, position) for seq, position in zip(seqs, positions, strict=True)]
        # numpy's argmax returns the first NaN if there is one, and the lowest id among equals.
        best = logits.argmax(axis=1) if states else np.zeros(0, np.int64)
        peaks: list[float] = logits[np.arange(len(best)), best].tolist()
        results = []
        for index, (seq, state, token, peak) in enumerate(zip(seqs, states, best.tolist(), peaks, strict=True)):
            if not math.isfinite(peak):
                # One row's trouble must not be the step's: the others' tokens are as good as ever.
                results.append(RowResult(seq, [], failed=f"The model's logits are not finite (maximum {peak})."))
                continue
            if not state.plain_greedy:
                token = self._draw(state, logits[index], token, peak)
            logprobs = [_logprob(logits[index], peak, token, state.logprobs)] if state.logprobs is not None else None
            results.append(RowResult(seq, [token], state.advance(token), logprobs))
        return results

    def _expect(self, seq: int, position: int) -> _State:
        state = self._states.get(seq)
        if state is None:
            raise EngineFailed(f"sequence {seq} samples, but it never began on this executor")
        if position != state.prompt_tokens + state.produced:
            raise EngineFailed(
                f"sequence {seq} samples position {position}, but its next token is "
                f"{state.prompt_tokens} prompt + {state.produced} output tokens in"
            )
        return state

    def _draw(self, state: _State, row: Floats, best: int, peak: float) -> int:
        if state.edits_logits:
            edited = state.edited(row)
            best_edited = int(edited.argmax())
            # One request's extreme penalties (all forbidden, or beyond f32) must not fail the whole step: then they
            # are left aside. That the model's own logits are finite has been checked.
            if np.isfinite(edited[best_edited]):
                row, best, peak = edited, best_edited, float(edited[best_edited])
        if state.greedy:
            return best
        return self._chooser.choose(row, peak, state.params, state.produced)


def _logprob(row: Floats, peak: float, token: int, rivals: int) -> TokenLogprob:
    """Log-softmax of the raw logits at `token` and at the `rivals` most likely tokens."""
    log_total = peak + float(np.log(np.exp(row - np.float32(peak)).sum(dtype=np.float64)))
    top = tuple((each, float(row[each]) - log_total) for each in top_tokens(row, rivals))
    return TokenLogprob(token, float(row[token]) - log_total, top)


@dataclass(slots=True)
class _State:
    """What a sequence's draws depend on, worked out once where it can be."""

    params: SamplingParams
    prompt_tokens: int
    max_tokens: int
    ends: frozenset[int]  # token ids that end it
    greedy: bool
    logprobs: int | None
    bias_ids: Ids
    bias: Floats
    end_ids: Ids
    counts: _Counts | None  # only where a penalty asks for it
    edits_logits: bool
    plain_greedy: bool  # argmax of the raw row is the answer
    produced: int = 0

    @classmethod
    def of(cls, begin: Begin, eos: frozenset[int], vocab_size: int) -> _State:
        params = begin.params
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos)
        # Ids beyond the vocabulary are refused at the edge; here they must not take the engine down.
        bias = [(token, value) for token, value in params.logit_bias if 0 <= token < vocab_size]
        penalised = (
            params.frequency_penalty != 0.0 or params.presence_penalty != 0.0 or params.repetition_penalty != 1.0
        )
        edits = penalised or bool(bias) or params.min_tokens > 0
        greedy = params.temperature < GREEDY_BELOW
        return cls(
            params=params,
            prompt_tokens=len(begin.prompt),
            max_tokens=begin.max_tokens,
            ends=ends,
            greedy=greedy,
            logprobs=None if params.logprobs is None else min(params.logprobs, vocab_size),
            bias_ids=np.array([token for token, _ in bias], np.int64),
            bias=np.array([value for _, value in bias], np.float32),
            end_ids=np.array(sorted(token for token in ends if 0 <= token < vocab_size), np.int64),
            counts=_Counts.of_prompt(begin.prompt) if penalised else None,
            edits_logits=edits,
            plain_greedy=greedy and not edits,
        )

    def edited(self, row: Floats) -> Floats:
        """A copy of `row` with penalties, bias and the minimum length applied, in vLLM's order."""
        row = row.copy()
        if len(self.bias_ids):
            np.add.at(row, self.bias_ids, self.bias)
        if self.produced < self.params.min_tokens:
            row[self.end_ids] = -np.inf
        if self.counts is not None:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # seen by the caller as not finite
                self.counts.penalise(row, self.params)
        return row

    def advance(self, token: int) -> Reason | None:
        """Record the chosen token; the reason when it is the last one."""
        self.produced += 1
        if self.counts is not None:
            self.counts.add(token)
        if token in self.ends:
            return Reason.STOP
        return Reason.LENGTH if self.produced >= self.max_tokens else None


@dataclass(slots=True)
class _Counts:
    """How often each token that occurred was *produced*, as growing arrays; prompt tokens count 0."""

    ids: Ids
    times: Floats
    used: int
    slots: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of_prompt(cls, prompt: ReadOnlySequence[int]) -> _Counts:
        ids = np.unique(np.asarray(prompt, np.int64))
        slots = {token: slot for slot, token in enumerate(ids.tolist())}
        return cls(ids, np.zeros(len(ids), np.float32), len(ids), slots)

    def add(self, token: int) -> None:
        slot = self.slots.get(token)
        if slot is None:
            if self.used == len(self.ids):
                room = max(64, self.used)
                self.ids = np.concatenate([self.ids, np.zeros(room, np.int64)])
                self.times = np.concatenate([self.times, np.zeros(room, np.float32)])
            slot = self.slots[token] = self.used
            self.ids[slot] = token
            self.used += 1
        self.times[slot] += 1.0

    def penalise(self, row: Floats, params: SamplingParams) -> None:
        """Change `row` in place: repetition over prompt and output, frequency and presence over the output."""
        ids, times = self.ids[: self.used], self.times[: self.used]
        values = row[ids]
        if params.repetition_penalty != 1.0:
            repetition = np.float32(params.repetition_penalty)
            values = np.where(values > 0, values / repetition, values * repetition)
        values = values - np.float32(params.frequency_penalty) * times
        values -= np.float32(params.presence_penalty) * (times > 0)
        row[ids] = values
