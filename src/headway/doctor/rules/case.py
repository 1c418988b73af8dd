"""`Case`: facts, and what every rule wants of them: the split of TTFT, the model of steps, and who waits for what.

A queue is waited in for a reason that can be seen at each sample: KV that is full, slots that are taken, or else the
token budget of steps. Each second that somebody waits is put down to one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.doctor.facts import Bools, Facts, Part, Promise
from headway.doctor.split import Split, split
from headway.doctor.spread import Floats, Spread
from headway.doctor.step_model import prefill_share, step_time, steps_of
from headway.simulate.slots import Steps

# A promise is judged by the p99 where that is more than the worst few, else by the p95.
ENOUGH_FOR_P99 = 500
# A service whose requests lose less than a third of their TTFT to others is not slow because of them.
WASTE = 1 / 3
LEAST_PART = 0.1  # of TTFT: what delays it by less is not why it is late
MOST_SHOWN = 4  # workers
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


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Who is still inside at the end, and is in no distribution of those who have ended: how many, and for how long
    they waited on average.
    """

    requests: float
    waited_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What rules read."""

    facts: Facts
    split: Split
    steps: Steps | None  # what the model of steps says
    waited: Waited | None
    prefill_share: float | None  # of the engine's time
    prefill_queued: float | None = None  # the same while somebody waits
    unfinished: Unfinished | None = None

    @property
    def service(self) -> Part:
        return self.facts.service

    @property
    def ttft(self) -> Spread | None:
        return self.facts.ttft

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
            return queue_s > promise_s or self.outnumbered
        avoidable = queue_s + (self.split.interference_s or 0.0)
        beyond = found[1] > promise_s or self.late_inside
        return beyond and (self.split.share(avoidable) >= WASTE or self.outnumbered)

    @property
    def late_inside(self) -> bool:
        """Have so many of those who are still inside waited too long that a percentile of all would tell it?"""
        some, ttft, promise_s = self.unfinished, self.ttft, self.facts.promise.ttft_s
        if some is None or ttft is None or some.waited_s <= promise_s:
            return False
        late = some.requests + ttft.share_above(promise_s) * ttft.count
        return late >= (0.01 if ttft.count >= ENOUGH_FOR_P99 else 0.05) * (some.requests + ttft.count)

    @property
    def outnumbered(self) -> bool:
        """How long a request waits is not told, and no fewer wait than run: each lets a whole answer go before it."""
        waiting = self.service.mean("waiting") or 0.0
        return self.split.queue_s is None and waiting >= max(1.0, self.running)

    @property
    def wait_words(self) -> str:
        """For how long they wait, as far as it is known."""
        queue_s = self.split.queue_s
        return f"for {queue_s:.2f} s each" if queue_s is not None else "for how long is not told"

    @property
    def itl(self) -> Spread | None:
        return self.facts.itl

    @property
    def stutters(self) -> bool:
        """Do more than 1 in 100 gaps, or half of them, exceed what is accepted? A usual answer has a hundred."""
        return self.itl is not None and _stutters(self.itl, self.facts.promise)

    def matters(self, delay_s: float) -> bool:
        """Is it so much of a TTFT that it can be blamed for it?"""
        return self.split.share(delay_s) >= LEAST_PART

    def queue_matters(self, part: float) -> bool:
        """The same of so much of the queue. A wait of unknown length is not a short one."""
        queue_s = self.split.queue_s
        return self.matters(queue_s * part) if queue_s is not None else self.outnumbered

    @property
    def ask_workers(self) -> str:
        """What to do where only a gateway was looked at."""
        urls = self.facts.worker_urls
        several = [f"`headway doctor {url}`" for url in urls[:MOST_SHOWN]] or ["`headway doctor URL` of each"]
        more = f" and {len(urls) - MOST_SHOWN} more" if len(urls) > MOST_SHOWN else ""
        return f"ask the workers: {', '.join(several)}{more}"

    @property
    def missed(self) -> tuple[str, ...]:
        """Which promises are not kept, in words: by whoever saw it, server or client."""
        promise, client, found = self.facts.promise, self.facts.client, []
        if self.late and self.late_inside and self.unfinished is not None:
            some = self.unfinished
            found.append(f"the {some.requests:.0f} that are still inside have waited {some.waited_s:.2f} s on average")
        elif self.late and self.outnumbered:
            waiting = self.service.mean("waiting") or 0.0
            found.append(f"{waiting:.1f} requests wait while {self.running:.1f} run")
        elif self.late:
            found.append(f"a request waits {self.split.queue_s or 0.0:.2f} s on average")
        for who, ttft in (("", self.ttft), (" at the client", client.ttft_s)):
            if (worst := tail(ttft)) is not None and worst[1] > promise.ttft_s:
                found = [f"TTFT {worst[0]} is {worst[1]:.2f} s{who}"]
        for who, itl in (("", self.itl), (" at the client", client.itl_s)):
            if itl is not None and _stutters(itl, promise):
                found.append(
                    f"gaps between tokens are too long{who} (median {itl.quantile(0.5) * 1e3:.0f} ms, p99 "
                    f"{itl.quantile(0.99) * 1e3:.0f} ms)"
                )
        for who, e2e in (("", self.service.spread("e2e_s")), (" at the client", client.e2e_s)):
            if e2e is not None and e2e.mean > promise.e2e_s:
                found.append(f"an answer takes {e2e.mean:.0f} s on average{who}")
        return tuple(found)

    @property
    def tokens(self) -> float:
        """Of an answer."""
        output = self.service.spread("output_tokens")
        if output is not None:
            return output.mean
        generated, ended = self.service.increase("generation_tokens"), self.service.increase("ended")
        return generated / ended if generated and ended else 100.0

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
        return self.steps.decode_s(sequences) if self.steps is not None else None

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
    steps = steps_of(facts, model) if model is not None else None
    queued = prefill_share(facts, model, queued=True) if model is not None else None
    waited = _waited(facts, share)
    return Case(facts, split(facts), steps, waited, share, queued, _unfinished(facts, waited))


def _unfinished(facts: Facts, waited: Waited | None) -> Unfinished | None:
    """What was waited in all, less what those account for who have ended."""
    queue = facts.service.spread("queue_s")
    inside = sum(_last(facts.service.gauge(name)) for name in ("running", "waiting"))
    if waited is None or queue is None or inside < 1:
        return None
    return Unfinished(inside, max(0.0, waited.request_s - queue.sum) / inside)


def _last(series: Floats) -> float:
    known = series[np.isfinite(series)]
    return float(known[-1]) if len(known) else 0.0


def _stutters(itl: Spread, promise: Promise) -> bool:
    return itl.share_above(promise.stall_s) >= 0.01 or itl.quantile(0.5) > promise.itl_s


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
    # On average over the samples that tell it, for as long as they do.
    seen_s = service.times_s[known]
    mean_s = float(seen_s[-1] - seen_s[0]) / len(seen_s) if len(seen_s) else 0.0
    running = facts.running
    full, limit, told = _kv_full(facts, waiting), *_limit(facts, waiting, running)
    if facts.settings.kv_full == "wait" and not full.any() and prefill is not None and prefill < FULL_STEPS:
        # KV is set aside for the worst case, which a log does not tell: it holds up what neither slots nor prompts do.
        full = (waiting > 0) & ~(running >= SLOTS_FULL * (limit or np.inf))
    taken = ~full & (running >= SLOTS_FULL * limit) if limit is not None else np.zeros(len(waiting), np.bool_)
    kv, slots = (float(waiting[some].sum()) / max(total, 1e-9) for some in (full, taken))
    queued = float((waiting[known] > 0).mean()) if known.any() else 0.0
    return Waited(total * mean_s, kv, slots, 1.0 - kv - slots if total else 0.0, queued, limit, told)


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


def _limit(facts: Facts, waiting: Floats, running: Floats) -> tuple[float | None, bool]:
    """The most sequences that run: as told, else the height at which they stand while others wait.

    A lane's own limit shows as a height below the one that is told. So does the balance of those who start and end
    where steps are full.
    """
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
