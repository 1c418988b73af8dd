"""Runs steps on a pretended model: costs come from a formula, tokens from what the KV blocks really hold.

Every slot of every block stores a hash chained over the tokens before it, read back through the row's own block
table. So a token is a pure function of the sequence's true history *as long as the scheduler is right*: a lost
block, a wrong position or another sequence's block changes what comes out. That makes this executor a truth machine
for scheduling laws (chunking, prefix sharing and preemption never change tokens) as well as a product: it lets the
server run with no model, at a chosen speed.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from headway.core.errors import ConfigError, EngineFailed
from headway.core.request import Reason
from headway.core.step import Begin, Outcome, Row, RowResult, Step, TokenLogprob
from headway.executors import simulated_text
from headway.executors.executor import ExecutorInfo

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
_OTHER_ODD = 0xD6E8FEB86659FD93
_ROOT = 0x243F6A8885A308D3  # the hash before position 0


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step takes, in ns. The defaults resemble SmolLM2-135M in bf16 on two AVX-512 cores."""

    step_ns: int = 9_000_000
    prefill_token_ns: int = 480_000
    decode_sequence_ns: int = 680_000
    context_token_ns: int = 1_000  # per KV token that decode reads
    prefill_attention_ns: int = 280  # per prefill token and context token before it

    def of(self, step: Step) -> int:
        """Linear in the counts of `step`; padding costs what prefill costs."""
        attention = 0
        if step.prefill_tokens:
            for row in step.rows:
                fed = len(row.tokens)
                if fed > 1:
                    attention += fed * row.start + fed * fed // 2
        return (
            self.step_ns
            + self.prefill_token_ns * (step.prefill_tokens + step.pad_tokens)
            + self.decode_sequence_ns * step.decode_tokens
            + self.context_token_ns * step.context_tokens
            + self.prefill_attention_ns * attention
        )


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """`clock` "sleep" makes a step last as long as it costs, "virtual" only reports it.

    `audit` checks the whole context of every row instead of its last slot, and raises `EngineFailed` that names the
    first wrong position: for tests of schedulers, several times slower.
    """

    cost: StepCost = field(default_factory=StepCost)
    clock: Literal["sleep", "virtual"] = "sleep"
    block_size: int = 32
    num_blocks: int = 2_048
    chunk_multiple_tokens: int = 1
    max_model_len: int = 32_768
    kv_bytes_per_token: int = 23_040
    vocab_size: int = simulated_text.VOCAB_SIZE
    eos_token_id: int = simulated_text.EOS
    first_token_id: int = simulated_text.FIRST_WORD  # outputs are drawn from here up
    mean_output_tokens: float = 64.0  # outputs end by themselves after this many, geometrically distributed
    audit: bool = False


