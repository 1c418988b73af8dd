"""What is read of a call that is passed on: only what somebody here decides by. The rest of its body is its worker's.

Parts that are only measured, cut and hashed (`messages`, `tools`, `prompt`) stay as they came, in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from headway.core.errors import InvalidRequest
from headway.wire import limits
from headway.wire.parse import parse
from headway.wire.requests import Model, StreamOptions, TokenCount

COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
MAX_OPTIONAL = 1024

_Count = Annotated[int, Meta(ge=1, le=limits.MAX_SAMPLES)] | None
_Priority = Annotated[int, Meta(ge=-limits.MAX_PRIORITY, le=limits.MAX_PRIORITY)] | None
_Salt = Annotated[str, Meta(max_length=limits.MAX_CACHE_SALT_CHARS)] | None
_NOTHING = Raw(b"")


class Wishes(Struct, kw_only=True):
    """The field `headway` of a body, which is ours and travels no further."""

    optional: Annotated[list[str], Meta(max_length=MAX_OPTIONAL)] = []
    background: bool = False  # as the body's own field of that name
    batch: bool = False  # answer it now if there is room, later otherwise


class _Sent(Struct, kw_only=True):
    model: Model = None
    max_tokens: TokenCount | None = None
    n: _Count = None
    priority: _Priority = None
    cache_salt: _Salt = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    headway: Wishes | None = None


class ChatSent(_Sent, kw_only=True):
    messages: Raw
    tools: Raw = _NOTHING
    max_completion_tokens: TokenCount | None = None


class CompletionSent(_Sent, kw_only=True):
    prompt: Raw


_chat = msgspec.json.Decoder(ChatSent)
_completion = msgspec.json.Decoder(CompletionSent)
_prompts = msgspec.json.Decoder(list[Any])


class Scan:
    """One call, as far as it was read."""

    __slots__ = ("body", "max_tokens", "prompts", "samples", "sent", "text", "token_ids")

    def __init__(self, body: bytes, sent: ChatSent | CompletionSent) -> None:
        self.body = body
        self.sent = sent
        self.samples = sent.n or 1
        self.prompts = 1
        self.token_ids: int | None = None  # in the prompt, where it came as ids
        # What is counted and hashed. Templates put tools before messages.
        if isinstance(sent, ChatSent):
            self.max_tokens = sent.max_completion_tokens or sent.max_tokens
            tools, messages = bytes(sent.tools), bytes(sent.messages)
            self.text = tools + messages if tools[:1] == b"[" else messages
        else:
            self.max_tokens = sent.max_tokens or COMPLETION_TOKENS
            self.text = bytes(sent.prompt)

    def changed(self, fields: Mapping[str, bytes | None]) -> Scan:
        """The same call with other messages or tools, as it is to be counted. Its body stays what was sent."""
        replaced = {name: Raw(value or b"") for name, value in fields.items() if name in {"messages", "tools"}}
        scan = Scan(self.body, msgspec.structs.replace(self.sent, **replaced))
        scan.prompts, scan.token_ids = self.prompts, self.token_ids
        return scan

    @property
    def model(self) -> str:
        return self.sent.model or ""

    @property
    def stream(self) -> bool:
        return bool(self.sent.stream)

    @property
    def wants_usage(self) -> bool:
        options = self.sent.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def background(self) -> bool:
        return bool(self.sent.background or (self.sent.headway is not None and self.sent.headway.background))

    @property
    def batch(self) -> bool:
        """Nobody waits for it; or somebody who can be told to come back."""
        return self.background or (self.sent.headway is not None and self.sent.headway.batch)

    @property
    def optional(self) -> Sequence[str]:
        return self.sent.headway.optional if self.sent.headway is not None else ()

    @property
    def prompt_field(self) -> str:
        return "messages" if isinstance(self.sent, ChatSent) else "prompt"

    @property
    def max_tokens_field(self) -> str:
        newer = isinstance(self.sent, ChatSent) and self.sent.max_completion_tokens is not None
        return "max_completion_tokens" if newer else "max_tokens"


def scan_chat(body: bytes) -> Scan:
    """Raises `InvalidRequest`, naming the field."""
    sent = parse(body, _chat)
    messages, tools = bytes(sent.messages), bytes(sent.tools)
    if messages[:1] != b"[":
        raise _wrong("messages", "it must be a list of messages")
    if messages[1:].lstrip()[:1] == b"]":
        raise _wrong("messages", "it is empty; send at least one message")
    if tools[:1] not in (b"[", b"n", b""):
        raise _wrong("tools", "it must be a list of tools")
    return Scan(body, sent)


def scan_completion(body: bytes) -> Scan:
    """Raises `InvalidRequest`, naming the field."""
    scan = Scan(body, parse(body, _completion))
    if scan.text[:1] == b'"':
        return scan
    try:
        prompts = _prompts.decode(scan.text)
    except msgspec.DecodeError:
        raise _wrong(
            "prompt", "send a string, a list of strings, a list of token ids or a list of such lists"
        ) from None
    if not prompts:
        raise _wrong("prompt", "it is empty; send at least one token")
    if all(type(token) is int for token in prompts):
        scan.token_ids = len(prompts)
        return scan
    scan.prompts = len(prompts)
    if scan.prompts * scan.samples > limits.MAX_SEQUENCES:
        raise _wrong("n", f"prompts times n come to {scan.prompts * scan.samples}; the limit is {limits.MAX_SEQUENCES}")
    if all(isinstance(one, list) and all(type(token) is int for token in one) for one in prompts):
        scan.token_ids = sum(map(len, prompts))
    elif not all(isinstance(one, str) for one in prompts):
        raise _wrong("prompt", "it mixes kinds; send strings, or lists of token ids")
    return scan


def _wrong(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for `{param}`: {what}.", param=param, code="invalid_value")
