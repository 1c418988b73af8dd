"""Bytes of a request body -> a typed request, or an `InvalidRequest` that names the field.

msgspec finds what is wrong and where; this file says it in a client's words: the field, the value it sent, what is
accepted instead. Reading the body a second time for that is fine, since only refused requests pay for it.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from headway.core.errors import InvalidRequest
from headway.wire import limits

T = TypeVar("T")

# Quoted strings are skipped so that brackets inside them do not count. Possessive, and content with an unclosed last
# string: a hostile body must cost one pass, no backtracking.
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `\$?(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.+)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")

# What to do, where the bare rule would leave a client guessing. Keyed by the last name of the path.
_ADVICE = {
    "role": "Use one of system, developer, user, assistant, tool, function",
    "type": "This server takes text, and tools of type function",
    "stop": f"Send at most {limits.MAX_STOP_STRINGS} strings of 1 to {limits.MAX_STOP_CHARS} characters each",
    "n": f"Ask for 1 to {limits.MAX_SAMPLES} samples",
    "seed": "Send a 64-bit signed integer",
    "prompt": "Send a string, a list of strings, a list of token ids or a list of lists of token ids",
}


# Types of message parts that other models take.
_OTHER_MEDIA = re.compile(r"(?:input_)?(?:image|audio|video|file)(?:_url)?")
_PART_TYPE = re.compile(r"messages\[\d+\]\.content\[\d+\]\.type")


def parse(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode and validate `body`. Raises `InvalidRequest`, never anything else."""
    _check_text(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error), body) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"The request body is not valid JSON: {error}. Send one JSON object in UTF-8; "
            "NaN and Infinity are not JSON.",
            code="invalid_json",
        ) from None


def _check_text(body: bytes) -> None:
    if not body.strip():
        raise InvalidRequest("The request body is empty. Send a JSON object.", code="invalid_json")
    if len(body) > limits.MAX_BODY_BYTES:
        raise InvalidRequest(
            f"The request body has {len(body):,} bytes; the limit is {limits.MAX_BODY_BYTES:,}. Send less.",
            code="request_too_large",
        )
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The request body is not UTF-8 (byte {error.start}). Encode it as UTF-8.", code="invalid_json"
        ) from None
    if body.count(b"[") + body.count(b"{") > limits.MAX_NESTING and _depth(body) > limits.MAX_NESTING:
        raise InvalidRequest(
            f"The request body nests arrays and objects deeper than {limits.MAX_NESTING} levels. Flatten it.",
            code="invalid_json",
        )


def _depth(body: bytes) -> int:
    """How deep `body` nests, without recursion: a hostile body must not cost a stack."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(body):
        token = match[0]
        if token in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in b"]}":
            depth -= 1
    return deepest


def _explain(problem: str, body: bytes) -> InvalidRequest:
    match = _MESSAGE.fullmatch(problem)
    assert match is not None  # the pattern matches anything
    what, path = match["what"], match["path"] or ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        param = f"{path}.{missing['field']}".removeprefix(".")
        return InvalidRequest(f"`{param}` is required; add it.", param=param, code="missing_required_parameter")
    if not path:
        return InvalidRequest(f"The request body is wrong: {what}. Send one JSON object.", code="invalid_json")
    param = path.removesuffix("[...]").removeprefix(".")  # msgspec does not tell which key of a mapping
    name = _STEP.findall("." + param)
    if _PART_TYPE.fullmatch(param) and isinstance(kind := _sent(body, name), str) and _OTHER_MEDIA.fullmatch(kind):
        return InvalidRequest(
            f"`{param}` is {kind}; this server's models take text only. Leave that part out.",
            param=param,
            code="unsupported_feature",
        )
    advice = _ADVICE.get(next((field for field, _ in reversed(name) if field), ""))
    wrong = what[0].lower() + what[1:].replace("`", "")
    if not path.endswith("[...]") and not wrong.startswith("invalid enum value"):
        value = _sent(body, name)
        wrong += "" if value is msgspec.UNSET else f"; got {_shown(value)}"
    return InvalidRequest(
        f"Invalid value for `{param}`: {wrong}." + (f" {advice}." if advice else ""),
        param=param,
        code="invalid_value",
    )


def _sent(body: bytes, path: list[tuple[str, str]]) -> Any:
    """What the client sent there. UNSET when it cannot be found: a hint must never cost the answer."""
    try:
        value = msgspec.json.decode(body)
        for field, index in path:
            value = value[field] if field else value[int(index)]
        return value
    except Exception:  # a number no type can hold, or of two equal keys the other one, which has no such path
        return msgspec.UNSET


def _shown(value: Any) -> str:
    if isinstance(value, (str, list, dict)) and len(value) > 60:
        kind = "characters" if isinstance(value, str) else "items" if isinstance(value, list) else "entries"
        return f"one of {len(value):,} {kind}"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."
