"""OpenAI's error body, and the headers that tell a refused client when to come back."""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from headway.core.errors import MAX_RETRY_AFTER_S, HeadwayError, Refused


class Error(Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct, kw_only=True):
    error: Error


def error_body(error: HeadwayError) -> bytes:
    """The JSON an error is answered with; inside a stream the same object is an event's data."""
    return msgspec.json.encode(
        ErrorBody(error=Error(message=error.message, type=error.type, param=error.param, code=error.code))
    )


def error_text(body: bytes | str) -> str:
    """The words in anybody's error body: OpenAI's shape, the other usual ones, or the text itself."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body if isinstance(body, str) else body.decode("utf-8", "replace")
    while isinstance(value, dict):
        told = next((value[name] for name in ("error", "message", "detail", "msg") if value.get(name)), None)
        if told is None:
            break
        value = told
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def retry_headers(error: HeadwayError) -> dict[str, str]:
    """`Retry-After` in whole seconds, 1 to 60, and `retry-after-ms`, for errors that waiting can cure."""
    if not isinstance(error, Refused):
        return {}
    wait_s = min(max(error.retry_after_s, 0.001), MAX_RETRY_AFTER_S)
    return {"Retry-After": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(wait_s * 1000))}
