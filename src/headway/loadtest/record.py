"""`Record`: what became of one request, as the client saw it. Raw facts; what they mean is computed in `metrics`.

All times are integer ns after the start of the run, from one monotonic clock. A record keeps no text: a hundred
thousand of them must fit into memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Self


class Fate(Enum):
    """How a request ended. Everything but `OK` counts against the fraction of good requests.

    `failed`: it is an error. A limit that was kept on purpose is an answer, and what the run itself ended is nobody's
    error yet. `given_up`: it would have taken longer than it did, and how much longer is not known.
    """

    OK = "ok"
    LIMITED = "limited"  # 429, or 503 that says when to come again
    TIMEOUT = "timeout", True, True  # the client's own limit, of connecting or of the whole
    REFUSED = "refused", True  # another 4xx
    SERVER_ERROR = "server_error", True, True  # 5xx, an error event, a stream cut off or never finished
    TOO_LONG = "too_long", True, True  # an answer larger than any client takes; it was cut off
    CONNECTION = "connection", True, True  # no connection, or it broke before an answer began
    CANCELLED = "cancelled", False, True  # the run was ended while it was under way

    failed: bool
    given_up: bool

    def __new__(cls, value: str, failed: bool = False, given_up: bool = False) -> Self:
        fate = object.__new__(cls)
        fate._value_ = value
        fate.failed, fate.given_up = failed, given_up
        return fate


CLIENT_ERROR = "client: "  # begins the error of a request that failed for this machine's reasons, not the server's
IN_ONE_PIECE = "no stream: the server answered in one piece"  # the error of a good answer to who asked for a stream


class CountedBy(Enum):
    """Where the number of output tokens, and their spread over chunks, comes from; best first."""

    USAGE_BY_CHUNK = "usage_by_chunk"  # the server tells a running count with every chunk
    USAGE = "usage"  # the server tells a total; chunks share it evenly when there are fewer of them
    TOKENIZER = "tokenizer"  # counted here
    CHUNKS = "chunks"  # one a chunk, for want of anything better


@dataclass(slots=True, eq=False)
class Record:
    """One request. A token is *visible* when it carries content, reasoning or a tool call: a role alone is not."""

    index: int  # in order of schedule
    kind: str
    tenant: str
    asked_input_tokens: int
    asked_output_tokens: int
    scheduled_ns: int  # in a closed loop: when its slot became free
    sent_ns: int = -1  # when its bytes were given to the socket, or a connection for them was begun; -1: never
    headers_ns: int = -1  # when the response's head had arrived
    first_ns: int = -1  # first visible token, of whatever choice
    last_ns: int = -1  # last visible token
    ended_ns: int = -1  # the stream's end, or the error
    # For each visible chunk after the first of its choice: its gap to the one before it (ns), and its tokens.
    gaps_ns: array[int] = field(default_factory=lambda: array("q"))
    gap_tokens: array[int] = field(default_factory=lambda: array("H"))
    first_tokens: int = 0  # tokens in the first visible chunks, one chunk for each choice
    chunks: int = 0  # visible ones
    fate: Fate = Fate.CANCELLED
    status: int = 0  # HTTP; 0: none arrived
    error: str = ""  # the server's or the system's words, shortened; never a key
    input_tokens: int = -1  # as the server counted; -1: it did not say
    cached_tokens: int = -1
    output_tokens: int = -1
    counted: CountedBy = CountedBy.CHUNKS
    hidden_tokens: int = 0  # of these: reasoning that was counted and never shown
    choices: int = 1  # that showed something
    recounted_tokens: int = -1  # output tokens by the client's tokenizer, for the cross-check; -1: not done
    reasoning: bool = False  # the first visible token was reasoning
    finish_reason: str = ""
    retries: int = 0  # sent again after Retry-After; `sent_ns` is of the first attempt
    replaced: int = 0  # sent again because the kept connection it went over turned out to be closed
    retry_after_s: float = -1.0  # what the last refusal said; -1: nothing
    server_timing: str = ""  # the header, as it came

    @property
    def ok(self) -> bool:
        return self.fate is Fate.OK
