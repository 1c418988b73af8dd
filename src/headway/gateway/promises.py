"""What a client's headers say about time: `x-slo-ttft-ms`, `x-slo-itl-ms`, `x-ttft-limit-ms`, over the server's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headway.core.errors import InvalidRequest
from headway.core.request import Slo

NS_PER_MS = 1_000_000
MAX_MS = 3_600_000

# Header -> the part of an `Slo` it replaces, and what it says.
HEADERS = {
    "x-slo-ttft-ms": ("ttft_ns", "How soon after its arrival the first token is promised"),
    "x-slo-itl-ms": ("itl_ns", "How soon after each token the next is promised"),
    "x-ttft-limit-ms": ("ttft_limit_ns", "How late the first token may be before the request is better refused"),
}


def slo_of(headers: Mapping[str, str], default: Slo) -> Slo:
    """`default` with what the headers replace; 0 takes a promise away. Raises `InvalidRequest` naming the header."""
    asked = {field: _ns(name, headers[name]) for name, (field, _) in HEADERS.items() if name in headers}
    return replace(default, **asked) if asked else default


def _ns(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_MS:  # NaN is neither
        raise InvalidRequest(
            f"The header {name} must be a number of milliseconds between 0 and {MAX_MS:,}, not {text[:40]!r}.",
            param=name,
            code="invalid_value",
        )
    return int(value * NS_PER_MS)
