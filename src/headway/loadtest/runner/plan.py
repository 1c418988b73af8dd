"""`Plan`: everything the client needs to make a load. It is sent to the client's own processes, so it must pickle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import TypeVar

from headway.loadtest.client.address import Tls
from headway.loadtest.client.limits import Limits
from headway.loadtest.client.recount import CountTokens
from headway.loadtest.client.request import PromptContent, RequestTemplate
from headway.loadtest.errors import InvalidPlan
from headway.workload.item import Arrival, Item

MAX_PROCESSES = 64


T = TypeVar("T")
Source = Iterable[T] | Callable[[], Iterable[T]]


def read(source: Source[T]) -> Iterable[T]:
    return source() if callable(source) else source


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Every arrival is sent at its time. They are sorted by time.

    What can be read only once, such as a generator, cannot be given to client processes: give what makes it instead,
    such as `functools.partial(schedule, …)`.
    """

    arrivals: Source[Arrival]


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """`concurrency` requests at any time, until `requests` were sent or `duration_s` are over, whichever is first.

    With `at_least`, it goes on after `duration_s` until so many were sent, but not beyond `most_s`.
    """

    items: Source[Item]
    concurrency: int
    requests: int | None = None
    duration_s: float | None = None
    think_s: float = 0.0
    at_least: int = 0
    most_s: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidPlan(f"The concurrency must be at least 1, not {self.concurrency}.")
        if not self.think_s >= 0:
            raise InvalidPlan(f"The time to think must not be negative, and is {self.think_s} s.")
        if self.requests is None and self.duration_s is None and not isinstance(self.items, Sized):
            raise InvalidPlan("A closed loop needs an end: a number of requests or a duration.")
        if self.duration_s is not None and not self.duration_s > 0:
            raise InvalidPlan(f"The duration must be above 0, not {self.duration_s} s.")


@dataclass(frozen=True, slots=True)
class Plan:
    template: RequestTemplate
    load: OpenLoad | ClosedLoad
    # Called with the item and its index, ahead of time and in a thread; equal arguments must give equal prompts.
    # It may have an `off_by`: index -> tokens too many or too few, of prompts that could not be made as long as asked.
    prompts: Callable[[Item, int], PromptContent]
    limits: Limits = field(default_factory=Limits)
    tls: Tls = field(default_factory=Tls)
    count_tokens: CountTokens | None = None  # output is counted again with it
    # Client processes beside this one. 0: the load is made here, on the running event loop.
    processes: int = 1
    scrape_interval_s: float | None = 1.0  # of the server's signals; None: they are left alone
    stop_when_degraded: bool = False  # end early, once service has clearly degraded and stayed so
    slo_e2e_s: float | None = None  # besides those that `template` tells the server; for that question
    metrics_url: str | None = None  # where they are, if not at the server's /metrics

    def __post_init__(self) -> None:
        if not 0 <= self.processes <= MAX_PROCESSES:
            raise InvalidPlan(f"There may be 0 to {MAX_PROCESSES} client processes, not {self.processes}.")
        if self.scrape_interval_s is not None and not self.scrape_interval_s >= 0.05:
            raise InvalidPlan(f"Signals may be scraped every 0.05 s at most, not every {self.scrape_interval_s} s.")