class SimulatedExecutor:
    """An `Executor` without a model. Sampling parameters other than `seed`, lengths and stops have no effect."""

    def __init__(self, config: SimulatedConfig | None = None) -> None:
        self._config = config = config or SimulatedConfig()
        if min(config.block_size, config.num_blocks, config.chunk_multiple_tokens) < 1:
            raise ConfigError("block_size, num_blocks and chunk_multiple_tokens are at least 1")
        if not 0 <= config.first_token_id < config.vocab_size:
            raise ConfigError(
                f"first_token_id is {config.first_token_id}, outside the vocabulary of {config.vocab_size}"
            )
        if config.mean_output_tokens < 1.0:
            raise ConfigError(f"mean_output_tokens is {config.mean_output_tokens}; an output has at least one token")
        slots = config.num_blocks * config.block_size
        self._hashes = array("Q", bytes(8 * slots))  # by block and offset: the chain up to the token stored there
        self._tokens = array("q", bytes(8 * slots))
        self._lives: dict[int, _Life] = {}
        self._end_below = int(2.0**32 / config.mean_output_tokens)
        self._closed = False
        self._info = ExecutorInfo(
            name="simulated",
            block_size=config.block_size,
            num_blocks=config.num_blocks,
            chunk_multiple_tokens=config.chunk_multiple_tokens,
            kv_bytes_per_token=config.kv_bytes_per_token,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            precision="none",
            kv_cache_dtype="none",
            instruction_set="",
            threads=1,
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def run(self, step: Step) -> Outcome:
        started = time.perf_counter()
        if self._closed:
            raise EngineFailed("the executor is closed")
        self._register(step)
        if self._config.audit:
            self._audit(step)
        # All reads come before all writes: a row cannot use what another row computes in the same step.
        befores = [self._read(row) for row in step.rows]
        results = []
        for row, before in zip(step.rows, befores, strict=True):
            after = self._write(row, before)
            if row.samples:
                results.append(self._sample(row, after))
        seconds = self._config.cost.of(step) / 1e9 if step.rows or step.pad_tokens else 0.0
        if self._config.clock == "sleep":
            time.sleep(max(0.0, started + seconds - time.perf_counter()))
        return Outcome(step.id, results, seconds)

    def close(self) -> None:
        self._closed = True
        self._lives.clear()

    def _register(self, step: Step) -> None:
        for seq in step.dropped:
            self._lives.pop(seq, None)
        eos = self._config.eos_token_id
        for row in step.rows:
            if row.begin is not None:
                if row.seq in self._lives:
                    raise EngineFailed(f"sequence {row.seq} began twice; a handle is used once")
                self._lives[row.seq] = _Life.of(row.begin, eos)

    def _read(self, row: Row) -> int:
        """The hash stored at the position before the row's first; the table is checked for the row's whole length."""
        size, start, blocks = self._config.block_size, row.start, row.blocks
        end = start + len(row.tokens)
        if end > len(blocks) * size or end == start:
            raise EngineFailed(
                f"sequence {row.seq}: {len(row.tokens)} tokens from position {start} do not fit {len(blocks)} blocks"
            )
        if start == 0:
            return _ROOT
        block, offset = divmod(start - 1, size)
        try:
            return self._hashes[blocks[block] * size + offset]
        except IndexError:
            raise self._outside(row) from None

    def _write(self, row: Row, chain: int) -> int:
        size, position, blocks = self._config.block_size, row.start, row.blocks
        hashes, stored = self._hashes, self._tokens
        try:
            for token in row.tokens:
                chain = ((chain ^ token) * _ODD + _OTHER_ODD) & _MASK
                chain ^= chain >> 29
                slot = blocks[position // size] * size + position % size
                hashes[slot] = chain
                stored[slot] = token
                position += 1
        except IndexError:
            raise self._outside(row) from None
        return chain

    def _outside(self, row: Row) -> EngineFailed:
        return EngineFailed(
            f"sequence {row.seq}: its table {list(row.blocks)} leaves the {self._config.num_blocks} blocks that exist"
        )

    def _sample(self, row: Row, chain: int) -> RowResult:
        life = self._lives.get(row.seq)
        if life is None:
            raise EngineFailed(f"sequence {row.seq} samples, but it never began on this executor")
        if row.start + len(row.tokens) != life.next_position:
            raise EngineFailed(
                f"sequence {row.seq} samples position {row.start + len(row.tokens)}, not {life.next_position}"
            )
        mixed = ((chain ^ life.salt) * _OTHER_ODD) & _MASK
        mixed ^= mixed >> 32
        token = self._token(mixed, life)
        life.next_position += 1
        ended = None
        if token in life.ends:
            ended = Reason.STOP
        elif life.next_position >= life.last_position:
            ended = Reason.LENGTH
        logprobs = None if life.logprobs is None else [self._logprob(token, mixed, life.logprobs)]
        return RowResult(row.seq, [token], ended, logprobs)

    def _token(self, mixed: int, life: _Life) -> int:
        config = self._config
        may_end = life.next_position >= life.first_end_position
        if mixed >> 32 < self._end_below and may_end and not life.ignore_eos:
            return config.eos_token_id
        choices = config.vocab_size - config.first_token_id
        token = (mixed & 0xFFFFFFFF) % choices + config.first_token_id
        if not may_end:
            for _ in range(choices):
                if token not in life.ends:
                    break
                token = (token + 1 - config.first_token_id) % choices + config.first_token_id
        return token

    def _logprob(self, token: int, mixed: int, rivals: int) -> TokenLogprob:
        """A distribution that halves from rank to rank, the chosen token first."""
        halves = [-0.6931471805599453 * rank for rank in range(1, rivals + 2)]
        others = [(mixed + each) % self._config.vocab_size for each in range(rivals + 1)]
        ranked = [token, *(each for each in others if each != token)][:rivals]
        return TokenLogprob(token, halves[0], tuple(zip(ranked, halves, strict=False)))

    def _audit(self, step: Step) -> None:
        """Check that every position before each row's start holds the chain of what is before it."""
        size = self._config.block_size
        hashes = np.frombuffer(self._hashes, np.uint64).reshape(-1, size)
        tokens = np.frombuffer(self._tokens, np.uint64).reshape(-1, size)
        for row in step.rows:
            if row.start == 0:
                continue
            table = np.asarray(row.blocks[: -(-row.start // size)], np.int64)
            held = hashes[table].reshape(-1)[: row.start]
            before = np.concatenate([np.array([_ROOT], np.uint64), held[:-1]])
            chain = (before ^ tokens[table].reshape(-1)[: row.start]) * np.uint64(_ODD) + np.uint64(_OTHER_ODD)
            wrong = np.flatnonzero(held != chain ^ (chain >> np.uint64(29)))
            if len(wrong):
                position = int(wrong[0])
                raise EngineFailed(
                    f"step {step.id}, sequence {row.seq}: position {position}, in block {int(table[position // size])} "
                    f"of table {table.tolist()}, does not hold the continuation of the positions before it"
                )


@dataclass(slots=True)
class _Life:
    """What is known of a sequence from its `Begin` until it is dropped."""

    next_position: int  # of the token it samples next
    first_end_position: int  # before it, min_tokens forbids ending
    last_position: int  # `max_tokens` are produced
    ends: frozenset[int]
    ignore_eos: bool
    salt: int  # 0 when greedy: the seed must not matter
    logprobs: int | None

    @classmethod
    def of(cls, begin: Begin, eos_token_id: int) -> _Life:
        params, prompt_tokens = begin.params, len(begin.prompt)
        return cls(
            next_position=prompt_tokens,
            first_end_position=prompt_tokens + params.min_tokens,
            last_position=prompt_tokens + begin.max_tokens,
            ends=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {eos_token_id}),
            ignore_eos=params.ignore_eos,
            salt=0 if params.temperature == 0 else ((params.seed & _MASK) * _ODD + 1) & _MASK,
            logprobs=params.logprobs,
        )
