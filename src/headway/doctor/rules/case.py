"""`Case`: facts, and what every rule wants of them: the split of TTFT, the model of steps, and who waits for what.

A queue is waited in for a reason that can be seen at each sample: KV that is full, slots that are taken, or else the
token budget of steps. Each second that somebody waits is put down to one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.core.pace import StepTime
from headway.doctor.facts import Bools, Facts, Part
from headway.doctor.split import Split, split
from headway.doctor.spread import Floats, Spread
from headway.doctor.step_model import context_tokens, decode_step_s, prefill_share, step_time

# A promise is judged by the p99 where that is more than the worst few, else by the p95.
ENOUGH_FOR_P99 = 500
# A service whose requests lose less than a third of their TTFT to others is not slow because of them.
WASTE = 1 / 3
# KV so full has no room for another prompt; engines keep a few blocks back (vLLM's watermark is 1 %).
KV_FULL = 0.95
# Slots are taken when so many of them are: at a sample between two steps some have just been given back.
SLOTS_FULL = 0.93
# Where the limit is not told, the running sequences must stand at their highest so much of the time that is waited.
FLAT = 0.7
FULL_STEPS = 0.5  # of the engine's time go to prompts, where these are what others wait for
LANE = 0.4  # of the slots: the least that a lane has by itself is a half
LEAST_QUEUED = 5  # samples; of fewer the highest is not a limit
BUDGET_FULL = 0.9  # of a step's token budget, where half of the samples that somebody waits in have as much


@dataclass(frozen=True, slots=True)
class Waited:
    """Of all the time requests waited: the share that passed while KV was full, slots were taken, or neither."""

    request_s: float
    kv: float
    slots: float
    budget: float
    queued_share: float  # of the samples: somebody waited
    limit: float | None  # of slots: told or seen
    limit_told: bool


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What rules read."""

    facts: Facts
    split: Split
    model: StepTime | None
    waited: Waited | None
    prefill_share: float | None  # of the engine's time

    @property
    def service(self) -> Part:
        return self.facts.service

    @property
    def ttft(self) -> Spread | None:
        return self.service.spread("ttft_s") or self.facts.client.ttft_s

    @property
    def ttft_tail(self) -> tuple[str, float] | None:
        """The percentile that promises are judged by, and its value."""
        return tail(self.ttft)

    @property
    def late(self) -> bool:
        """Is TTFT later than is accepted, and not by the prompts' own work?"""
        promise_s, found = self.facts.promise.ttft_s, self.ttft_tail
        queue_s = self.split.queue_s or 0.0
        if found is None:
            return queue_s > promise_s
        avoidable = queue_s + (self.split.interference_s or 0.0)
        return found[1] > promise_s and self.split.share(avoidable) >= WASTE

    @property
    def itl(self) -> Spread | None:
        return self.service.spread("itl_s") or self.facts.client.itl_s

    @property
    def stutters(self) -> bool:
        """Do more than 1 in 100 gaps, or half of them, exceed what is accepted? A usual answer has a hundred."""
        itl, promise = self.itl, self.facts.promise
        return itl is not None and (itl.share_above(promise.stall_s) >= 0.01 or itl.quantile(0.5) > promise.itl_s)

    @property
    def running(self) -> float:
        """On average; where it is not told, by Little's law: as many as get so many tokens a second, one a gap."""
        told = self.service.mean("running")
        if told is None:
            rate, itl = self.service.rate("generation_tokens"), self.itl
            told = rate * itl.mean if rate is not None and itl is not None else 0.0
        return told

    def decode_s(self, sequences: float) -> float | None:
        """A step that only decodes so many sequences, as they are here."""
        if self.model is None:
            return None
        return decode_step_s(self.model, sequences, context_tokens(self.service))

    @property
    def prompts(self) -> Spread | None:
        """How long prompts are: of requests that ended; where none has, at each sample the mean of those that wait.

        Such means hide a skew rather than make one up.
        """
        ended, waiting = self.service.spread("prompt_tokens"), self.service.gauge("waiting")
        if ended is not None or "waiting_tokens" not in self.service.gauges:
            return ended
        return Spread.of(self.service.gauge("waiting_tokens") / np.maximum(waiting, 1.0), np.nan_to_num(waiting))

    @property
    def skewed_prompts(self) -> bool | None:
        """Are a few prompts most of the prompt work? None: lengths are not told."""
        return self.prompts.tail_part >= 0.5 if self.prompts is not None else None

    @property
    def window(self) -> str:
        return f"over {self.service.window_s:.0f} s" if self.service.window_s else "over the run"


