"""`treat`: what becomes of a request at the door, before anything is done for it: the limits, and the ladder's levels.

1 clamp the output · 2 demote long contexts · 3 shed low priorities · 4 drop what the client marked optional · 5 divert
batch work to the asynchronous store · 6 shorten the context. Whoever asked carries it out, and submits what is left.

Batch work can wait, so it is never made less of: at levels 3 and 5 it is diverted, and the others leave it alone. Asked
again for what is in the store already, `divert` says that its time has not come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from headway.core.errors import ContextLengthExceeded, Shed
from headway.core.front.ladder import Ladder, Level
from headway.core.front.tenants import TenantLimits
from headway.core.request import RequestId

# What to do with a prompt beyond the context limit.
Overlong = Literal["reject", "async", "trim"]


@dataclass(frozen=True, slots=True)
class Degradation:
    """What each level of the ladder does, in numbers."""

    clamp_output_tokens: int = 256  # 1: no output longer than this
    long_prompt_tokens: int = 1024  # 2: from here on a prompt is long
    demotion: int = 1  # 2: by how much its priority falls
    low_priority: int = 1  # 3: whoever stands here or lower is refused
    short_context_ratio: float = 0.5  # 6: of the context limit, what is left
    overlong: Overlong = "reject"
    online_prompt_tokens: int = 0  # a longer one is overlong, unless nobody waits for it; 0 is no limit


@dataclass(slots=True, kw_only=True)
class Asked:
    """What a client wants, as far as it is known before it is prepared. None was not said."""

    id: RequestId = ""
    tenant: str = ""
    prompt_tokens: int
    max_tokens: int | None = None
    priority: int | None = None
    batch: bool = False  # nobody waits for it
    optional: bool = False  # it has parts that may be left out


@dataclass(slots=True, kw_only=True)
class Treatment:
    """What to make of it. `degraded` names, in the ladder's words, what it would not have met on a quiet day."""

    max_tokens: int
    priority: int
    drop_optional: bool = False  # leave them out, count the prompt again, and ask again
    divert: bool = False  # put it into the asynchronous store
    trim_to_tokens: int | None = None  # drop the oldest turns until the prompt has no more than this
    degraded: tuple[str, ...] = field(default=())

    @property
    def header(self) -> str:
        """For `x-headway-degraded`; empty when there is nothing to tell."""
        return ", ".join(self.degraded)


def treat(
    asked: Asked,
    ladder: Ladder,
    degradation: Degradation,
    limits: TenantLimits,
    max_model_len: int,
    *,
    retry_after_s: Callable[[], float],
) -> Treatment:
    """Raises `Shed` at level 3, and `ContextLengthExceeded` for a prompt too long where that is to be rejected."""
    degraded: list[str] = []
    priority = _priority(asked, limits)
    low = ladder.active(Level.SHED_LOW_PRIORITY) and priority >= degradation.low_priority
    if ladder.active(Level.DEMOTE_LONG) and not asked.batch and asked.prompt_tokens >= degradation.long_prompt_tokens:
        priority += degradation.demotion
        degraded.append("demoted")
    if low and not asked.batch:
        raise Shed(
            "The service is overloaded and refuses requests of low priority for now. Come back later.",
            retry_after_s=retry_after_s(),
        )
    drop = asked.optional and ladder.active(Level.DROP_OPTIONAL)
    divert = asked.batch and (low or ladder.active(Level.DIVERT_BATCH))
    degraded += ["optional-dropped"] * drop + ["diverted"] * divert

    shortened = ladder.active(Level.SHORTEN_CONTEXT) and not asked.batch
    context = max(2, int(max_model_len * degradation.short_context_ratio)) if shortened else max_model_len
    trim_to_tokens = None
    ever, longest = _longest(asked, degradation, limits, context, max_model_len)
    if asked.prompt_tokens > longest and not drop:
        degraded += ["context-shortened"] * (shortened and asked.prompt_tokens < max_model_len)
        if degradation.overlong == "async":
            longest = ever
        if degradation.overlong == "reject" or (degradation.overlong == "async" and asked.prompt_tokens > ever):
            raise ContextLengthExceeded(
                f"The prompt has {asked.prompt_tokens} tokens; at most {longest} are taken"
                f"{' while the service is overloaded' if shortened and longest < ever else ''}. Shorten the prompt.",
                param="prompt",
            )
        if degradation.overlong == "async":
            divert = True
            degraded.append("diverted")
        else:
            # What the answer needs is kept free, as far as that leaves anything of the prompt.
            trim_to_tokens = max(1, min(longest, context - (asked.max_tokens or 0)))
            degraded.append("trimmed")

    prompt_tokens = min(asked.prompt_tokens, trim_to_tokens or asked.prompt_tokens)
    max_tokens = asked.max_tokens
    if max_tokens is None:
        max_tokens = _default_output(limits, max_model_len if divert else context, prompt_tokens)
    clamps = ladder.active(Level.CLAMP_OUTPUT) and not (divert or asked.batch)
    if clamps and max_tokens > degradation.clamp_output_tokens:
        max_tokens = degradation.clamp_output_tokens
        degraded.append("output-clamped")
    return Treatment(
        max_tokens=max_tokens,
        priority=priority,
        drop_optional=drop,
        divert=divert,
        trim_to_tokens=trim_to_tokens,
        degraded=tuple(degraded),
    )


def _longest(
    asked: Asked, degradation: Degradation, limits: TenantLimits, context: int, max_model_len: int
) -> tuple[int, int]:
    """The longest prompt that can be served at all, and the longest that is served at once."""
    ever = min(max_model_len - 1, limits.max_input_tokens or max_model_len)
    longest = min(context - 1, ever)
    if degradation.online_prompt_tokens and not asked.batch:
        longest = min(longest, degradation.online_prompt_tokens)
    return ever, longest


def _priority(asked: Asked, limits: TenantLimits) -> int:
    """Its tenant's, or lower if it asks for that."""
    if limits.priority is None:
        return asked.priority or 0
    return limits.priority if asked.priority is None else max(asked.priority, limits.priority)


def _default_output(limits: TenantLimits, context: int, prompt_tokens: int) -> int:
    """As much as may be, for a client that did not say."""
    most = [context - prompt_tokens]
    if limits.max_output_tokens:
        most.append(limits.max_output_tokens)
    if limits.tokens_per_minute:
        most.append(limits.tokens_per_minute - prompt_tokens)
    return max(1, min(most))
