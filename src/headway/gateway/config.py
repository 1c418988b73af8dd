"""The few numbers the HTTP edge needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    served_model_name: str = ""  # empty: the model's own
    # Where fields that a request leaves out come from: the model's makers, or OpenAI's API alone.
    generation_config: Literal["auto", "none"] = "auto"
    secret: str = field(default="", repr=False)  # who does not present it as a bearer token is nobody; empty: no secret
    # Under whose names numbers are told as well as under our own.
    metrics_names: Literal["headway", "vllm"] = "headway"
    allowed_origins: tuple[str, ...] = ()  # whose web pages may read answers; "*" is anybody's
    # Connection pools in front of servers keep idle connections for up to 600 s. A server that
    # closes first loses a request that is already on its way, so ours outlives them.
    keepalive_timeout_s: float = 650.0
    body_timeout_s: float = 60.0  # for a request body to arrive, from its first header
    # A client that stops reading holds its undelivered tokens (at most n x max_tokens deltas) and a socket buffer for
    # this long; then it is cut off and its sequences are cancelled.
    write_timeout_s: float = 60.0
    tokenise_threads: int = 2  # for prompts; /tokenize and /detokenize have one of their own
    shutdown_timeout_s: float = 5.0  # for handlers to end after the listening socket is closed
    max_header_bytes: int = 16 * 1024  # of a request line, and of one header field
