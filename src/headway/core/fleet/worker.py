"""`WorkerState`: what the front knows of one remote worker: what it says of itself, and what was sent there since.

Signals are late: a burst sent between two of them must not go where the last one was idle. So own requests are counted
as they are sent and end, and a signal only tells what there is beside them (`foreign`), less and less as it ages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields, replace

from headway.core.errors import ConfigError
from headway.core.fleet.breaker import Breaker
from headway.core.fleet.delay import Delay
from headway.core.fleet.line import Line
from headway.core.fleet.window import Window
from headway.core.request import PREFIX_TOKENS, Request, RequestId

# A signal is believed whole for so long, then half as much with each half-life, and from `FORGOTTEN_NS` on not at all.
FRESH_NS = 250_000_000
HALF_LIFE_NS = 1_000_000_000
FORGOTTEN_NS = 10_000_000_000
# What counts as one burst, see `routing.py`.
BURST_NS = 1_000_000_000
# How many leading blocks a worker is taken to keep in its prefix cache, least recently used out first.
PREFIXES = 4_096
# How much the latest first token counts beside those before it, and each request in how long they wait for theirs.
TTFT_RATE, STAY_RATE = 0.2, 0.1
# A worker gets no further prompt while those that it has not begun to answer keep it busy for so long: what waits in it
# waits in its order, and would be begun sooner elsewhere.
AHEAD_NS = 150_000_000
# Of its stay a request may spend so much before its first byte without having queued: prompts take time too.
EASY_WAIT_RATIO = 0.25


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What an operator says of a worker. No `models` named means any; `most_sequences` 0 leaves it to the window."""

    id: str
    pool: str = "online"
    models: frozenset[str] = frozenset()
    weight: float = 1.0  # its share of the work, beside the others
    first_sequences: int = 8  # in flight, before anything is known
    most_sequences: int = 0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ConfigError(f"The weight of worker {self.id} is {self.weight}; it must be above 0.", param="weight")


@dataclass(frozen=True, slots=True)
class Signal:
    """A value, and when it was true."""

    value: float
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """What a worker says of itself. None is unknown, and unknown is never zero."""

    running: Signal | None = None  # sequences
    waiting: Signal | None = None  # sequences
    kv_used_ratio: Signal | None = None
    kv_capacity_tokens: Signal | None = None
    batch_tokens: Signal | None = None  # in its last steps
    ttft_s: Signal | None = None  # recent
    itl_s: Signal | None = None  # recent
    memory_headroom_ratio: Signal | None = None
    accelerator_used_ratio: Signal | None = None  # of its time; no sign of load by itself

    @classmethod
    def at(cls, at_ns: int, **values: float | None) -> WorkerLoad:
        """Signals that were all true at one time."""
        return cls(**{name: Signal(value, at_ns) for name, value in values.items() if value is not None})

    def updated(self, newer: WorkerLoad) -> WorkerLoad:
        """Of each signal the one that was true last: neither silence nor an old answer overwrites what is known."""
        changes = {}
        for name in LOAD_FIELDS:
            new, old = getattr(newer, name), getattr(self, name)
            if new is not None and (old is None or new.at_ns >= old.at_ns):
                changes[name] = new
        return replace(self, **changes)


LOAD_FIELDS = tuple(field.name for field in fields(WorkerLoad))
UNKNOWN = WorkerLoad()


def belief(signal: Signal | None, now: int) -> float:
    """How much a signal counts at `now`: 1 when fresh, 0 when unknown or forgotten."""
    if signal is None:
        return 0.0
    age_ns = now - signal.at_ns
    if age_ns <= FRESH_NS:  # nearly always
        return 1.0
    return float(0.5 ** ((age_ns - FRESH_NS) / HALF_LIFE_NS)) if age_ns < FORGOTTEN_NS else 0.0


