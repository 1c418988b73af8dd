"""`Decision`: what the core decided, about whom, when and why. Whoever drives the core may listen.

The record is complete: what came in (`submit`, `cancel`) is in it beside what was decided, so that the same core, fed
the same stimuli, must decide the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headway.core.request import Request, RequestId

Kind = Literal[
    "submit",  # let into the waiting room
    "refuse",  # turned away at the door; `why` is the error code
    "start",  # pulled from the waiting room by an engine
    "relegate",  # its TTFT is lost; it stands behind those who can still make theirs
    "overtake",  # passed by a smaller one while it found no KV
    "expire",  # turned away after waiting
    "displace",  # turned away after waiting: its tenant filled the waiting room, and `why` had less than its share
    "cancel",  # its owner left
    "preempt",  # lost its slot and KV; `why` says to whom
    "readmit",  # came back
    "reject",  # failed for want of KV
    "yield",  # prefill was given a block that decode had no time for
    "settle",  # what it held is given back
    "dispatch",  # sent to a remote worker; `why` names it, the numbers are the terms of its score
    "return",  # its worker failed before the first byte; it waits again, where it stood
    "degrade",  # asked for more than there is at the moment; `why` says what is done to it
    "ladder",  # a level of the degradation ladder is entered or left; `why` names it
    "replicas",  # how many workers there should be has changed; `why` is how many
    "worker",  # `why`: a worker's name, and what became of it
    "end",  # finished, cancelled while running, or failed; `why` is the reason or state
]


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision. `numbers` are what it was taken on; names carry their units."""

    now_ns: int
    kind: Kind
    request: RequestId
    why: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


Listener = Callable[[Decision], None]


def ignore(_: Decision) -> None:
    """For a scheduler that nobody listens to. A front builds no decision at all then: its listener is None."""


def submitted(request: Request, lane: str, now: int) -> Decision:
    numbers = {
        "prompt_tokens": request.prompt_tokens,
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "slo_ttft_ns": request.slo.ttft_ns,
        "slo_itl_ns": request.slo.itl_ns,
        "ttft_limit_ns": request.slo.ttft_limit_ns,
        "latest_start_ns": request.latest_start_ns,
    }
    return Decision(now, "submit", request.id, lane, numbers)
