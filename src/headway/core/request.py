"""A request's life: what is asked (`Request`), how it may move (`MOVES`), and how it ended (`Reason`, `Usage`).

The lifecycle is a table so that documentation and the illegal-move tests are generated from it, and so that a
forgotten path is a `KeyError` in a test rather than a leaked slot in production.
"""

from __future__ import annotations

from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field
from enum import Enum

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

    @property
    def terminal(self) -> bool:
        return not MOVES[self]


MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.CANCELLED, State.EXPIRED, State.FAILED}),
    State.PREFILL: frozenset({State.DECODE, State.PREEMPTED, State.FINISHED, State.CANCELLED, State.FAILED}),
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


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when they stop. The core only carries this; executors act on it.

    Ranges are checked where the outside world enters (`wire/`); here they are taken as given.
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


@dataclass(slots=True, eq=False)
class Request:
    """One prompt that wants one output. Immutable by convention after submission, except `state`."""

    id: RequestId
    prompt: ReadOnlySequence[int]  # token ids
    max_tokens: int  # a limit, not a prediction: no policy may know how long the output will be
    arrival_ns: int = 0
    params: SamplingParams = field(default_factory=SamplingParams)
    tenant: str = ""
    priority: int = 0  # lower is sooner, as in vLLM
    state: State = State.WAITING

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def total_tokens(self) -> int:
        """The worst case: prompt plus every output token it may produce."""
        return len(self.prompt) + self.max_tokens


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request really cost. `cached_tokens` is the part of the prompt that was not computed."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


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
