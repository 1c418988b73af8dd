"""What helps against each cause of `CAUSES`, in general: for `headway explain` and docs/concepts/four-symptoms.md.

A finding's own changes have this server's numbers; a test holds that no setting is named here that they would not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "slot-limit": "more slots (--max-num-seqs); another replica where a larger batch yields no more",
        "kv-exhausted": "more KV (--kv-cache-gib), half the bytes a token (--kv-cache-dtype u8), a lower "
        "--max-model-len, or a replica",
        "preemption-thrash": "fewer slots (--max-num-seqs), more KV (--kv-cache-gib), or --kv-full wait",
        "long-prompt-interference": "a lane of their own (--long-prompt-tokens, --long-prompt-slots), --slo-itl, or a "
        "smaller --max-num-batched-tokens",
        "overload": "another replica; --ttft-limit refuses early what would be late",
        "decode-starvation": "--slo-itl, or a smaller --max-num-batched-tokens; prompts on workers of their own",
        "oversized-batch": "fewer slots (--max-num-seqs) and more replicas, or a promise (--slo-itl)",
        "slow-machine": "a smaller or more quantised model, or a faster device",
        "engine-stalls": "its log and the kernel's tell what stopped it; no other work on its processors; cores of its "
        "own, and as many --threads",
        "long-outputs": "a limit (--clamp-output-tokens), a lane of their own (--long-output-slots), or long work "
        "later",
        "full-windows": "headway doctor of each worker tells why; another worker; --ttft-limit",
        "bursts": "a bound on the queue (--max-waiting, --ttft-limit), replicas by the peak, batch work at a lower "
        "priority",
        "hot-worker": "routing by queue and KV, as headway serve --worker does",
        "slow-worker": "drain it and look at its machine, or a lower weight",
        "cold-cache": "warm it before traffic comes; more KV (--kv-cache-gib); what prompts share first in them",
        "long-prompts": "shorter prompts, what they share first in them, or a higher --max-num-batched-tokens",
        "slow-preprocessing": "a faster tokenizer, another process for the server's front, or shorter prompts",
        "network-delay": "serve nearer to the users; no proxy that buffers streams",
        "client-limited": "more cores for headway bench (--processes), or another machine",
    }
)