def study(facts: Facts) -> Case:
    model = step_time(facts)
    share = prefill_share(facts, model) if model is not None else None
    return Case(facts, split(facts), model, _waited(facts, share), share)


def tail(spread: Spread | None) -> tuple[str, float] | None:
    """p99 where there are enough samples, else p95; None without any."""
    if spread is None:
        return None
    return ("p99", spread.quantile(0.99)) if spread.count >= ENOUGH_FOR_P99 else ("p95", spread.quantile(0.95))


def _waited(facts: Facts, prefill: float | None) -> Waited | None:
    """None where it is not told who waits. `prefill`: the prompts' share of the engine's time."""
    service = facts.service
    if "waiting" not in service.gauges or len(service.times_s) < 2:
        return None
    waiting = service.gauge("waiting") + np.nan_to_num(service.gauge("preempted"))
    known = np.isfinite(waiting)
    waiting = np.where(known, waiting, 0.0)
    total = float(waiting.sum())
    interval_s = service.window_s / (len(service.times_s) - 1)
    full, limit, told = _kv_full(facts, waiting), *_limit(facts, waiting)
    running = service.gauge("running")
    if facts.settings.kv_full == "wait" and not full.any() and prefill is not None and prefill < FULL_STEPS:
        # KV is set aside for the worst case, which a log does not tell: it holds up what neither slots nor prompts do.
        full = (waiting > 0) & ~(running >= SLOTS_FULL * (limit or np.inf))
    taken = ~full & (running >= SLOTS_FULL * limit) if limit is not None else np.zeros(len(waiting), np.bool_)
    kv, slots = (float(waiting[some].sum()) / max(total, 1e-9) for some in (full, taken))
    queued = float((waiting[known] > 0).mean()) if known.any() else 0.0
    return Waited(total * interval_s, kv, slots, 1.0 - kv - slots if total else 0.0, queued, limit, told)


def _kv_full(facts: Facts, waiting: Floats) -> Bools:
    """At which samples there was no room in KV for those who waited."""
    service = facts.service
    ratio = service.gauge("kv_ratio")
    full: Bools = (ratio >= KV_FULL) | (np.nan_to_num(service.gauge("preempted")) > 0)
    need = _head_tokens(service, waiting)
    capacity = facts.settings.kv_tokens
    if capacity and need is not None:
        full |= (1.0 - ratio) * capacity < need
    return full


def _head_tokens(service: Part, waiting: Floats) -> Floats | None:
    """How long the prompts are that wait: as told, else as prompts are on average."""
    if "waiting_tokens" in service.gauges:
        return np.where(waiting > 0, service.gauge("waiting_tokens") / np.maximum(waiting, 1.0), 0.0)
    prompts = service.spread("prompt_tokens")
    mean = prompts.mean if prompts is not None else service.ratio("prompt_tokens", "ended")
    return np.full(len(waiting), mean) if mean is not None else None


def _limit(facts: Facts, waiting: Floats) -> tuple[float | None, bool]:
    """The most sequences that run: as told, else the height at which they stand while others wait.

    A lane's own limit shows as a height below the one that is told. So does the balance of those who start and end
    where steps are full.
    """
    running = facts.service.gauge("running")
    told = facts.settings.max_num_seqs
    queued = (waiting > 0) & np.isfinite(running)
    if queued.sum() < LEAST_QUEUED:
        return told, told is not None
    top = float(np.nanmax(running[queued]))
    flat = float(waiting[queued & (running >= SLOTS_FULL * top)].sum()) >= FLAT * float(waiting[queued].sum())
    if told is not None and (top >= SLOTS_FULL * told or _steps_full(facts, queued)):
        return told, True
    if not flat or top < 1 or (told is not None and top < max(4.0, LANE * told)):
        return told, told is not None
    return top, False


def _steps_full(facts: Facts, queued: Bools) -> bool:
    """Do steps carry all the tokens they may, while somebody waits? Unknown: no."""
    budget = facts.settings.max_num_batched_tokens
    tokens = facts.service.gauge("step_tokens")[queued]
    return budget is not None and float((tokens >= BUDGET_FULL * budget).mean()) >= 0.5
