"""`Finding`: one cause of `CAUSES`, its evidence, and what to do about it; and `Change`: the exact setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Confidence = Literal["high", "medium", "low"]

# The brief's four questions, and which of them a cause is an answer to.
CHAPTERS = {
    "concurrency": "TTFT gets worse as concurrency rises",
    "utilisation": "utilisation is high and users find it slow",
    "memory": "it starts, and runs out of memory at high concurrency",
    "low-rate": "requests are few and it is slow all the same",
}

# Every cause that a rule names, and what is seen then: for `headway explain` and the reference.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "slot-limit": "Requests wait while all slots are taken, and KV has room.",
        "kv-exhausted": "They wait while KV is full, or has less room than the head of the queue needs.",
        "preemption-thrash": "A fifth of the prompt work is done again, or each request is thrown out once.",
        "long-prompt-interference": "They wait, or streams stall, while a few long prompts fill the steps.",
        "overload": "They wait behind prompts of all lengths: more work comes than steps can take in.",
        "decode-starvation": "Nobody waits, and streams crawl: prompts take half of the engine's time.",
        "oversized-batch": "A step that only decodes those who run is slower than promised.",
        "slow-machine": "A step that decodes a single sequence is slower than promised.",
        "engine-stalls": "Gaps are longer than any step the token budget allows: something else has the processor.",
        "long-outputs": "Answers above four times the median hold half of the slots' time; or answers take longer than "
        "anybody waits.",
        "bursts": "The average rate would fit, arrivals are uneven, and the queue comes and goes.",
        "hot-worker": "Requests wait at one worker while another has room.",
        "slow-worker": "One worker takes twice as long for a token as the others, and yields no more than they do.",
        "cold-cache": "The prefix cache fills during the window, was emptied in it, or gives up what is asked again.",
        "long-prompts": "The prompts' own work is later than promised.",
        "slow-preprocessing": "Most of TTFT passes before the engine hears of a request.",
        "network-delay": "Most of TTFT passes on the way.",
        "client-limited": "The load tester was late itself.",
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of the server, the value to give it (None: a kind of change, not a number) and why.

    `engine` and `value` are what a simulation can change; `words` is what a person does.
    """

    words: str
    setting: str = ""
    value: float | str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`cost_s`: how much later a request is for it, on average; by it findings are compared.

    `explains`: causes that are only symptoms of this one.
    """

    cause: str
    title: str
    chapter: str
    evidence: tuple[str, ...]
    confidence: Confidence
    changes: tuple[Change, ...]
    cost_s: float = 0.0
    explains: tuple[str, ...] = ()
    effect: tuple[str, ...] = ()  # of the change, simulated
