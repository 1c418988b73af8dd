"""A request's life: what is asked (`Request`), how it may move (`MOVES`), and how it ended (`Reason`, `Usage`).

The lifecycle is a table so that documentation and the illegal-move tests are generated from it, and so that a
forgotten path is a `KeyError` in a test rather than a leaked slot in production.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headway.core.errors import InvalidRequest

# A request is one prompt and one output. A client call with n=3 is three requests that share a prompt.
RequestId = str


class State(Enum):
    """Where a request is. The second group is terminal: nothing leaves it."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"

    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python; every move looks states up twice

    @property
    def terminal(self) -> bool:
        return not MOVES[self]


MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.CANCELLED, State.EXPIRED, State.FAILED}),
    State.PREFILL: frozenset(  # back to WAITING: its worker failed before the first byte
        {State.DECODE, State.PREEMPTED, State.WAITING, State.FINISHED, State.CANCELLED, State.FAILED}
    ),
    State.DECODE: frozenset({State.PREEMPTED, State.FINISHED, State.CANCELLED, State.FAILED}),
    State.PREEMPTED: frozenset({State.PREFILL, State.CANCELLED, State.FAILED}),
    State.FINISHED: frozenset(),
    State.CANCELLED: frozenset(),
    State.EXPIRED: frozenset(),
    State.FAILED: frozenset(),
}


class IllegalMove(AssertionError):
    """A move the table does not hold: a defect in the caller, never a condition to handle."""


def move(current: State, to: State) -> State:
    """Return `to`, or raise `IllegalMove` when the table forbids it."""
    if to not in MOVES[current]:
        raise IllegalMove(f"{current.value} -> {to.value} is not a move of the lifecycle")
    return to


class Reason(Enum):
    """Why a finished sequence ended; the values are OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"


# Least and greatest of each number, both allowed.
SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
    "logprobs": (0, 20),
    "min_tokens": (0, 2**31 - 1),
    "seed": (-(2**63), 2**64),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when they stop. The core only carries this; executors act on it.

    Raises `InvalidRequest`, naming the field, for what no executor could act on.
    """

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps all
    min_p: float = 0.0
    seed: int = 0  # same seed, same prompt -> same draws, whatever else is in the batch
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    logprobs: int | None = None  # number of alternatives to report beside the chosen token; None reports nothing
    min_tokens: int = 0  # no end-of-sequence or stop token before this many
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own end-of-sequence ids
    stop: tuple[str, ...] = ()  # strings; the driver finds them, since only it sees text

    def __post_init__(self) -> None:
        for name, (low, high) in SAMPLING_RANGES.items():
            value = getattr(self, name)
            whole = isinstance(low, int)
            if value is None and name == "logprobs":
                continue
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise InvalidRequest(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}.", param=name)
            if not low <= value <= high:  # NaN is in no range
                raise InvalidRequest(f"{name} must be between {low:g} and {high:g}, not {value!r}.", param=name)
        # What people write: one string for a tuple of one, and a mapping for pairs.
        stop: Any = self.stop
        bias: Any = self.logit_bias
        if isinstance(stop, str):
            object.__setattr__(self, "stop", (stop,))
        if isinstance(bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(bias.items()))
        if not all(self.stop):
            raise InvalidRequest("A stop string is empty; it would stop everything.", param="stop")
        if not all(math.isfinite(added) for _, added in self.logit_bias):
            raise InvalidRequest("logit_bias must hold finite numbers.", param="logit_bias")


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request was promised, in ns; 0 promises nothing.

    `ttft_ns` and `itl_ns` are targets to schedule by. `ttft_limit_ns` is a limit: a request that cannot meet it is
    better refused than served.
    """

    ttft_ns: int = 0
    itl_ns: int = 0
    ttft_limit_ns: int = 0


NO_SLO = Slo()


# Pools: who somebody waits for, and what is done when there is room for it.
ONLINE, BATCH = "online", "batch"

# What one hash of `Request.prefix` stands for.
PREFIX_TOKENS = 64


@dataclass(slots=True, eq=False)
class Request:
    """One prompt that wants one output. Immutable by convention after submission, except `state`."""

    id: RequestId
    prompt: ReadOnlySequence[int]  # token ids; a `range` where only their number is known, as for a remote worker
    max_tokens: int  # a limit, not a prediction: no policy may know how long the output will be
    arrival_ns: int = 0
    params: SamplingParams = field(default_factory=SamplingParams)
    tenant: str = ""
    priority: int = 0  # lower is sooner, as in vLLM
    slo: Slo = NO_SLO
    cache_scope: Hashable = ""  # a prefix is shared only between requests of equal scope
    model: str = ""  # only workers that serve it; empty for any
    pool: str = ONLINE  # the workers it is for, if there are any of that pool
    prefix: tuple[int, ...] = ()  # of each leading block of PREFIX_TOKENS tokens, a hash of all up to its end
    streams: bool = True  # its answer comes token by token; else nobody sees when its first one was made
    # Set by the front when it lets the request in.
    latest_start_ns: int = 0  # when its prefill must begin for its TTFT to hold; 0 without a promise
    aged_at_ns: int = 0  # from when on it goes before everybody younger of its tenant; 0 for never
    state: State = State.WAITING
    prompt_tokens: int = field(init=False)
    total_tokens: int = field(init=False)  # the worst case: prompt plus every output token it may produce

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.prompt)
        self.total_tokens = self.prompt_tokens + self.max_tokens


@dataclass(slots=True)
class Usage:
    """What a request really cost; never changed. `cached_tokens` is the part of the prompt that was not computed."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """What its tenant is charged."""
        return self.prompt_tokens - self.cached_tokens + self.output_tokens


@dataclass(slots=True)
class Times:
    """When a request passed each station, integer ns of the driver's clock; 0 means not reached.

    Prefill runs from `started_ns` to `first_token_ns`, decode from there to `ended_ns`. A preempted sequence
    keeps its first times: what it lost shows as a longer decode, which is what its user sees.
    """

    arrival_ns: int = 0
    started_ns: int = 0
    first_token_ns: int = 0
    ended_ns: int = 0
