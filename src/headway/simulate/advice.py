"""`advise`: from what one engine did to what to change: `max_num_seqs`, `max_num_batched_tokens`, or more replicas.

A pure function. The facts may be observed or simulated: `plan` and `tune` ask the same one. (The doctor has rules of
its own, for servers that tell less than this asks; how much fits into a step both take from `slots.py`.) A fact that
is not known (None) is never guessed; the rules that need it stay silent. Every finding carries its numbers.

| what is seen | what is said |
|---|---|
| requests queue, every slot runs, KV and compute have room | raise `max_num_seqs` |
| requests queue, and KV or compute has no room | more replicas, or shorter requests |
| KV is nearly full, sequences are preempted, or memory ran out | lower `max_num_seqs` |
| decode alone is slower than promised, or the tail worsens at a full batch | lower `max_num_seqs` |
| TTFT or the queue suffers, slots are free, steps use the whole budget, ITL has room | raise `max_num_batched_tokens` |
| decode alone keeps the promised ITL, steps with prompts in them break it | lower `max_num_batched_tokens` |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headway.simulate.slots import ITL_AIM, LEAST_BUDGET_TOKENS, Steps, seqs_by_kv

QUEUES = 0.5  # requests that wait, on average over time: from here on they queue
FULL = 0.95  # of the slots, or of the budget
KV_ROOM, KV_HIGH = 0.80, 0.95  # of the KV cache
PREEMPTED = 0.01  # of requests: from here on preemption costs what it should save
WORSE = 1.25  # times what it was before, or what the model says

Setting = Literal["max_num_seqs", "max_num_batched_tokens", "replicas", "fit"]
Change = Literal["raise", "lower", "repeat"]


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency at the percentile that the promise is about, s. `before_s`: in an earlier stretch, to see a trend."""

    value_s: float
    promise_s: float | None = None
    before_s: float | None = None

    @property
    def broken(self) -> bool:
        return self.promise_s is not None and self.value_s > self.promise_s

    @property
    def worse(self) -> bool:
        return self.before_s is not None and self.value_s > WORSE * self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one engine did over a stretch of time. None: not known."""

    max_num_seqs: int
    max_num_batched_tokens: int
    running: float | None = None  # sequences in its steps, at the peak: the p95 over time
    waiting: float | None = None  # requests in its queue, the mean over time
    kv_used_ratio: float | None = None  # by sequences that run, at the peak; cached blocks nobody holds are free
    preemptions: int | None = None
    out_of_memory: int | None = None
    requests: int | None = None  # that ended meanwhile
    ttft: Latency | None = None
    itl: Latency | None = None
    e2e: Latency | None = None
    full_budget_ratio: float | None = None  # of the steps with prompts in them, those that used the whole budget
    decode_step_s: float | None = None  # the mean step of decode alone
    steps: Steps | None = None  # what the model of steps says

    def decode_s(self, seqs: float) -> float | None:
        """What the model says of a decode step of so many sequences."""
        return self.steps.decode_s(seqs) if self.steps is not None else None

    def mixed_s(self, budget_tokens: int) -> float | None:
        """The same of a step that uses the whole budget: the running sequences decode, prompts take the rest."""
        if self.steps is None or self.running is None:
            return None
        return self.steps.step_s(budget_tokens, self.running)


@dataclass(frozen=True, slots=True)
class Finding:
    """What to change, from what to what (None: the facts do not say), and why, in one sentence with its numbers."""

    setting: Setting
    change: Change
    now: int | None
    to: int | None
    why: str

    def __str__(self) -> str:
        if self.setting == "replicas":
            return f"Add replicas, or shorten requests: {self.why}."
        if self.setting == "fit":
            return f"Fit again: {self.why}."
        told = f" from {self.now:,}" if self.now is not None else ""
        told += f" to {self.to:,}" if self.to is not None else ""
        return f"{self.change.capitalize()} {self.setting}{told}: {self.why}."


def advise(facts: Facts) -> list[Finding]:
    """What the facts say, the most pressing first; empty when they ask for no change."""
    lower = _fewer_seqs(facts)
    found = [lower] if lower is not None else []
    found += filter(None, (_smaller_budget(facts),))
    if lower is None:  # what is too much already is not made more
        found += filter(None, (_more_seqs(facts),))
    if not any(finding.setting == "max_num_batched_tokens" for finding in found):
        found += filter(None, (_larger_budget(facts),))
    if queues(facts) and not any(finding.change == "raise" for finding in found):
        found += filter(None, (_more_replicas(facts),))
    found += _drift(facts)
    return found


def queues(facts: Facts) -> bool:
    """Do requests wait?"""
    return facts.waiting is not None and facts.waiting >= QUEUES


def _slots_full(facts: Facts) -> bool:
    return facts.running is not None and facts.running >= FULL * facts.max_num_seqs


def _more_seqs(facts: Facts) -> Finding | None:
    kv, now = facts.kv_used_ratio, facts.max_num_seqs
    if not (queues(facts) and _slots_full(facts)) or kv is None or kv >= KV_ROOM:
        return None
    to = int(min(2 * now, seqs_by_kv(kv / now), facts.max_num_batched_tokens))
    to = min(to, _seqs_within_itl(facts, to))
    if to < 1.05 * now or (facts.steps is not None and not facts.steps.pays(now, to)):
        return None
    why = f"{_wait(facts)} while all {now:,} slots run, with KV {kv:.0%} used"
    return Finding("max_num_seqs", "raise", now, to, why + _step_words(facts, to))


def _seqs_within_itl(facts: Facts, most: int) -> int:
    """How many sequences, up to `most`, decode within the promise; as many as now where only the present is known."""
    itl = facts.itl
    if itl is None or itl.promise_s is None:
        return most
    if facts.steps is None:
        return most if itl.value_s <= itl.promise_s / 2 else facts.max_num_seqs
    if itl.broken:
        return 0  # by whatever: it has no room
    return facts.steps.seqs_within(most, ITL_AIM * itl.promise_s)


def _fewer_seqs(facts: Facts) -> Finding | None:
    now, running, kv = facts.max_num_seqs, facts.running, facts.kv_used_ratio
    reasons: list[str] = []
    to: list[int] = []
    if facts.out_of_memory:
        reasons.append(f"memory ran out {facts.out_of_memory:,} times")
    if facts.preemptions and facts.requests and facts.preemptions >= PREEMPTED * facts.requests:
        reasons.append(f"{facts.preemptions:,} preemptions for {facts.requests:,} requests")
    if reasons and kv is not None:
        reasons.append(f"KV {kv:.0%} used")
    suffers = next((name for name, one in _latencies(facts) if one.broken or one.worse), None)
    if not reasons and kv is not None and kv >= KV_HIGH and suffers is not None:
        reasons += [f"KV is {kv:.0%} used", _latency_words(facts, suffers)]
    if reasons and running and kv:
        to.append(int(seqs_by_kv(kv / min(running, now))))
    itl = facts.itl
    if itl is not None and itl.promise_s is not None and itl.broken and running:
        decode_s = facts.decode_step_s or facts.decode_s(running)
        if decode_s is not None and decode_s > itl.promise_s:
            promise = f"the promised {_duration(itl.promise_s)}"
            reasons.append(
                f"a decode step of {running:,.0f} sequences takes {_duration(decode_s)} alone, over {promise}"
            )
            to += [facts.steps.seqs_within(int(running), ITL_AIM * itl.promise_s)] if facts.steps is not None else []
    if not reasons and suffers is not None and _slots_full(facts) and _is_worse(facts, suffers):
        reasons.append(f"{_latency_words(facts, suffers)}, with all {now:,} slots running")
    if not reasons:
        return None
    fewer = min((seqs for seqs in to if 1 <= seqs < now), default=None)
    return Finding("max_num_seqs", "lower", now, fewer, ", ".join(reasons))


def _smaller_budget(facts: Facts) -> Finding | None:
    """The promise holds for decode alone: what breaks it are the prompts that share its steps."""
    itl, now = facts.itl, facts.max_num_batched_tokens
    if itl is None or itl.promise_s is None or not itl.broken or facts.running is None:
        return None
    promise_s = itl.promise_s
    decode_s = facts.decode_step_s or facts.decode_s(facts.running)
    mixed_s = facts.mixed_s(now)
    if decode_s is None or decode_s > promise_s or (mixed_s is not None and mixed_s <= promise_s):
        return None
    why = f"ITL is {_duration(itl.value_s)} of the promised {_duration(promise_s)}, of which decode alone takes "
    why += _duration(decode_s)
    to: int | None = None
    if facts.steps is not None and mixed_s is not None:
        why += f" and a step with {now:,} tokens {_duration(mixed_s)}"
        fits = facts.steps.budget_within(now, facts.running, ITL_AIM * promise_s)
        to = fits if fits >= max(LEAST_BUDGET_TOKENS, facts.max_num_seqs) else None
    return Finding("max_num_batched_tokens", "lower", now, to, why)


def _larger_budget(facts: Facts) -> Finding | None:
    ttft, now = facts.ttft, facts.max_num_batched_tokens
    full = facts.full_budget_ratio
    late = ttft is not None and (ttft.broken or ttft.worse)
    if not (late or queues(facts)) or _slots_full(facts) or full is None or full < 0.5:
        return None
    if facts.kv_used_ratio is not None and facts.kv_used_ratio >= KV_HIGH:
        return None
    to, itl = 2 * now, facts.itl
    if itl is not None and itl.promise_s is not None:
        if itl.broken or facts.steps is None or facts.running is None:
            return None
        to = facts.steps.budget_within(to, facts.running, ITL_AIM * itl.promise_s)
        if to < 1.05 * now:
            return None
    why = _latency_words(facts, "TTFT") if late else _wait(facts)
    why += f", while {full:.0%} of the steps with prompts use the whole budget and slots are free"
    mixed_s = facts.mixed_s(to)
    if mixed_s is not None and itl is not None and itl.promise_s is not None:
        why += f"; a step of {to:,} tokens takes {_duration(mixed_s)} of the promised {_duration(itl.promise_s)}"
    return Finding("max_num_batched_tokens", "raise", now, to, why)


def _more_replicas(facts: Facts) -> Finding | None:
    parts = [_wait(facts)]
    if facts.kv_used_ratio is not None and facts.kv_used_ratio >= KV_ROOM:
        parts.append(f"KV is {facts.kv_used_ratio:.0%} used")
    if _slots_full(facts):
        parts.append(f"all {facts.max_num_seqs:,} slots run")
    itl = facts.itl
    if itl is not None and itl.promise_s is not None:
        parts.append(f"ITL is {_duration(itl.value_s)} of the promised {_duration(itl.promise_s)}")
    elif facts.steps is not None and not facts.steps.pays(facts.max_num_seqs, 2 * facts.max_num_seqs):
        parts.append("a larger batch would bring hardly more tokens per second")
    return Finding("replicas", "raise", None, None, ", ".join(parts)) if len(parts) > 1 else None


def _drift(facts: Facts) -> Iterator[Finding]:
    """Advice from a model that is wrong is wrong."""
    if facts.decode_step_s is None or facts.running is None:
        return
    said_s = facts.decode_s(facts.running)
    if said_s and facts.decode_step_s > WORSE * said_s:
        why = f"a decode step takes {_duration(facts.decode_step_s)}, and the model of steps says {_duration(said_s)}"
        yield Finding("fit", "repeat", None, None, why)


def _latencies(facts: Facts) -> Iterator[tuple[str, Latency]]:
    for name, one in (("TTFT", facts.ttft), ("ITL", facts.itl), ("E2E", facts.e2e)):
        if one is not None:
            yield name, one


def _is_worse(facts: Facts, name: str) -> bool:
    return any(one.worse for known, one in _latencies(facts) if known == name)


def _latency_words(facts: Facts, name: str) -> str:
    one = dict(_latencies(facts))[name]
    if one.broken and one.promise_s is not None:
        return f"{name} is {_duration(one.value_s)}, over the promised {_duration(one.promise_s)}"
    return f"{name} has gone from {_duration(one.before_s or 0.0)} to {_duration(one.value_s)}"


def _wait(facts: Facts) -> str:
    return f"{facts.waiting or 0.0:,.1f} requests wait on average"


def _step_words(facts: Facts, seqs: int) -> str:
    step_s = facts.decode_s(seqs)
    if step_s is None:
        return ""
    itl = facts.itl
    of = f" of the promised {_duration(itl.promise_s)}" if itl is not None and itl.promise_s is not None else ""
    return f"; a decode step of {seqs:,} sequences takes {_duration(step_s)}{of}"


def _duration(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"
