"""Runs steps on a pretended model: costs come from a formula, tokens from what the KV blocks really hold.

A token is a pure function of the sequence's true history, read back from the blocks of the row's own table
(`HashedKv`), *as long as the scheduler is right*: a lost block, a wrong position or another sequence's block changes
what comes out. That makes this executor a truth machine for scheduling laws (chunking, prefix sharing and preemption
never change tokens) as well as a product: it lets the server run with no model, at a chosen speed. A simulation, which
only counts, switches the memory off (`keeps_kv`) and says itself how long outputs are (`end_after`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from headway.core.errors import ConfigError, EngineFailed
from headway.core.pace import StepTime
from headway.core.request import Reason
from headway.core.scheduler.step import Begin, Outcome, Row, RowResult, Step, TokenLogprob
from headway.executors import simulated_text
from headway.executors.executor import ExecutorInfo
from headway.executors.simulated_memory import MASK, ODD, OTHER_ODD, HashedKv

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step takes, in whole ns, exactly. The defaults resemble SmolLM2-135M in bf16 on two AVX-512 cores.

    Only attention, which no decode step has, may cost a part of a ns (0.4 on a fast GPU); it is rounded down by step.
    """

    step_ns: int = 9_000_000
    prefill_token_ns: int = 480_000
    decode_sequence_ns: int = 680_000
    context_token_ns: int = 1_000  # per KV token that decode reads
    prefill_attention_ns: float = 280  # per prefill token and context token before it
    prefill_step_ns: int = 0  # more, of a step with any prefill: GPUs replay a captured graph for decode alone

    def of(self, step: Step) -> int:
        """One step of this shape, whatever its `repeat`. Padding costs what prefill costs."""
        return (
            self.step_ns
            + self.prefill_token_ns * (step.prefill_tokens + step.pad_tokens)
            + self.decode_sequence_ns * step.decode_tokens
            + self.context_token_ns * step.context_tokens
            + int(self.prefill_attention_ns * step.attention_tokens)
            + (self.prefill_step_ns if step.prefill_tokens or step.pad_tokens else 0)
        )

    def of_repeat(self, step: Step, steps: int) -> int:
        """The sum of `steps` steps that begin with `step`: each row's context grows by one from one to the next."""
        return steps * self.of(step) + self._growth(step.decode_tokens, steps)

    def of_decode(self, sequences: int, context_tokens: int, steps: int) -> int:
        """The same for decode alone, from a context of `context_tokens` over all sequences."""
        first = self.step_ns + self.decode_sequence_ns * sequences + self.context_token_ns * context_tokens
        return steps * first + self._growth(sequences, steps)

    def _growth(self, sequences: int, steps: int) -> int:
        return self.context_token_ns * sequences * (steps * (steps - 1) // 2)

    @property
    def step_time(self) -> StepTime:
        """The same formula as the core's model knows it."""
        return StepTime(
            float(self.step_ns),
            float(self.prefill_token_ns),
            float(self.decode_sequence_ns),
            float(self.context_token_ns),
            float(self.prefill_attention_ns),
        )


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """`clock` "sleep" makes a step last as long as it costs, "virtual" only reports it.

    `audit` checks the whole context of every row instead of its last slot, and raises `EngineFailed` that names the
    first wrong position: for tests of schedulers, several times slower.

    Without `keeps_kv` blocks hold nothing and every token is the same; outputs end at `max_tokens` or where `end_after`
    says. Several times faster, and a repeated step costs no more than a single one.
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
    keeps_kv: bool = True
    audit: bool = False

    def check(self) -> None:
        """Raises `ConfigError`."""
        if min(self.block_size, self.num_blocks, self.chunk_multiple_tokens) < 1:
            raise ConfigError("block_size, num_blocks and chunk_multiple_tokens are at least 1")
        if not 0 <= self.first_token_id < self.vocab_size:
            raise ConfigError(f"first_token_id is {self.first_token_id}, outside the vocabulary of {self.vocab_size}")
        if self.mean_output_tokens < 1.0:
            raise ConfigError(f"mean_output_tokens is {self.mean_output_tokens}; an output has at least one token")
        if self.audit and not self.keeps_kv:
            raise ConfigError("audit checks what KV blocks hold; without keeps_kv they hold nothing")


class SimulatedExecutor:
    """An `Executor` without a model. Sampling parameters other than `seed`, lengths and stops have no effect."""

    def __init__(self, config: SimulatedConfig | None = None) -> None:
        self._config = config = config or SimulatedConfig()
        config.check()
        self._kv = HashedKv(config.num_blocks, config.block_size) if config.keeps_kv else None
        self._lives: dict[int, _Life] = {}
        self._lengths: dict[int, int] = {}  # of outputs, for sequences that have not begun
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
            step_time=config.cost.step_time,
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def end_after(self, seq: int, output_tokens: int) -> None:
        """The sequence that will begin as `seq` ends by itself after so many tokens, not sooner and not later.

        For whoever drives a simulation. It is said here and not in the request, where a policy could see it.
        """
        self._lengths[seq] = output_tokens

    def run(self, step: Step) -> Outcome:
        started = time.perf_counter()
        if self._closed:
            raise EngineFailed("the executor is closed")
        self._register(step)
        sampling = self._sampling(step)
        results = self._count(sampling, step.repeat) if self._kv is None else self._compute(step, self._kv)
        seconds = 0.0
        if step.rows or step.pad_tokens:
            steps = len(results[0].tokens) if results else 1
            seconds = self._config.cost.of_repeat(step, steps) / 1e9
        if self._config.clock == "sleep":
            time.sleep(max(0.0, started + seconds - time.perf_counter()))
        return Outcome(step.id, results, seconds)

    def close(self) -> None:
        self._closed = True
        self._lives.clear()

    def _register(self, step: Step) -> None:
        for seq in step.dropped:
            self._lives.pop(seq, None)
            self._lengths.pop(seq, None)
        for row in step.rows:
            if (begin := row.begin) is not None:
                if row.seq in self._lives:
                    raise EngineFailed(f"sequence {row.seq} began twice; a handle is used once")
                length = self._lengths.pop(row.seq, 0)
                self._lives[row.seq] = _Life.of(row.seq, begin, self._config.eos_token_id, length)

    def _sampling(self, step: Step) -> list[_Life]:
        """The lives that sample, in row order. Raises `EngineFailed` for a step that cannot be computed."""
        size, lives = self._config.block_size, self._lives
        further = step.repeat - 1
        if further and (step.prefill_tokens or len(step.rows) != step.decode_tokens):
            raise EngineFailed(f"step {step.id} repeats prefill; only a step of decode rows can be repeated")
        sampling = []
        for row in step.rows:
            fed = len(row.tokens)
            end = row.start + fed
            if end + further > len(row.blocks) * size or not fed:
                raise EngineFailed(
                    f"sequence {row.seq}: {fed + further} tokens from position {row.start} do not fit "
                    f"{len(row.blocks)} blocks"
                )
            if row.samples:
                life = lives.get(row.seq)
                if life is None:
                    raise EngineFailed(f"sequence {row.seq} samples, but it never began on this executor")
                if end != life.next_position:
                    raise EngineFailed(f"sequence {row.seq} samples position {end}, not {life.next_position}")
                sampling.append(life)
        return sampling

    # -- without memory: counting --------------------------------------------------------------------------------

    def _count(self, sampling: list[_Life], steps: int) -> list[RowResult]:
        if steps > 1:
            steps = min(steps, *(life.end_position - life.next_position for life in sampling))
        word = self._config.first_token_id
        results = []
        for life in sampling:
            life.next_position += steps
            result = RowResult(life.seq, [word] * steps)
            if life.next_position == life.end_position:
                result.ended = Reason.LENGTH
                if life.next_position == life.stop_position:
                    result.tokens[-1], result.ended = self._config.eos_token_id, Reason.STOP
            if life.logprobs is not None:
                result.logprobs = [self._logprob(token, 0, life.logprobs) for token in result.tokens]
            results.append(result)
        return results

    # -- with memory: computing ----------------------------------------------------------------------------------

    def _compute(self, step: Step, kv: HashedKv) -> list[RowResult]:
        if self._config.audit:
            kv.audit(step)
        # All reads come before all writes: a row cannot use what another row computes in the same step.
        befores = [kv.before(row) for row in step.rows]
        chains = [kv.write(row, row.start, row.tokens, before) for row, before in zip(step.rows, befores, strict=True)]
        results = [self._sample(row, chain) for row, chain in zip(step.rows, chains, strict=True) if row.samples]
        for further in range(1, step.repeat):
            if any(result.ended for result in results):
                break
            for index, (row, result) in enumerate(zip(step.rows, results, strict=True)):
                chains[index] = kv.write(row, row.start + further, result.tokens[-1:], chains[index])
                again = self._sample(row, chains[index])
                result.tokens += again.tokens
                result.ended = again.ended
                if result.logprobs is not None and again.logprobs is not None:
                    result.logprobs += again.logprobs
        return results

    def _sample(self, row: Row, chain: int) -> RowResult:
        life = self._lives[row.seq]
        mixed = ((chain ^ life.salt) * OTHER_ODD) & MASK
        mixed ^= mixed >> 32
        token = self._token(mixed, life)
        life.next_position += 1
        ended = None
        if token in life.ends or life.next_position == life.stop_position:
            ended = Reason.STOP
        elif life.next_position >= life.end_position:
            ended = Reason.LENGTH
        logprobs = None if life.logprobs is None else [self._logprob(token, mixed, life.logprobs)]
        return RowResult(row.seq, [token], ended, logprobs)

    def _token(self, mixed: int, life: _Life) -> int:
        config = self._config
        if life.next_position + 1 == life.stop_position:
            return config.eos_token_id
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


@dataclass(slots=True)
class _Life:
    """What is known of a sequence from its `Begin` until it is dropped. Positions are those of tokens drawn."""

    seq: int
    next_position: int  # of the token it samples next
    first_end_position: int  # before it, min_tokens forbids ending
    end_position: int  # of the token after its last, at the latest
    stop_position: int  # the same, if it ends by itself there and only there
    ends: frozenset[int]
    ignore_eos: bool
    salt: int  # 0 when greedy: the seed must not matter
    logprobs: int | None

    @classmethod
    def of(cls, seq: int, begin: Begin, eos_token_id: int, output_tokens: int) -> _Life:
        """`output_tokens` is where it ends by itself, 0 when nobody said."""
        params, prompt_tokens = begin.params, len(begin.prompt)
        last = prompt_tokens + begin.max_tokens
        stop = prompt_tokens + output_tokens if output_tokens else _NEVER
        return cls(
            seq=seq,
            next_position=prompt_tokens,
            first_end_position=stop if output_tokens else prompt_tokens + params.min_tokens,
            end_position=min(last, stop),
            stop_position=stop,
            ends=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {eos_token_id}),
            ignore_eos=params.ignore_eos,
            salt=0 if params.temperature == 0 else ((params.seed & MASK) * ODD + 1) & MASK,
            logprobs=params.logprobs,
        )
