"""`--goal`: five sets of settings to begin with, each setting with its reason. Flags and the file overrule them.

They set nothing that depends on the machine or the model (memory, threads, precision), and nothing of tenants but what
keeps them apart. Times are what people accept, not what this machine can do: `headway tune` is for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Body = Literal["engine", "gateway"]


@dataclass(frozen=True, slots=True)
class Choice:
    """`only`: what it is set for, where that is not both. How many slots there are, a gateway does not know."""

    value: Any
    why: str
    only: Body | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """`choices` by field of `ServeConfig` or `EngineConfig`."""

    about: str
    choices: Mapping[str, Choice]

    def of(self, body: Body) -> Mapping[str, Choice]:
        return {name: choice for name, choice in self.choices.items() if choice.only in (None, body)}


GOALS: Mapping[str, Goal] = {
    "chat": Goal(
        "people who read along",
        {
            "slo_ttft": Choice(1.0, "a second is about what feels like an answer to a question"),
            "slo_itl": Choice(0.15, "as fast as people read: about five words a second"),
            "queue_timeout": Choice(20.0, "who has waited so long for a first word has gone, or asks again"),
            "max_waiting": Choice(
                256, "more would only wait in vain; refused at once, a client can go elsewhere", "engine"
            ),
            "max_num_seqs": Choice(32, "every running sequence makes every token of all others later", "engine"),
            "long_prompt_tokens": Choice(2048, "a usual conversation is not long; a pasted document is"),
            "long_prompt_slots": Choice(4, "a pasted document must not hold up short questions", "engine"),
            "overlong": Choice(
                "trim", "a conversation goes on without its oldest turns rather than ending in an error", "gateway"
            ),
        },
    ),
    "throughput": Goal(
        "most tokens a second, while somebody still waits for each answer",
        {
            "max_num_seqs": Choice(256, "wide batches share the reading of the weights", "engine"),
            "max_num_batched_tokens": Choice(
                1024, "long steps waste less between them; streams stutter for it", "engine"
            ),
            "pace": Choice(False, "nothing is promised between tokens, so prefill is not held back for it", "engine"),
            "long_prompt_slots": Choice(256, "no class of work is held back while there are slots", "engine"),
            "long_output_slots": Choice(256, "as for long prompts", "engine"),
            "max_waiting": Choice(4096, "a full queue keeps the batch full"),
            "max_waiting_tokens": Choice(4_000_000, "as for their number"),
            "queue_timeout": Choice(120.0, "longer than any client's patience is work for nobody"),
        },
    ),
    "offline": Goal(
        "batches that nobody watches: everything is answered, nothing is made less of",
        {
            "max_num_seqs": Choice(256, "wide batches share the reading of the weights", "engine"),
            "max_num_batched_tokens": Choice(
                2048, "nobody reads along, so a step may take as long as it takes", "engine"
            ),
            "pace": Choice(False, "nothing is promised between tokens", "engine"),
            "long_prompt_slots": Choice(256, "no class of work is held back while there are slots", "engine"),
            "long_output_slots": Choice(256, "as for long prompts", "engine"),
            "max_waiting": Choice(100_000, "a batch arrives at once, and waiting is what it is for"),
            "max_waiting_tokens": Choice(1_000_000_000, "as for their number"),
            "queue_timeout": Choice(0.0, "nothing is too late"),
            "age_bound": Choice(0.0, "nobody waits, so nobody is lifted over others"),
            "drain_timeout": Choice(600.0, "what is half done is not thrown away on a restart"),
            "overlong": Choice("reject", "a result must be of the whole input, or be an error", "gateway"),
            "ladder": Choice(
                (
                    "clamp_output=off",
                    "demote_long=off",
                    "shed_low_priority=off",
                    "drop_optional=off",
                    "shorten_context=off",
                ),
                "a full queue is as it should be: no answer is cut for it",
                "gateway",
            ),
        },
    ),
    "long-docs": Goal(
        "long prompts, short answers",
        {
            "max_num_seqs": Choice(16, "few sequences with much KV each", "engine"),
            "max_num_batched_tokens": Choice(1024, "a long prompt is computed in few steps", "engine"),
            "slo_itl": Choice(0.3, "answers may come more slowly while other documents are read"),
            "kv_full": Choice("wait", "a document that lost its KV would be computed from its beginning", "engine"),
            "long_prompt_tokens": Choice(8192, "what is long here"),
            "long_prompt_slots": Choice(
                12, "most of the work is long; some slots are kept for questions about it", "engine"
            ),
            "max_waiting": Choice(128, "each that waits is many seconds of work", "engine"),
            "max_waiting_tokens": Choice(4_000_000, "a smaller limit would be full with a few of them"),
            "queue_timeout": Choice(120.0, "reading takes long, and so may waiting for it"),
            "kv_claim_ratio": Choice(
                1.0, "workers are promised no more KV than they have, for the same reason", "gateway"
            ),
            "overlong": Choice(
                "reject", "an answer about half a document is wrong, and nobody would notice", "gateway"
            ),
        },
    ),
    "multi-tenant": Goal(
        "many who pay for themselves and must not feel each other",
        {
            "prefix_cache_scope": Choice("tenant", "nobody finds out by timing what another has asked", "engine"),
            "slo_ttft": Choice(2.0, "a promise to each, so that who floods the queue is the one who is late"),
            "slo_itl": Choice(0.2, "as for the first token"),
            "age_bound": Choice(15.0, "a low priority of one tenant still moves"),
            "queue_timeout": Choice(30.0, "an honest 503 is better than a late answer, and is retried elsewhere"),
            "long_prompt_slots": Choice(
                16, "one tenant's long prompts leave slots for everybody's short ones", "engine"
            ),
            "long_output_slots": Choice(32, "as for long prompts", "engine"),
            "max_waiting": Choice(2048, "room for all: each tenant's own limit is what bounds it"),
            "kv_claim_ratio": Choice(1.5, "worst cases seldom come together, but not without bound", "gateway"),
            "overlong": Choice("reject", "each tenant decides itself what to leave out", "gateway"),
        },
    ),
}
