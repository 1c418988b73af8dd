"""`Trail`: what became of one call: where it was sent and why, how long each part took, what it cost.

A ring of the most recent ones answers `GET /v1/requests/{id}`, to nobody but their own tenant.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from time import monotonic_ns
from typing import Any

from headway.core.fleet.fleet import Dispatch
from headway.core.fleet.routing import Choice
from headway.core.request import NO_SLO, Request, Slo, Usage
from headway.gateway.fleet.figures import Figures
from headway.gateway.observe import Part, promises_kept
from headway.metrics.gaps import Gaps

SHOWN = 0.0005  # of a score, and a term of it: what is less is 0 in three decimals
MS = 1_000_000
NS_PER_S = 1_000_000_000
RECENT = 4096  # about 1.5 kB each
NOT_ANSWERED = frozenset({"failed", "cancelled", "expired"})  # of its states at the end


class Trail:
    """Clocks one call from its arrival. `begun` and `ended` give what `Server-Timing` says of it."""

    __slots__ = (
        "_exact",
        "_figures",
        "_gaps",
        "_last_ns",
        "_slo",
        "arrival_ns",
        "cached_tokens",
        "degraded",
        "ended_ns",
        "estimate",
        "first_ns",
        "id",
        "invalid",
        "lane",
        "model",
        "output_tokens",
        "prompt_tokens",
        "ready_ns",
        "received_ns",
        "sent_ns",
        "state",
        "tenant",
        "tries",
    )

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.arrival_ns = self.received_ns = self.ready_ns = monotonic_ns()
        self.sent_ns = self.first_ns = self.ended_ns = self._last_ns = 0
        self.id = self.tenant = self.model = self.lane = ""
        self.invalid = False  # by its worker's word
        self._gaps: Gaps | None = None
        self._slo = NO_SLO
        self.estimate = 0  # of the prompt's tokens
        self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        self._exact = False
        self.degraded: tuple[str, ...] = ()
        # Where it was sent and why, and what went wrong there. Not the request: thousands of these are kept.
        self.tries: list[tuple[Choice, str]] = []
        self.state = "waiting"

    # -- as it happens ---------------------------------------------------------------------------------------------

    def received(self) -> None:
        """The body is there."""
        self.received_ns = monotonic_ns()

    def ready(self, request: Request, degraded: tuple[str, ...]) -> None:
        """It is counted, treated, and about to be let in."""
        self.ready_ns = monotonic_ns()
        self.tenant, self.model, self.estimate = request.tenant, request.model, request.prompt_tokens
        self._slo = request.slo
        self.degraded = degraded

    def sent(self, dispatch: Dispatch) -> None:
        self.sent_ns = monotonic_ns()
        self.tries.append((dispatch.choice, ""))
        self.state = "at a worker"

    def failed(self, code: str) -> None:
        """That worker failed it."""
        choice, _ = self.tries[-1]
        self.tries[-1] = (choice, code)
        self._figures.count_failure(choice.worker, code)
        self.state = "waiting"

    def first_byte(self) -> None:
        self.state = "streaming"

    def passed(self, output_tokens: int, *, exact: bool) -> None:
        """A piece of a stream came; so many tokens have come in all, as counted here or, at the end, by the worker."""
        count = output_tokens - self.output_tokens
        if count <= 0:
            return
        self.output_tokens = output_tokens
        corrected, self._exact = exact and not self._exact and self.first_ns, exact
        if corrected:
            return  # of what it adds nobody knows when it came
        now = monotonic_ns()
        if not self.first_ns:
            self.first_ns = now
            self._figures.ttft_s.observe((now - self.arrival_ns) / NS_PER_S)
        else:
            all_gaps = self._figures.gaps
            if self._gaps is None:
                self._gaps = Gaps(all_gaps)
            all_gaps.note(self._gaps, (now - self._last_ns) / NS_PER_S / count, count)
        self._last_ns = now

    def ended(self, state: str, usage: Usage) -> None:
        """Once, however it ended."""
        self.ended_ns = monotonic_ns()
        self.state = state
        self.prompt_tokens, self.output_tokens = usage.prompt_tokens, usage.output_tokens
        self.cached_tokens = usage.cached_tokens
        self._figures.over(self)

    @property
    def input_tokens(self) -> int:
        return self.prompt_tokens

    @property
    def gaps(self) -> Gaps | None:
        return self._gaps

    @property
    def duration_s(self) -> float:
        return (self.ended_ns - self.arrival_ns) / NS_PER_S

    @property
    def outcome(self) -> str:
        """What it is counted as. A worker's own refusal is its client's affair."""
        return "invalid" if self.invalid else self.state if self.state in NOT_ANSWERED else "good"

    @property
    def promises(self) -> dict[str, bool] | None:
        slo = self._slo
        return promises_kept(slo, self.ttft_s, self._gaps) if slo.ttft_ns or slo.itl_ns else None

    @property
    def labels(self) -> dict[str, str]:
        labels = {"tenant": self.tenant, "lane": self.lane, "model": self.model}
        if self.tries:
            labels["worker"] = self.tries[-1][0].worker
        return labels

    def counted(self) -> None:
        """Nothing more is asked of its tokens: thousands of trails are kept."""
        self._gaps = None

    def over(self, outcome: str) -> None:
        """It has told its end by then."""

    def kept(self, slo: Slo) -> bool:
        """Was what the call was promised kept? Of an answer in one piece its end is all that was seen."""
        first_ns = self.first_ns or self.ended_ns
        if slo.ttft_ns and first_ns - self.arrival_ns > slo.ttft_ns:
            return False
        gaps = self.output_tokens - 1
        return not (slo.itl_ns and self.first_ns and gaps > 0 and (self._last_ns - first_ns) / gaps > slo.itl_ns)

    # -- as it is told ---------------------------------------------------------------------------------------------

    @property
    def ttft_s(self) -> float | None:
        return (self.first_ns - self.arrival_ns) / NS_PER_S if self.first_ns else None

    def timing(self) -> str:
        """`Server-Timing` up to now, in ms. What the worker did with its time is not ours to guess."""
        now_ns = monotonic_ns()
        ended_ns = self.ended_ns or now_ns
        network_ms = (self.received_ns - self.arrival_ns) / MS
        tokenise_ms = (self.ready_ns - self.received_ns) / MS
        queue_ms = ((self.sent_ns or ended_ns) - self.ready_ns) / MS
        told = f"network;dur={network_ms:.2f}, tokenise;dur={tokenise_ms:.2f}, queue;dur={queue_ms:.2f}"
        if self.sent_ns:
            told += f", worker;dur={(ended_ns - self.sent_ns) / MS:.2f}"
        total_ms = (now_ns - self.arrival_ns) / MS
        if not self.ended_ns:  # a stream, whose total is known when nothing can be said any more
            return f"{told}, ttft;dur={total_ms:.2f}"
        self._figures.gateway_s.note((now_ns - ended_ns) / NS_PER_S)
        return f"{told}, gateway;dur={(now_ns - ended_ns) / MS:.2f}, total;dur={total_ms:.2f}"

    @property
    def worker(self) -> str:
        """`x-headway-worker`: its id, its score, and every term of that."""
        return shown_choice(self.tries[-1][0])

    def told(self) -> dict[str, Any]:
        """For `GET /v1/requests/{id}`."""
        end_ns = self.ended_ns or monotonic_ns()
        sent = bool(self.sent_ns)
        return {
            "id": self.id,
            "object": "headway.request",
            "model": self.model,
            "state": self.state,
            "worker": self.tries[-1][0].worker if self.tries else None,
            "tries": [told_try(choice, failure) for choice, failure in self.tries],
            "degraded": list(self.degraded),
            "tokens": {
                "prompt_estimate": self.estimate,
                "prompt": self.prompt_tokens,
                "cached": self.cached_tokens,
                "output": self.output_tokens,
            },
            "seconds": {
                "network": (self.received_ns - self.arrival_ns) / NS_PER_S,
                "tokenise": (self.ready_ns - self.received_ns) / NS_PER_S,
                "queue": ((self.sent_ns if sent else end_ns) - self.ready_ns) / NS_PER_S,
                "worker": (end_ns - self.sent_ns) / NS_PER_S if sent else None,
                "ttft": self.ttft_s,
                "total": (end_ns - self.arrival_ns) / NS_PER_S,
            },
        }

    # -- for a span ------------------------------------------------------------------------------------------------

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        return (self.state,) if self.ended_ns and not self.failure and self.output_tokens else ()

    @property
    def failure(self) -> str:
        """What the last worker that was tried did wrong."""
        return self.tries[-1][1] if self.tries else ""

    @property
    def facts(self) -> dict[str, str | tuple[str, ...]]:
        facts: dict[str, str | tuple[str, ...]] = {"headway.tenant": self.tenant, "headway.state": self.state}
        if self.degraded:
            facts["headway.degraded"] = self.degraded
        return facts

    def parts(self) -> list[Part]:
        end_ns = self.ended_ns or monotonic_ns()
        parts = [
            Part("network", self.arrival_ns, self.received_ns),
            Part("tokenise", self.received_ns, self.ready_ns),
            Part("queue", self.ready_ns, self.sent_ns or end_ns),
        ]
        if self.sent_ns:
            choice = self.tries[-1][0]
            facts: dict[str, str | float] = {"headway.worker": choice.worker, "headway.tries": len(self.tries)}
            facts |= {f"headway.routing.{name}": value for name, value in choice.terms.items()}
            parts.append(Part("worker", self.sent_ns, end_ns, facts | {"headway.routing.score": choice.score}))
        return parts


class Trails:
    """The most recent ones. A client may use an id again; then the later call is meant."""

    def __init__(self, most: int = RECENT) -> None:
        self._most = most
        self._by_id: OrderedDict[tuple[str, str], Trail] = OrderedDict()

    def keep(self, trail: Trail) -> None:
        by_id, key = self._by_id, (trail.tenant, trail.id)
        by_id[key] = trail
        if len(by_id) > self._most:
            by_id.popitem(last=False)

    def find(self, tenant: str, request_id: str) -> Trail | None:
        return self._by_id.get((tenant, request_id))

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Trail]:
        """The latest first."""
        return reversed(self._by_id.values())


def shown_choice(choice: Choice) -> str:
    terms = choice.terms
    told = ";".join([f"{name}={value:.3g}" for name, value in terms.items() if not -SHOWN < value < SHOWN])
    return f"{choice.worker};score={_rounded(choice.score):.3g};{told}" if told else f"{choice.worker};score=0"


def _rounded(value: float) -> float:
    """As it is told: of what is left of a sum of floats nobody makes anything, and -0.0 is 0.0."""
    return round(value, 3) + 0.0


def told_try(choice: Choice, failure: str) -> dict[str, Any]:
    return {
        "worker": choice.worker,
        "score": _rounded(choice.score),
        "terms": {name: _rounded(value) for name, value in choice.terms.items()},
        "others": {worker: _rounded(score) for worker, score in choice.others.items()},
        "failure": failure or None,
    }
