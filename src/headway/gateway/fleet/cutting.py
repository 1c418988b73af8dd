"""Making a call smaller, as the ladder or its limits decided: parts its client called optional, and its oldest turns.

Nothing is rewritten: whole messages and tools are left out, and what stays is byte for byte what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw, Struct

from headway.core.errors import ContextLengthExceeded, InvalidRequest
from headway.gateway.fleet.scan import ChatSent, Scan

_OPTIONAL = re.compile(r"(?:tools:(?P<tool>.{1,256})|messages:(?P<message>[0-9]{1,6}))", re.DOTALL)
_ALWAYS = frozenset({"system", "developer"})


class _Turn(Struct):
    role: str = ""


class _Function(Struct):
    name: str = ""


class _Tool(Struct):
    function: _Function = msgspec.field(default_factory=_Function)


_raws = msgspec.json.Decoder(list[Raw])
_turn = msgspec.json.Decoder(_Turn)
_tool = msgspec.json.Decoder(_Tool)

Fields = dict[str, bytes | None]  # of a body: their new JSON, None to take them out


def drop_optional(scan: Scan) -> Fields:
    """The call without what its client can do without. Raises `InvalidRequest` for a name that is no part of it."""
    sent = scan.sent
    if not isinstance(sent, ChatSent):
        raise _not_optional("only a chat has parts that can be left out")
    messages = _list(sent.messages, "messages")
    tools = _list(sent.tools, "tools") if bytes(sent.tools)[:1] == b"[" else []
    names = [_named(tool) for tool in tools]
    unwanted_tools: set[str] = set()
    unwanted: set[int] = set()
    for one in scan.optional:
        found = _OPTIONAL.fullmatch(one)
        if found is None:
            raise _not_optional(f"{one[:80]!r} is neither tools:NAME nor messages:INDEX")
        if (tool := found["tool"]) is not None:
            if tool not in names:
                raise _not_optional(f"there is no tool {tool[:80]!r}")
            unwanted_tools.add(tool)
        else:
            place = int(found["message"])
            if place >= len(messages):
                raise _not_optional(f"there is no message {place}; the last is {len(messages) - 1}")
            unwanted.add(place)
    fields: Fields = {}
    if unwanted:
        kept = [message for place, message in enumerate(messages) if place not in unwanted]
        if not kept:
            raise _not_optional("every message is called optional; one at least has to stay")
        fields["messages"] = _joined(kept)
    if unwanted_tools:
        kept = [tool for tool, name in zip(tools, names, strict=True) if name not in unwanted_tools]
        fields["tools"] = _joined(kept) if kept else None
        if not kept:
            fields["tool_choice"] = None  # there is nothing to choose from
    return fields


def check_optional(scan: Scan) -> None:
    """Raises what `drop_optional` would, so that a wrong name is told on a quiet day as well."""
    if scan.optional:
        drop_optional(scan)


def trim(scan: Scan, tokens: int, to_tokens: int, count: Callable[[Fields], int]) -> tuple[Fields, int]:
    """Drop the oldest turns until `count` of the messages is at most `to_tokens`; tells what it came to.

    A turn is a user's message with all that answers it, tool results included; instructions (system, developer) and
    the last turn stay. Raises ContextLengthExceeded when that alone is too long.
    """
    sent = scan.sent
    if not isinstance(sent, ChatSent):
        raise _too_long("A plain prompt has no turns that could be dropped", tokens, to_tokens, "prompt")
    messages = _list(sent.messages, "messages")
    turns = _turns([_role(message) for message in messages])
    dropped: set[int] = set()
    fields: Fields = {}
    for turn in turns[:-1]:
        if tokens <= to_tokens:
            break
        dropped.update(turn)
        fields = {"messages": _joined([message for place, message in enumerate(messages) if place not in dropped])}
        tokens = count(fields)
    if tokens > to_tokens:
        raise _too_long("The instructions and the last turn alone are too long", tokens, to_tokens, "messages")
    return fields, tokens


def _turns(roles: Sequence[str]) -> list[list[int]]:
    """Places of the messages of each turn, instructions aside. What precedes the first user is a turn as well."""
    turns: list[list[int]] = [[]]
    for place, role in enumerate(roles):
        if role in _ALWAYS:
            continue
        # Two messages of a user in a row are one turn: the last question may have been sent in parts.
        if role == "user" and turns[-1] and roles[turns[-1][-1]] != "user":
            turns.append([])
        turns[-1].append(place)
    return turns


def _list(raw: Raw, field: str) -> list[Raw]:
    try:
        return _raws.decode(raw)
    except msgspec.DecodeError:
        raise InvalidRequest(f"`{field}` must be a list.", param=field, code="invalid_value") from None


def _role(message: Raw) -> str:
    try:
        return _turn.decode(message).role
    except msgspec.DecodeError:
        return ""


def _named(tool: Raw) -> str:
    try:
        return _tool.decode(tool).function.name
    except msgspec.DecodeError:
        return ""


def _joined(parts: Sequence[Raw]) -> bytes:
    return b"[" + b",".join(map(bytes, parts)) + b"]"


def _not_optional(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value for `headway.optional`: {why}.", param="headway.optional", code="invalid_value"
    )


def _too_long(what: str, tokens: int, to_tokens: int, param: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"{what}: {tokens} tokens, and at most {to_tokens} are taken. Shorten it.", param=param
    )
