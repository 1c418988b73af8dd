"""What the doctor makes of `metrics.server_names`: whose signals they are, and what cannot be told without them."""

from __future__ import annotations

from types import MappingProxyType

# What tells an engine from another in one text; and one text from another in one Prometheus.
ENGINES, INSTANCES = ("worker", "engine", "dp_rank"), ("instance", "pod")

# Without these a rule is blind; with each, what cannot be told.
WANTED = MappingProxyType({
    "running": "sequences running: batches and slots cannot be judged",
    "waiting": "requests waiting: a queue cannot be told from slow work",
    "kv_ratio": "KV in use: a full cache cannot be seen",
    "ttft_s": "TTFT: only what the queue says of it is known",
    "itl_s": "ITL: slow streams cannot be seen",
    "queue_s": "queue times: they are taken from the queue's length (Little's law)",
    "prefill_s": "prefill times: own work and interference are not told apart",
    "preemptions": "preemptions: thrashing cannot be seen",
    "lookup_tokens": "prefix cache lookups: a cold cache cannot be seen",
})  # fmt: skip
