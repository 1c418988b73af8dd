"""`Run`: everything a load test knows when it has ended; reports are made from it and from nothing else.

These are `msgspec` structs because they are what the JSON report holds. `SCHEMA_VERSION` changes with their meaning.
Unknown is None, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Self

import msgspec
import numpy as np

from headway.metrics import bench_result
from headway.metrics.figures import Distribution, Interval

__all__ = [
    "SCHEMA_VERSION",
    "ClientFigures",
    "Distribution",
    "Environment",
    "Finding",
    "Freeze",
    "Group",
    "Interval",
    "Load",
    "Run",
    "Signals",
    "Slo",
    "Struct",
    "Summary",
    "Target",
    "Verdict",
    "Word",
    "growth",
]

SCHEMA_VERSION = bench_result.VERSION


class Struct(msgspec.Struct, kw_only=True, omit_defaults=False):
    """What all of these share."""


class Slo(Struct):
    """Limits in seconds; None promises nothing. `itl_s` holds for a request when its own p99 gap is within it."""

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None


class Target(Struct):
    """What was tested. `url` is without credentials."""

    url: str
    endpoint: str  # "chat" or "completions"
    model: str


class Load(Struct):
    """What was offered."""

    profile: str  # "concurrency", "rate", …
    loop: str  # "open" or "closed"
    description: str  # one line for people
    rate: float | None = None  # requests/s, of an open loop; of a ramp: the highest
    concurrency: int | None = None  # of a closed loop
    duration_s: float | None = None  # of arrivals, as asked
    requests: int | None = None  # as asked
    warmup_s: float = 0.0  # left out of the figures, at the beginning
    cooldown_s: float = 0.0  # and at the end
    warmup_requests: int = 0  # of a closed loop that lasts so many requests: the first, left out as well
    stationary: bool = True  # the same all along; a trace, a burst and a ramp are not
    seed: int = 0
    # As it was asked for: options of the profile and of prompts by their names; empty: an older headway did not tell.
    options: dict[str, bool | int | float | str | None] = {}
    settings: dict[str, str] = {}  # in words, what came of them: lengths, shares, prompts, tenants


class Environment(Struct):
    """The server, as far as it tells; None is unknown. `noted` is what the user said with `--note key=value`."""

    model: str | None = None
    precision: str | None = None
    quantisation: str | None = None
    device: str | None = None  # GPU or CPU kind
    device_count: int | None = None
    memory_bytes: int | None = None
    framework: str | None = None  # name and version
    flags: dict[str, str] = {}
    noted: dict[str, str] = {}
    client: dict[str, str] = {}  # this machine: headway version, python, CPU kind, cores


class Signals(Struct):
    """What the server exported during the run, on the run's time axis. Series are as long as `times_s`; None is a gap.

    Names are ours whatever the server's: running, waiting, kv_used_ratio, preemptions_total, prompt_tokens_total,
    generation_tokens_total, memory_bytes, desired_replicas. What a server does not export is not there.
    """

    times_s: list[float] = []
    series: dict[str, list[float | None]] = {}
    source: str = ""  # "vllm", "sglang", "headway", "llamacpp", "tgi", or "" when nothing could be scraped

    def within(self, name: str, window_s: tuple[float, float]) -> list[tuple[float, float]]:
        """The readings of a series in the window, both ends included: (time, value)."""
        values = self.series.get(name, [])
        return [
            (at_s, value)
            for at_s, value in zip(self.times_s, values, strict=False)
            if value is not None and window_s[0] <= at_s <= window_s[1]
        ]

    def kv_used_ratio(self, window_s: tuple[float, float]) -> float | None:
        """KV use in the window as reports and searches tell it: its p95. None: the server does not say."""
        values = [value for _, value in self.within("kv_used_ratio", window_s)]
        return float(np.quantile(values, 0.95)) if values else None

    def preemptions(self, window_s: tuple[float, float]) -> float | None:
        """Preemptions in the window. None: the server does not say, or was asked less than twice."""
        values = [value for _, value in self.within("preemptions_total", window_s)]
        return growth(values) if len(values) > 1 else None


def growth(values: Sequence[float]) -> float:
    """Of a counter. A fall is a restart of the server, after which it counts from zero."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


