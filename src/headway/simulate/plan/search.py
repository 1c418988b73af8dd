"""`Search`: how many replicas, with which limits, keep the promise: few simulations, and each only once.

Limits and replicas are searched on one replica with its share of the traffic, which costs as much for a hundred
replicas as for one. What is found is then tried as it will be: all replicas behind a router, on other days.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from headway.executors.simulated import StepCost
from headway.metrics.percentiles import samples_needed
from headway.simulate.plan.candidate import Candidate, Limits
from headway.simulate.plan.curve import MOST_BATCH, CurvePoint
from headway.simulate.plan.promise import Promise
from headway.simulate.plan.traffic import Traffic
from headway.simulate.plan.trial import Pool, Trial, settings_of, tried
from headway.simulate.settings import VirtualWorker
from headway.workload.item import Arrival

BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)
BUDGET_STEP_S = 0.25  # where no ITL is promised, a step of the budget takes about so long
DAYS = 2  # other than the one that was searched on, on which a plan must hold
MOST_REPLICAS = 4_096
EASY = 0.7  # of the promise: who is so far inside it with one replica has nothing to gain
MOST_TRIALS = 8  # of other limits, for one candidate
HEADROOM = 0.1  # how finely it is found
SURE = 0.85  # of the rate of full batches: another budget may bring a little more
MOST_HEADROOM = 4.0
ROUNDS = 8  # of adding replicas to what did not hold as it will be

# Told what is being done, how many are done, and of how many at most.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Plenty:
    """How many requests are simulated: of each day in the search, and of each on which the plan must hold."""

    search: int = 200
    proof: int = 600

    @classmethod
    def of(cls, promise: Promise, requests: int | None = None) -> Plenty:
        """`requests`: on each day; by default what the percentile needs over all days."""
        proof = requests or ceil(1.1 * samples_needed(promise.percentile) / DAYS)
        return cls(max(100, min(200, proof // 3)), proof)


@dataclass
class Search:
    """The trials of one candidate, by what was tried."""

    candidate: Candidate
    traffic: Traffic
    promise: Promise
    max_model_len: int
    curve: Sequence[CurvePoint]
    plenty: Plenty
    seed: int = 0
    told: Callable[[], None] = lambda: None
    _cells: dict[tuple[Limits, int, str, float], Trial] = field(default_factory=dict)

    def worker(self, limits: Limits, cost: StepCost | None = None) -> VirtualWorker:
        """One replica. Of prompts that share nothing a prefix cache would find nothing, and only cost time."""
        worker = self.candidate.worker(limits, self.max_model_len, cost)
        return worker if self.traffic.lengths.shared else replace(worker, prefix_cache=False)

    # -- trials ------------------------------------------------------------------------------------------------------

    def cell(self, limits: Limits, replicas: int, cost: StepCost | None = None, speed: float = 1.0) -> Trial:
        """One of `replicas`, with its share of the traffic."""
        key = (limits, replicas, repr(cost), speed)
        if key not in self._cells:
            edge_s = self._edge_s
            rate = self.traffic.rate * speed / replicas
            count = self.plenty.search + min(self.plenty.search, int(2 * edge_s * rate))
            drawn = self.traffic.draw(self.seed, count, share=replicas, speed=speed)
            self._cells[key] = self._tried(drawn, limits, 1, cost, edge_s)
        return self._cells[key]

    def fleet(
        self, limits: Limits, replicas: int, seed: int, cost: StepCost | None = None, *, steps: bool = False
    ) -> Trial:
        """All of them, on another day."""
        edge_s = self._edge_s
        count = self.plenty.proof + min(self.plenty.proof, int(2 * edge_s * self.traffic.rate))
        # Each replica must see requests enough for its queue to settle.
        count = max(count, min(40 * replicas, 4 * self.plenty.proof))
        return self._tried(self.traffic.draw(seed, count), limits, replicas, cost, edge_s, steps=steps)

    def _tried(
        self,
        drawn: Sequence[Arrival],
        limits: Limits,
        replicas: int,
        cost: StepCost | None,
        edge_s: float,
        *,
        steps: bool = False,
    ) -> Trial:
        worker = self.worker(limits, cost)
        service = settings_of(worker, replicas, steps=steps)
        trial = tried(drawn, service, self.promise, edge_s=edge_s, request_ns=self.candidate.request_ns)
        self.told()
        return trial

    @property
    def _edge_s(self) -> float:
        """Until as many run as usual: the time of one request, at a batch that keeps the promise."""
        if self.traffic.whole:
            return 0.0
        known = [point.e2e_mean_s for point in self.curve if point.e2e_mean_s and point.keeps is not False]
        return max(known, default=0.0)

    def holds(self, limits: Limits, replicas: int) -> bool:
        """Does one replica keep the promise with its share?"""
        return self.cell(limits, replicas).strain(self.promise) <= 1

    # -- limits --------------------------------------------------------------------------------------------------------

    def first(self) -> Limits:
        """Where to begin: the largest batch that keeps the promise when it is always full; and a budget that does."""
        kept = [point.batch for point in self.curve if point.keeps]
        seqs = self.candidate.seqs or max(kept, default=self.curve[0].batch)
        return Limits(
            seqs, fitting_budget(self.candidate, self.traffic, self.promise, seqs, max_model_len=self.max_model_len)
        )

    def others(self, limits: Limits) -> list[Limits]:
        """Limits next to these, those that change least first."""
        found: list[Limits] = []
        if self.candidate.seqs is None:
            most = max(point.batch for point in self.curve if not point.outside)
            near = (seqs for seqs in (limits.max_num_seqs * 2, limits.max_num_seqs // 2) if 1 <= seqs <= most)
            found += [Limits(seqs, max(seqs, limits.max_num_batched_tokens)) for seqs in near]
        budgets = budgets_of(self.candidate, limits.max_num_seqs, self.max_model_len)
        place = bisect_left(budgets, limits.max_num_batched_tokens)
        found += [Limits(limits.max_num_seqs, budgets[at]) for at in (place + 1, place - 1) if 0 <= at < len(budgets)]
        return [other for other in found if other != limits and self.candidate.fits(other, self.max_model_len)]

    # -- replicas ------------------------------------------------------------------------------------------------------

    def least(self, limits: Limits, *, begin: int = 1, cost: StepCost | None = None) -> int | None:
        """The fewest replicas from `begin` on; None when so many do not help."""
        return fewest(lambda replicas: self.cell(limits, replicas, cost).strain(self.promise) <= 1, begin)

    @property
    def at_least(self) -> int:
        """Fewer could not serve it even at full batches."""
        rates = [point.request_rate for point in self.curve if point.request_rate]
        return max(1, ceil(SURE * self.traffic.rate / max(rates))) if rates else 1

    def best(self) -> tuple[Limits, int] | None:
        """The limits with the fewest replicas; among those the ones that are farthest from breaking the promise."""
        limits = self.first()
        replicas = self.least(limits, begin=self.at_least)
        if replicas is None:
            found = self._any_that_holds(limits)
            if found is None:
                return None
            limits, replicas = found
        if replicas == 1 and self.cell(limits, 1).strain(self.promise) <= EASY:
            return limits, 1
        seen, trials, moved = {limits}, 0, True
        while moved and trials < MOST_TRIALS:
            moved = False
            for other in self.others(limits):
                if other in seen or trials >= MOST_TRIALS:
                    continue
                seen.add(other)
                trials += 1
                better = self._better(other, limits, replicas)
                if better is not None:
                    limits, replicas, moved = other, better, True
                    break
        return limits, replicas

    def _any_that_holds(self, limits: Limits) -> tuple[Limits, int] | None:
        """Smaller batches and other budgets, when the first do not do with any number of replicas."""
        for seqs in sorted({limits.max_num_seqs, *(point.batch for point in self.curve if not point.outside)}):
            for budget in (
                budgets_of(self.candidate, seqs, self.max_model_len) if self.candidate.seqs in {None, seqs} else ()
            ):
                replicas = self.least(Limits(seqs, budget), begin=self.at_least)
                if replicas is not None:
                    return Limits(seqs, budget), replicas
        return None

    def _better(self, other: Limits, limits: Limits, replicas: int) -> int | None:
        """With how many `other` holds, where that is better than what is known."""
        if replicas > 1 and self.holds(other, replicas - 1):
            fewer = replicas - 1
            while fewer > 1 and self.holds(other, fewer - 1):
                fewer -= 1
            return fewer
        if replicas > 1:
            return None
        now, then = (self.cell(one, replicas).strain(self.promise) for one in (limits, other))
        return replicas if then < 0.95 * now else None

    # -- as it will be -------------------------------------------------------------------------------------------------

    def proven(self, limits: Limits, replicas: int) -> tuple[int, Pool] | None:
        """The fewest replicas that hold on other days as well, behind their router; and those days."""
        for _ in range(ROUNDS):
            pool = self.days(limits, replicas)
            if pool.holds(self.promise):
                return replicas, pool
            replicas += max(1, replicas // 12)
        return None

    def days(self, limits: Limits, replicas: int) -> Pool:
        """The first day is kept with its steps."""
        return Pool([self.fleet(limits, replicas, self.seed + 1 + day, steps=day == 0) for day in range(DAYS)])

    def headroom(self, limits: Limits, replicas: int) -> float:
        """How much more of the same traffic the replicas would take, as a share of it; found to `HEADROOM`."""

        def holds(speed: float) -> bool:
            return self.cell(limits, replicas, speed=round(speed, 4)).strain(self.promise) <= 1

        low, high = 1.0, 1.25
        if replicas > 1 and not self.holds(limits, replicas - 1):
            high = replicas / (replicas - 1)  # so much more for each is what one fewer would mean
        else:
            while high < 1 + MOST_HEADROOM and holds(high):
                low, high = high, 1 + 2 * (high - 1)
        while high - low > HEADROOM * low:
            middle = float(np.sqrt(low * high))
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low - 1


def fewest(holds: Callable[[int], bool], begin: int = 1, most: int = MOST_REPLICAS) -> int | None:
    """The smallest number from `begin` on that holds, where more never hold less. None: `most` do not."""
    low, high, step = begin - 1, begin, 1
    while not holds(high):
        if high >= most:
            return None
        low, step = high, max(step, high // 4)
        high = min(most, high + step)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def budgets_of(candidate: Candidate, seqs: int, max_model_len: int) -> list[int]:
    """Budgets that there are to choose from, beside so many slots: measured, and with memory for their steps."""
    if candidate.budget is not None:
        return [max(candidate.budget, seqs)]
    most = candidate.valid.max_prefill_tokens if candidate.valid is not None else BUDGETS[-1]
    within = (budget for budget in BUDGETS if seqs <= budget <= most)
    known = [budget for budget in within if candidate.fits(Limits(seqs, budget), max_model_len)]
    return known or [max(seqs, min(most, BUDGETS[0]))]


def fitting_budget(candidate: Candidate, traffic: Traffic, promise: Promise, seqs: int, *, max_model_len: int) -> int:
    """The largest budget whose whole step, beside so many that decode, is within the promised ITL."""
    budgets = budgets_of(candidate, seqs, max_model_len)
    cost, context = candidate.costs.usual, traffic.lengths.context
    decode_ns = cost.of_decode(seqs, round(seqs * context), 1) + cost.prefill_step_ns
    limit_s = promise.itl_s or max(BUDGET_STEP_S, 2 * decode_ns / 1e9)
    spare = (limit_s * 1e9 - decode_ns) / max(1, cost.prefill_token_ns)
    return max((budget for budget in budgets if budget - seqs <= spare), default=budgets[0])


def most_seqs(candidate: Candidate, traffic: Traffic, max_model_len: int) -> int:
    """Beyond so many, KV is full, or nothing was measured. Raises `ConfigError` for a model that does not fit."""
    room = candidate.memory(smallest(candidate, candidate.seqs or 1), max_model_len)
    if candidate.seqs is not None:
        return candidate.seqs
    context = traffic.lengths.context
    most = min(MOST_BATCH, int(room.tokens / context))
    if candidate.valid is not None:
        most = min(most, candidate.valid.max_decode_seqs, int(candidate.valid.max_context_tokens / context))
    return max(1, most)


def smallest(candidate: Candidate, seqs: int) -> Limits:
    """The limits that take the least memory, with so many slots."""
    return Limits(seqs, max(seqs, candidate.budget or BUDGETS[0]))
