"""`Finding`: one cause of `CAUSES`, its evidence, and what to do about it; and `Change`: the exact setting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from headway.doctor.facts import Settings, number

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
        "decode-starvation": "Streams crawl, or stop now and then, while prompts of all lengths are computed.",
        "oversized-batch": "A step that only decodes those who run is slower than promised.",
        "slow-machine": "A step that decodes a single sequence is slower than promised.",
        "engine-stalls": "The engine takes no step for seconds while requests run, or gaps are longer than any step: "
        "something else has the processor, or it hangs.",
        "long-outputs": "Answers above four times the median hold half of the slots' time; or answers take longer than "
        "anybody waits.",
        "full-windows": "Requests wait at a gateway, whose workers have as many in flight as it sends them.",
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

    `setting` and `value` are what a simulation can change; `words` is what a person does.
    """

    words: str
    setting: str = ""
    value: float | str | None = None


# So many or fewer of these hold whatever more of them would; other settings are as advised or they are not.
_BOUNDS = (
    *("slo_ttft", "slo_itl", "ttft_limit", "max_waiting", "max_num_batched_tokens", "clamp_output_tokens"),
    *("long_prompt_tokens", "long_prompt_slots", "long_output_slots"),
)
# Flags with a value in what a person is told to do. A value that is not told is no setting that could be compared.
_FLAG = re.compile(r"--([a-z][a-z-]+) (\d+(?:\.\d+)?|[a-z]\w*)")


def in_effect(change: Change, settings: Settings) -> bool:
    """Is everything that it names set so already? False where that is not told."""
    named = _FLAG.findall(change.words)
    return bool(named) and all(_holds(flag.replace("-", "_"), wanted, settings) for flag, wanted in named)


def _holds(name: str, wanted: str, settings: Settings) -> bool:
    now = settings.now(name)
    if (bound := number(now)) is None:
        return bool(now == wanted)
    try:
        value = float(wanted)
    except ValueError:
        return False
    return bound == value or (name in _BOUNDS and 0 < bound <= value)


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
