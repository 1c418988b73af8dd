"""`Traffic`: what will be asked, as often as a plan wants to try it: by chance (`Steady`) or as it was (`Recorded`).

`draw` gives another day of the same traffic for each seed. One replica of several is tried alone, with every n-th
request of all (`share`): how a router that heeds load divides them, but for its luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headway.core.errors import ConfigError
from headway.core.request import Slo
from headway.simulate.demand import Clients
from headway.simulate.plan.promise import Promise
from headway.workload.arrivals import Arrivals, Gamma, Poisson
from headway.workload.errors import WorkloadError
from headway.workload.item import Arrival, Item
from headway.workload.mix import ItemSource
from headway.workload.schedule import Stop, items, schedule

Integers = npt.NDArray[np.int64]
LOOKED_AT = 4_000  # items that are drawn to know the lengths
WINDOW_S = 60.0  # the peak is the busiest of such
SHAKEN = 2.0  # mean gaps by which arrivals of a recorded day come sooner or later on another


class Traffic(Protocol):
    """Requests of one kind of day."""

    @property
    def description(self) -> str:
        """One line for people."""
        ...

    @property
    def rate(self) -> float:
        """Requests/s, on average."""
        ...

    @property
    def peak_rate(self) -> float:
        """Requests/s of the busiest minute."""
        ...

    @property
    def lengths(self) -> Lengths:
        """Of prompts and outputs."""
        ...

    @property
    def whole(self) -> bool:
        """Is all of a day judged? Of an endless one the beginning, where nobody is there yet, is not."""
        ...

    def draw(self, seed: int, count: int, *, share: int = 1, speed: float = 1.0) -> list[Arrival]:
        """About `count` requests of every `share`-th, at `speed` times the rate; the first comes at about 0."""
        ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of typical requests, one each."""

    prompt: Integers
    output: Integers
    shared: bool  # do prompts begin alike?

    @property
    def longest(self) -> int:
        """Prompt and output of the longest request."""
        return int((self.prompt + self.output).max())

    @property
    def context(self) -> float:
        """KV tokens of a running sequence, on average over its life, weighted by how long it lives."""
        weights = np.maximum(1, self.output)
        return float(np.average(self.prompt + self.output / 2, weights=weights))

    def prompt_at(self, percentile: float) -> int:
        return int(np.percentile(self.prompt, percentile, method="higher"))

    def output_at(self, percentile: float) -> int:
        return int(np.percentile(self.output, percentile, method="higher"))

    @classmethod
    def of(cls, found: Sequence[Item]) -> Lengths:
        return cls(
            np.array([item.input_tokens for item in found], np.int64),
            np.array([item.output_tokens for item in found], np.int64),
            any(item.prefix_blocks for item in found),
        )


@dataclass(frozen=True)
class Steady:
    """Independent users at one rate (requests/s). `burstiness` as in `headway bench`: 1 is Poisson.

    Raises `WorkloadError` for a rate that is none.
    """

    rate: float
    source: ItemSource
    burstiness: float = 1.0
    process: Arrivals = field(init=False)

    def __post_init__(self) -> None:
        process = Poisson(self.rate) if self.burstiness == 1 else Gamma(self.rate, self.burstiness)
        object.__setattr__(self, "process", process)

    @property
    def description(self) -> str:
        return f"{self.process.description}; {self.source.description}"

    @property
    def peak_rate(self) -> float:
        return self.rate

    @property
    def whole(self) -> bool:
        return False

    @cached_property
    def lengths(self) -> Lengths:
        return Lengths.of(list(islice(items(self.source, 0), LOOKED_AT)))

    def draw(self, seed: int, count: int, *, share: int = 1, speed: float = 1.0) -> list[Arrival]:
        """See `Traffic`."""
        drawn = schedule(self.process, self.source, Stop(requests=count * share), seed)
        return _faster(islice(drawn, 0, None, share), speed)


