"""What a server says of itself when it is up: what is really in effect, not what was asked for."""

from __future__ import annotations

import json
import shlex

from headway.engine import Engine


def banner(engine: Engine, name: str, url: str) -> str:
    """Model, precision, capacity and limits, and a command that gets an answer."""
    info, limits = engine.info, engine.scheduler.limits
    numerics = ", ".join(part for part in (info.instruction_set, info.precision, f"KV {info.kv_cache_dtype}") if part)
    kv_tokens = info.num_blocks * info.block_size
    body = {"model": name, "messages": [{"role": "user", "content": "What is a headway?"}], "max_tokens": 64}
    header = "Content-Type: application/json"
    curl = shlex.join(["curl", f"{url}/v1/chat/completions", "-H", header, "-d", json.dumps(body)])
    step = f"{limits.max_num_seqs} sequences and {limits.max_num_batched_tokens} tokens a step"
    rows = {
        "Model": f"{name} ({info.name}: {numerics}; {info.threads} threads)",
        "KV cache": f"{kv_tokens:,} tokens in {kv_tokens * info.kv_bytes_per_token / 2**30:.2f} GiB",
        "Limits": f"{step}; {engine.max_model_len:,} tokens a request; {engine.config.max_waiting} requests waiting",
        "Listening": url,
        "Try": curl,
    }
    return "\n".join(f"{label:<11}{text}" for label, text in rows.items())
