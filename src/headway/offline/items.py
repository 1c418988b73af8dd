"""`Item`: one line of the input, what it asks, and what is known of it before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
URLS = (CHAT, COMPLETIONS)

# Items that agree in so many characters share enough to run together; about as many tokens as a few blocks hold.
SHARED_CHARS = 256
CHARS_PER_TOKEN = 4
UNKNOWN_OUTPUT_TOKENS = 256


@dataclass(slots=True)
class Item:
    """`body` is what is sent. `body_hash` is of the body as it stood in the input: with `key` it tells items apart."""

    line: int
    custom_id: str
    url: str
    body: bytes
    key: int
    body_hash: int
    prepared: Any = None  # what a worker made of it beforehand


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no item. `custom_id` is None where it has none, or one that is another line's."""

    line: int
    custom_id: str | None
    code: str
    message: str
    key: int
    body_hash: int = 0


@dataclass(frozen=True, slots=True)
class Sketch:
    """What decides about an item's place in the order. Tokens are guessed from characters where nobody counted."""

    group: int
    input_tokens: int
    output_tokens: int


def hash64(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def key_of_id(custom_id: str) -> int:
    return hash64(custom_id.encode("utf-8", "surrogatepass"))


def key_of_line(line: int) -> int:
    """Of a line that has no id of its own."""
    return hash64(b"\0line %d" % line)


def hash_of_body(url: str, body: bytes) -> int:
    return hash64(url.encode() + b"\0" + body)


class _Asked(msgspec.Struct):
    messages: Any = None
    prompt: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None


_asked = msgspec.json.Decoder(_Asked)


def sketch(item: Item) -> Sketch:
    """From the body alone. Never fails: what is wrong with it, whoever runs it says."""
    try:
        asked = _asked.decode(item.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Sketch(0, 1, 1)
    if isinstance(asked.messages, list):
        shared, text = _chat_text(asked.messages)
        tokens = len(text) // CHARS_PER_TOKEN
    else:
        shared, text, tokens = SHARED_CHARS, *_prompt_text(asked.prompt)
    limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    output = limit if _is_count(limit) else UNKNOWN_OUTPUT_TOKENS
    samples = asked.n if _is_count(asked.n) else 1
    group = hash64(text[:shared].encode("utf-8", "surrogatepass")) if len(text) >= shared else 0
    return Sketch(group, max(1, tokens), output * samples)


def _chat_text(messages: list[Any]) -> tuple[int, str]:
    """The conversation, and how much of it items are grouped by: its instructions, if they are long enough."""
    texts = [f"{one.get('role')}:{_content(one.get('content'))}\n" for one in messages if isinstance(one, dict)]
    first = messages[0].get("role") if messages and isinstance(messages[0], dict) else ""
    shared = max(SHARED_CHARS, len(texts[0])) if first in ("system", "developer") and len(texts) > 1 else SHARED_CHARS
    return shared, "".join(texts)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _prompt_text(prompt: Any) -> tuple[str, int]:
    """Its text, and how many tokens that is. Token ids are their own text."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return ",".join(map(str, prompt[:SHARED_CHARS])), len(prompt)
    if isinstance(prompt, list):
        texts = [_prompt_text(one) for one in prompt]
        return "\n".join(text for text, _ in texts), sum(tokens for _, tokens in texts)
    text = prompt if isinstance(prompt, str) else ""
    return text, len(text) // CHARS_PER_TOKEN


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