@dataclass(frozen=True)
class Recorded:
    """What was asked on one day, in order of arrival. Another day is the same requests, each a little sooner or later.

    Raises `WorkloadError` for a day without requests, or on which all came at once.
    """

    name: str
    arrivals: Sequence[Arrival]

    def __post_init__(self) -> None:
        if len(self.arrivals) < 2 or self.arrivals[-1].at_ns <= self.arrivals[0].at_ns:
            raise WorkloadError(
                f"{self.name} has {len(self.arrivals)} requests at one time; a plan needs at least two, some time apart"
            )

    @property
    def description(self) -> str:
        return f"{self.name}: {len(self.arrivals):,} requests in {self._span_s:,.4g} s"

    @property
    def _span_s(self) -> float:
        return (self.arrivals[-1].at_ns - self.arrivals[0].at_ns) / 1e9

    @property
    def rate(self) -> float:
        return (len(self.arrivals) - 1) / self._span_s

    @cached_property
    def peak_rate(self) -> float:
        if self._span_s <= WINDOW_S:
            return self.rate
        at = self._at_s
        inside = np.searchsorted(at, at + WINDOW_S) - np.arange(len(at))
        return max(self.rate, float(inside.max()) / WINDOW_S)

    @property
    def whole(self) -> bool:
        return True

    @cached_property
    def lengths(self) -> Lengths:
        return Lengths.of([arrival.item for arrival in self.arrivals])

    @cached_property
    def _at_s(self) -> npt.NDArray[np.float64]:
        return np.array([arrival.at_ns for arrival in self.arrivals], np.float64) / 1e9

    def draw(self, seed: int, count: int, *, share: int = 1, speed: float = 1.0) -> list[Arrival]:
        """See `Traffic`. Of a day with more requests than that, the stretch with the most tokens per second."""
        taken = list(self._busiest(count * share))
        if seed:
            gap_ns = SHAKEN * 1e9 / self.rate
            late_ns = np.random.default_rng(seed).normal(0.0, gap_ns, len(taken))
            taken = [
                replace(arrival, at_ns=max(0, arrival.at_ns + int(late)))
                for arrival, late in zip(taken, late_ns, strict=True)
            ]
            taken.sort(key=lambda arrival: arrival.at_ns)
        return _faster(taken[::share], speed)

    def _busiest(self, count: int) -> Sequence[Arrival]:
        if len(self.arrivals) <= count:
            return self.arrivals
        work = np.concatenate([[0], np.cumsum(self.lengths.prompt + self.lengths.output)])
        at = self._at_s
        span_s = np.maximum(1e-9, at[count - 1 :] - at[: len(at) - count + 1])
        density = (work[count:] - work[:-count]) / span_s
        first = int(np.argmax(density))
        return self.arrivals[first : first + count]


def _faster(drawn: Sequence[Arrival] | islice[Arrival], speed: float) -> list[Arrival]:
    found = list(drawn)
    first_ns = found[0].at_ns if found else 0
    return [replace(arrival, at_ns=round((arrival.at_ns - first_ns) / speed)) for arrival in found]


def clients_of(promise: Promise) -> Clients:
    """For engines that heed promises."""
    return Clients(slo=Slo(ttft_ns=int((promise.ttft_s or 0) * 1e9), itl_ns=int((promise.itl_s or 0) * 1e9)))


def check_context(traffic: Traffic, context_tokens: int | None, model: str) -> None:
    """Raises `ConfigError` when a request is longer than the model's context."""
    longest = traffic.lengths.longest
    if context_tokens is not None and longest > context_tokens:
        how = "Shorten it (--max-input-len, --max-output-len), or leave it out (--over skip)."
        how = how if traffic.whole else "Ask for less: --input-len, --output-len."
        raise ConfigError(
            f"a request of the traffic has {longest:,} tokens, prompt and output together, and {model} has a context "
            f"of {context_tokens:,}. {how}"
        )