class Freeze(Struct):
    """A stretch in which a client process did not look at its sockets: stopped, or kept from the core."""

    start_s: float
    end_s: float
    in_flight: int  # measured requests of that process
    mistimed: int  # of these, at most: were due, or showed their first token or end, while nobody looked

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class ClientFigures(Struct):
    """How well the load was made: the evidence for CLIENT-LIMITED."""

    processes: int
    offered_rate: float | None  # requests/s that the schedule asked for in the measured window; None: closed loop
    sent_rate: float  # that were sent in it
    lag: Distribution  # sent − scheduled, s
    cpu_ratio: float  # of the busiest client process: CPU seconds per second
    loop_lag: Distribution  # how late the client's own event loop was, s, weighted by time
    freezes: list[Freeze] = []  # that measured requests were in flight in
    stolen_ratio: float = 0.0  # of this machine's time, by its host, in the whole run


class Word(StrEnum):
    """What a verdict may be, worst first; with the exit code, the tone in which it is told, and what to make of it.

    1 is any other failure and 2 wrong usage, as for every command.
    """

    CLIENT_LIMITED = (
        "CLIENT-LIMITED",
        3,
        "bad",
        "This machine was late, or did not send all of the load. The latencies hold its delay as well as the server's.",
    )
    SERVER_ERRORS = "SERVER-ERRORS", 4, "bad", "Too many requests failed. The latencies are those of the survivors."
    UNSTEADY = (
        "UNSTEADY",
        5,
        "warn",
        "Service was still changing when the run ended. The figures depend on how long it ran.",
    )
    TOO_FEW_SAMPLES = (
        "TOO-FEW-SAMPLES",
        6,
        "warn",
        "Too few requests fell into the measured window. Run for longer, or at a higher load.",
    )
    VALID = "VALID", 0, "good", "The load was made as asked, and nothing speaks against its figures. Quote them."

    exit_code: int
    tone: str  # good, warn, bad
    meaning: str

    def __new__(cls, word: str, exit_code: int, tone: str, meaning: str) -> Self:
        made = str.__new__(cls, word)
        made._value_ = word
        made.exit_code, made.tone, made.meaning = exit_code, tone, meaning
        return made


class Finding(Struct):
    """One reason for a verdict, in one line with its numbers."""

    verdict: Word
    evidence: str


class Verdict(Struct):
    """`name` is the worst that was found. `remarks` take nothing away, and are to be quoted with the figures."""

    name: Word
    findings: list[Finding]
    remarks: list[str] = []


class Group(Struct):
    """Figures over some of the requests: all of them, a kind, a tenant. Only what was scheduled in the window."""

    requests: int
    fates: dict[str, int]
    # By name: ttft, ttft_from_send, itl, icl, tpot, e2e, e2e_from_send, lag (all s); input_tokens, output_tokens.
    distributions: dict[str, Distribution]
    # Rates count what left the server in the window, whenever it was scheduled: an overloaded one has a backlog.
    request_rate: float  # finished well, per s of the window
    input_token_rate: float
    output_token_rate: float
    # The same by name, and goodput, with intervals: how they varied over the window.
    rates: dict[str, Interval] = {}
    # Shares are of all requests, refused and failed ones included, but for `undecided_requests`: those that were due so
    # shortly before the run was cut that not all of them could have broken what was promised.
    undecided_requests: int = 0
    slo_ratios: dict[str, float] = {}  # SLO ("ttft", "itl", "e2e") -> share that met it
    good_requests: int | None = None  # that met every SLO; None without any
    good_ratio: Interval | None = None  # their share
    goodput: float | None = None  # good requests/s


class Summary(Struct):
    """The figures of a run. The window is what is left between warm-up and cool-down."""

    window_s: tuple[float, float]
    overall: Group
    by_kind: dict[str, Group] = {}
    by_tenant: dict[str, Group] = {}
    rivals: dict[str, dict[str, float | None]] = {}  # tool -> its own name for a figure -> value by its definition
    counting: dict[str, int] = {}  # how tokens were counted -> requests
    count_mismatches: int = 0  # requests whose usage and own count differ by more than the tolerance
    errors: dict[str, int] = {}  # the most frequent messages
    recovery_s: float | None = None  # `burst`: until latency was back to what it was before; None: not that profile
    unrecovered_bursts: int = 0  # after which it was not back before the next: `recovery_s` is at least that
    knee: dict[str, float] | None = None  # `ramp`: the load where service breaks, and the evidence


class Run(Struct):
    """One run, whole but for its records, which are beside it."""

    started_at: str  # ISO 8601, UTC
    elapsed_s: float
    target: Target
    load: Load
    slo: Slo
    environment: Environment
    client: ClientFigures
    summary: Summary
    verdict: Verdict
    signals: Signals
    interrupted: bool = False
    ended_early: str = ""  # why, if the load was ended before its time by itself
    simulation: str = ""  # what was simulated, in one line; "": this was measured
    run_id: str = ""  # in every line of its CSV as well; empty: of an older headway
    schema_version: int = SCHEMA_VERSION
