"""A gateway's decision log, as a load: what came to it, in its own time, to be simulated under other settings.

log = read_log("decisions.jsonl")
run = simulate(log.requests, log.settings(workers=(VirtualWorker(limits=…),) * 4))

Whether the same front, told the same, decides the same again is another question: `replay.py` asks that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

from headway.core.errors import ConfigError
from headway.core.fairness import FIRST_OUTPUT_TOKENS
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import NO_LIMITS, TenantLimits
from headway.core.front.treatment import Degradation
from headway.core.request import BATCH, NO_SLO, PREFIX_TOKENS, Slo
from headway.core.spans import Spans
from headway.simulate.log_lines import Line, admission_of, degradation_of, last_run, limits_of, spec_of, tenant_of
from headway.simulate.settings import VirtualFleet, VirtualRequest, VirtualSettings, VirtualWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLog:
    """One run of a gateway: the requests that came to it, and the settings under which they were decided.

    `requests` are what `simulate` takes, in order of arrival, the first moment of the log being 0. A prompt is as long
    as the gateway counted it; prompts share what their prefixes shared. What an output would have been is known of the
    requests that ended; of the `guessed` others (refused, expired, cancelled while they waited, or lost) it is taken to
    be the median of their tenant's. `unread` of them were refused before their body was read: of these their tenant is
    known, and all else is its median.
    """

    requests: list[VirtualRequest]
    guessed: int
    unread: int
    admission: AdmissionLimits
    front: FrontLimits
    degradation: Degradation
    default_limits: TenantLimits = NO_LIMITS
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    specs: tuple[WorkerSpec, ...] = ()  # of the workers that it began with
    levels: Mapping[Level, Mode] = field(default_factory=dict)  # of the ladder, as they were set first

    def settings(self, workers: tuple[VirtualWorker, ...], **changes: Any) -> VirtualSettings:
        """Those of the log, before `workers` that take what a fit says. `changes` are fields of `VirtualSettings`.

        The specs are kept where there are as many workers as there were.
        """
        specs = self.specs if len(self.specs) == len(workers) else ()
        given: dict[str, Any] = {
            "front": self.front,
            "admission": self.admission,
            "tenants": self.tenants,
            "default_limits": self.default_limits,
            "fleet": VirtualFleet(specs=specs, degradation=self.degradation, levels=self.levels),
        }
        return VirtualSettings(workers=workers, **{**given, **changes})


def read_log(path: str | Path) -> ReplayLog:
    """The last run that a gateway's decision log holds.

    Raises `ConfigError` for what is not such a log, or was written by an engine: `replay.py` is for those.
    """
    header, lines = last_run(Path(path))
    if header.get("body") != "gateway":
        raise ConfigError(f"{str(path)!r} is the decision log of an engine; of a gateway's the load can be read.")
    if "admission" not in header:
        raise ConfigError(f"{str(path)!r} was written before its settings were in it; it cannot be replayed.")
    calls = _Calls()
    for line in lines:
        if "stimulus" in line:
            calls.hear(line)
    return ReplayLog(
        requests=calls.requests(),
        guessed=calls.guessed,
        unread=calls.unread,
        admission=admission_of(header["admission"]),
        front=limits_of(header["limits"]),
        degradation=degradation_of(header["degradation"]),
        default_limits=tenant_of(header["default_limits"]),
        tenants={name: tenant_of(one) for name, one in header["tenants"].items()},
        specs=tuple(spec_of(line["spec"]) for line in _before_load(lines, "add_worker")),
        levels={
            Level[name.upper()]: Mode(mode)
            for line in _before_load(lines, "levels")
            for name, mode in line["modes"].items()
        },
    )


@dataclass(slots=True, eq=False)
class _Call:
    """What is known of one call so far."""

    name: str
    tenant: str
    at_ns: int
    prompt_tokens: int = 0  # 0 is unknown
    max_tokens: int | None = None
    priority: int | None = None
    batch: bool = False
    asked: Line | None = None  # as it was submitted
    output_tokens: int | None = None
    cancel_ns: int | None = None

    @property
    def whole(self) -> bool:
        """Is it known how long its output is? Of one that was cut short only the least is."""
        return self.output_tokens is not None and self.cancel_ns is None


class _Calls:
    """Stimuli, gathered by call. An answer in several parts is one request, as it was to the front."""

    def __init__(self) -> None:
        self.guessed = self.unread = 0
        self._calls: list[_Call] = []
        self._treated: dict[str, deque[_Call]] = defaultdict(deque)  # by the client's id, not submitted yet
        self._inside: dict[str, _Call] = {}  # by the core's
        self._zero_ns: int | None = None

    def hear(self, line: Line) -> None:
        now = line["now_ns"]
        if self._zero_ns is None:
            self._zero_ns = now
        kind = line["stimulus"]
        if kind == "door":
            self.unread += 1
            self._came(_Call(f"unread-{self.unread}", line["tenant"], now))
        elif kind == "treat":
            self._treat(line, now)
        elif kind == "submit":
            for asked in line["requests"]:
                self._submit(asked, now)
        elif kind == "divert":
            self._forget(line["request"])
        elif kind == "settle":
            call = self._inside.get(line["request"])
            if call is not None and line["usage"]["output_tokens"]:
                call.output_tokens = line["usage"]["output_tokens"]
        elif kind == "cancel" and (call := self._inside.get(line["request"])) is not None:
            call.cancel_ns = now

    def _came(self, call: _Call) -> None:
        self._calls.append(call)

    def _treat(self, line: Line, now: int) -> None:
        """The first word on a call is what its client asked for; what follows is of what was left of it."""
        name = line["request"]
        if not line["again"]:
            call = _Call(name, line["tenant"], now, line["prompt_tokens"], line["max_tokens"], line["priority"])
            call.batch = line["batch"]
            self._came(call)
            self._treated[name].append(call)

    def _forget(self, name: str) -> None:
        """It comes again when its time has come."""
        if waiting := self._treated.get(name):
            self._calls.remove(waiting.pop())

    def _submit(self, asked: Line, now: int) -> None:
        name = asked["request"].rpartition("#")[0] or asked["request"]
        waiting = self._treated.get(name)
        if waiting:
            call = waiting.pop()
            if not waiting:
                del self._treated[name]
        else:
            call = _Call(name, asked["tenant"], now, asked["prompt_tokens"], priority=asked["priority"])
            self._came(call)
        call.name, call.asked = asked["request"], asked
        self._inside[asked["request"]] = call

    def requests(self) -> list[VirtualRequest]:
        """Everybody who came. Whoever is unknown is like the median of its tenant."""
        usual = _Usual(self._calls)
        taken: set[str] = set()
        found = []
        for number, call in enumerate(self._calls):
            name = call.name if call.name not in taken else f"{call.name}.{number}"
            taken.add(name)
            self.guessed += not call.whole
            found.append(_request(call, name, number, usual, self._zero_ns or 0))
        return found


def _request(call: _Call, name: str, number: int, usual: _Usual, zero_ns: int) -> VirtualRequest:
    asked: Line = call.asked or {}
    output_tokens = call.output_tokens or 0
    if not call.whole:
        output_tokens = max(output_tokens, usual.output_tokens(call.tenant))
    max_tokens = call.max_tokens or asked.get("max_tokens") or output_tokens
    length = call.prompt_tokens or usual.prompt_tokens(call.tenant)
    prefix = tuple(asked.get("prefix", ()))[: length // PREFIX_TOKENS]
    return VirtualRequest(
        name,
        call.at_ns - zero_ns,
        Spans(length, number + 1, usual.numbers(prefix), PREFIX_TOKENS),
        max_tokens,
        max(1, min(output_tokens, max_tokens)),
        cancel_ns=call.cancel_ns - zero_ns if call.cancel_ns is not None else None,
        tenant=call.tenant,
        priority=call.priority or 0,
        slo=Slo(**asked["slo"]) if asked else NO_SLO,
        prefix=prefix,
        background=call.batch or asked.get("pool") == BATCH,
        model=asked.get("model", ""),
        streams=asked.get("streams", True),
    )


class _Usual:
    """What is known of all calls together: medians by tenant, of one that is not known those of all; and prefixes."""

    def __init__(self, calls: list[_Call]) -> None:
        self._prompts = _medians((call.tenant, call.prompt_tokens) for call in calls if call.prompt_tokens)
        self._outputs = _medians((call.tenant, call.output_tokens or 1) for call in calls if call.whole)
        self._numbers: dict[int, int] = {}

    def prompt_tokens(self, tenant: str) -> int:
        return self._prompts.get(tenant) or self._prompts.get(EVERYBODY) or PREFIX_TOKENS

    def output_tokens(self, tenant: str) -> int:
        return self._outputs.get(tenant) or self._outputs.get(EVERYBODY) or FIRST_OUTPUT_TOKENS

    def numbers(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """For hashes, which may be negative: a number for each."""
        return tuple(self._numbers.setdefault(block, len(self._numbers)) for block in prefix)


EVERYBODY = None


def _medians(values: Iterable[tuple[str, int]]) -> dict[str | None, int]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for tenant, value in values:
        found[tenant].append(value)
        found[EVERYBODY].append(value)
    return {tenant: median_low(of_one) for tenant, of_one in found.items()}


def _before_load(lines: list[Line], kind: str) -> list[Line]:
    """Stimuli of a kind that came before the first request did."""
    found = []
    for line in lines:
        stimulus = line.get("stimulus")
        if stimulus in {"door", "treat", "submit"}:
            break
        if stimulus == kind:
            found.append(line)
    return found
