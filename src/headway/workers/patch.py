"""`patched`: a client's body with what was decided about it, and not a byte more.

A value that the client sent and that was not decided about reaches the worker as it was written, digit by digit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.wire.json_fields import JsonFields
from headway.workers.kinds import Kind
from headway.workers.worker import Call

# Fields that are ours and no server's.
OWN_FIELDS = ("headway",)


@dataclass(slots=True)
class Patched:
    body: bytes
    usage_added: bool = False  # the stream will carry a usage event that the client did not ask for


def generates(call: Call) -> bool:
    """Is it a call whose body and answer are known here? All others are passed on as they are."""
    return call.method == "POST" and call.path.partition("?")[0] in ("/v1/chat/completions", "/v1/completions")


def patched(call: Call, kind: Kind, *, sends_priority: bool = False) -> Patched:
    """Raises `InvalidRequest` for a body that is no JSON object, or has a key twice."""
    if not generates(call):
        return Patched(call.body)
    fields, decided = JsonFields(call.body), call.decided
    for name in OWN_FIELDS:
        fields.set(name, None)
    for name, value in decided.replaced.items():
        fields.set(name, value)
    if decided.model is not None:
        fields.set("model", _json(decided.model))
    if decided.max_tokens is not None:
        _limit(fields, kind, decided.max_tokens)
    if decided.priority is not None:
        takes = sends_priority if kind.takes_priority is None else kind.takes_priority
        fields.set("priority", b"%d" % (decided.priority * kind.priority_sign) if takes else None)
    if decided.cache_salt is not None and kind.takes_salt:
        fields.set("cache_salt", _json(_salt(decided.cache_salt, fields.raw("cache_salt"))))
    added = call.streams and decided.usage and _ask_usage(fields)
    return Patched(fields.encoded(), added)


def _limit(fields: JsonFields, kind: Kind, most_tokens: int) -> None:
    """Lower whatever limits the output. Where nothing does, the first name that is known everywhere is added."""
    limited = False
    for name in kind.limit_names:
        asked = _decoded(fields.raw(name))
        if isinstance(asked, int | float) and not isinstance(asked, bool):
            limited = True
            if asked > most_tokens or asked < 0:  # llama.cpp's -1 is no limit
                fields.set(name, b"%d" % most_tokens)
    if not limited:
        fields.set(kind.limit_names[0], b"%d" % most_tokens)
    least = _decoded(fields.raw("min_tokens"))
    if isinstance(least, int) and not isinstance(least, bool) and least > most_tokens:
        fields.set("min_tokens", b"%d" % most_tokens)  # servers refuse more


def _salt(tenant: str, asked: bytes | None) -> str:
    """A client's own salt divides its tenant's prefixes further; it cannot lead to another tenant's."""
    own = _decoded(asked)
    if not isinstance(own, str) or not own:
        return tenant
    return f"{tenant}.{hashlib.blake2b(own.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _ask_usage(fields: JsonFields) -> bool:
    """Ask for the usage at the end of a stream. True when the client had not."""
    raw = fields.raw("stream_options")
    options = _decoded(raw)
    if options is None:
        fields.set("stream_options", b'{"include_usage":true}')
        return True
    if raw is None or not isinstance(options, dict) or options.get("include_usage") is True:
        return False  # what is no object the worker refuses, in its own words
    inner = JsonFields(raw, name="`stream_options`")
    inner.set("include_usage", b"true")
    fields.set("stream_options", inner.encoded())
    return True


def _decoded(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def _json(value: str) -> bytes:
    return msgspec.json.encode(value)