class Flight:
    """One request at one worker. Its prompt is work until its first byte, its output until it ends."""

    __slots__ = (
        "before_tokens",
        "began",
        "counted",
        "output_tokens",
        "predicted_ns",
        "probes",
        "prompt_tokens",
        "recent",
        "sent_ns",
        "since_ns",
        "unread_tokens",
        "wait_ns",
        "worker",
    )

    def __init__(self, worker: WorkerState, request: Request, cached_tokens: int, output_tokens: int, now: int) -> None:
        prompt_tokens = request.prompt_tokens - cached_tokens
        self.worker = worker
        self.sent_ns = now
        self.prompt_tokens = prompt_tokens  # that are not cached, as far as we know
        self.output_tokens = output_tokens  # as expected
        self.unread_tokens = prompt_tokens if request.streams else 0  # until its first byte, seen of streams alone
        self.before_tokens = worker.unread_tokens + self.unread_tokens  # that are read before it
        self.predicted_ns = worker.prompt_time.at(request.prompt_tokens)  # its wait; 0 before anything is known
        self.began = False
        self.wait_ns = 0  # until its first byte
        self.since_ns = now  # from when its tokens come, as far as that is seen
        self.counted = worker.counted(now)  # at that time
        self.recent = True
        self.probes = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class WorkerState:
    """Counters are kept as requests are sent, begin and end; a law recounts them."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.window = Window(spec.first_sequences, spec.most_sequences)
        self.breaker = Breaker()
        self.draining = False
        self.load = UNKNOWN
        self.flights: dict[RequestId, Flight] = {}
        self.tokens = 0  # of those in flight
        self.work_tokens = 0  # of them, what is still to be computed
        self.unread_tokens = 0  # of them, prompts of streams without a first byte
        self.prompt_time = Line()  # ns until a first byte, by the tokens that are read before it
        self.delay = Delay()  # of first bytes, beyond what was to be expected when they were sent
        self.ttft_ns = 0.0  # recent, as measured here; 0 before any
        self._foreign: Signal | None = None  # sequences inside it that are not ours
        self._counted = self._counted_ns = 0  # requests in flight × ns, up to then
        self._changes: deque[tuple[int, int]] = deque()  # when so many more (or fewer) of ours were there
        self._recent: deque[Flight] = deque()
        self._recent_count = 0
        self._begun = 0  # of those in flight
        self._used_ns = 0  # when it was true what it says of its KV
        self._since_tokens = 0  # prompts of those in flight that were sent since then
        self._prefixes: dict[int, None] = {}
        self._wait_ns = self._stay_ns = 0.0  # of those that ended: until the first byte, and altogether, on average

    # -- what it says --------------------------------------------------------------------------------------------

    def observe(self, load: WorkerLoad, now: int) -> None:
        self.load = self.load.updated(load)
        used = self.load.kv_used_ratio
        if used is not None and used.at_ns != self._used_ns:
            self._used_ns, self._since_tokens = used.at_ns, self._sent_since(used.at_ns)
        running, waiting = self.load.running, self.load.waiting
        hidden = 0.0
        if running is not None and load.running is running:
            inside = running.value + (waiting.value if waiting is not None else 0.0)
            beyond = inside - self._ours_at(running.at_ns)
            hidden = max(0.0, -beyond)
            self._foreign = Signal(max(0.0, beyond), running.at_ns)
        capacity = self.load.kv_capacity_tokens
        if capacity is not None:
            self.window.bound_tokens(capacity.value)
        if load.waiting is not None and load.waiting is waiting:
            self._adjust(waiting.value, now, true_ns=waiting.at_ns, hidden=hidden)
            self.window.begun(now, self._begun)

    def _adjust(self, queued: float, now: int, *, true_ns: int | None = None, hidden: float = 0.0) -> None:
        count = len(self.flights)
        sequences = count if true_ns is None else self._ours_at(true_ns)
        tokens = self.tokens * sequences // count if count else 0
        self.window.adjust(now, queued=queued, sequences=sequences, tokens=tokens, true_ns=true_ns, hidden=hidden)

    def _adjust_by_waits(self, now: int) -> None:
        """Where it does not say what queues: by how much of their stay requests wait for their first byte."""
        if self._stay_ns and not belief(self.load.waiting, now):
            waits = self._wait_ns / self._stay_ns - EASY_WAIT_RATIO
            self._adjust(len(self.flights) * max(0.0, waits), now)

    def foreign(self, now: int) -> float:
        """Sequences inside it that are not ours, as far as is believed."""
        return self._foreign.value * belief(self._foreign, now) if self._foreign is not None else 0.0

    def kv_used_ratio(self, now: int) -> float | None:
        """As it says, and with what was sent since. None when that is too long ago, or unknown."""
        used, capacity = self.load.kv_used_ratio, self.load.kv_capacity_tokens
        if used is None or not belief(used, now):
            return None
        if capacity is not None and capacity.value > 0:
            return min(1.0, used.value + self._since_tokens / capacity.value)
        return min(1.0, used.value)

    def _sent_since(self, at_ns: int) -> int:
        """Prompt tokens of those in flight that were sent since then."""
        tokens = 0
        for flight in reversed(self.flights.values()):
            if flight.sent_ns < at_ns:
                break
            tokens += flight.prompt_tokens
        return tokens

    def _ours_at(self, at_ns: int) -> int:
        return len(self.flights) - sum(change for when, change in self._changes if when > at_ns)

    @property
    def reads(self) -> bool:
        """Has it prompts enough to read for now, as far as that is known?"""
        return self.unread_tokens * self.prompt_time.slope >= AHEAD_NS

    # -- what is sent there --------------------------------------------------------------------------------------

    def serves(self, model: str) -> bool:
        return not model or not self.spec.models or model in self.spec.models

    def cached_tokens(self, request: Request) -> int:
        """How much of its prompt was sent there before, and probably still lies in its prefix cache."""
        for at in range(len(request.prefix), 0, -1):
            if request.prefix[at - 1] in self._prefixes:
                return min(at * PREFIX_TOKENS, request.prompt_tokens - 1)
        return 0

    def recent(self, now: int) -> int:
        """How many of those in flight belong to the burst that is going on: sent lately, and no word of them yet."""
        while self._recent and self._recent[0].sent_ns <= now - BURST_NS:
            flight = self._recent.popleft()
            self._recent_count -= flight.recent
            flight.recent = False
        return self._recent_count

    def send(self, request: Request, output_tokens: int, now: int) -> Flight:
        flight = Flight(self, request, self.cached_tokens(request), output_tokens, now)
        self.unread_tokens += flight.unread_tokens
        flight.probes = self.breaker.sent(now)
        self.flights[request.id] = flight
        if not self.window.open(len(self.flights)):
            self.window.filled()
        self.tokens += request.prompt_tokens + output_tokens
        self.work_tokens += flight.tokens
        if now >= self._used_ns:
            self._since_tokens += flight.prompt_tokens
        self._recent.append(flight)
        self._recent_count += 1
        self._changed(1, now)
        for block in request.prefix:
            self._prefixes.pop(block, None)
            self._prefixes[block] = None
        while len(self._prefixes) > PREFIXES:
            del self._prefixes[next(iter(self._prefixes))]
        return flight

    def began(self, flight: Flight, now: int) -> None:
        """Its first byte came."""
        flight.began = True
        self._recent_count -= flight.recent
        flight.recent = False
        self.breaker.succeeded()
        self.work_tokens -= flight.prompt_tokens
        flight.wait_ns = now - flight.sent_ns
        if flight.unread_tokens:
            if flight.predicted_ns:
                self.delay.observe(flight.wait_ns - flight.predicted_ns)
            self.prompt_time.observe(flight.before_tokens, flight.wait_ns)
            flight.since_ns, flight.counted = now, self.counted(now)
        self._begun += 1
        if self.load.waiting is not None:
            self.window.begun(now, self._begun)
        self._read(flight)
        self.ttft_ns += (flight.wait_ns - self.ttft_ns) * (TTFT_RATE if self.ttft_ns else 1.0)

    def counted(self, now: int) -> int:
        """Requests in flight × ns, since the beginning: what of it passes is how many there were on average."""
        self._counted += len(self.flights) * (now - self._counted_ns)
        self._counted_ns = now
        return self._counted

    def land(self, request: Request, output_tokens: int, now: int) -> None:
        """A request is not there any more, however it ended, and has so many tokens of output."""
        counted = self.counted(now)
        flight = self.flights.pop(request.id)
        self.tokens -= request.prompt_tokens + flight.output_tokens
        self.work_tokens -= flight.output_tokens if flight.began else flight.tokens
        if flight.sent_ns >= self._used_ns:
            self._since_tokens -= flight.prompt_tokens
        self._read(flight)
        self._recent_count -= flight.recent
        flight.recent = False
        self._changed(-1, now)
        if flight.began:
            self._begun -= 1
            took_ns = now - flight.since_ns
            came = output_tokens - (flight.since_ns > flight.sent_ns)  # tokens, in that time
            beside = (counted - flight.counted) / took_ns if took_ns else len(self.flights)
            self.window.ended(beside, came, took_ns)
            self._wait_ns += (flight.wait_ns - self._wait_ns) * STAY_RATE
            self._stay_ns += (now - flight.sent_ns - self._stay_ns) * STAY_RATE
        elif flight.probes:
            self.breaker.nothing_learnt()
        self._adjust_by_waits(now)

    def _read(self, flight: Flight) -> None:
        """Its prompt is waited for no longer."""
        self.unread_tokens -= flight.unread_tokens
        flight.unread_tokens = 0

    def _changed(self, change: int, now: int) -> None:
        self._changes.append((now, change))
        signal = self.load.running
        known_ns = max(now - FORGOTTEN_NS, signal.at_ns if signal is not None else 0)
        while self._changes and self._changes[0][0] <= known_ns:
            self._changes.popleft()
