"""How many tokens a prompt has, before its worker says: exact where the model's tokenizer is known, else by its bytes.

The ratio of bytes to tokens is learnt per model from what workers report, on the very bytes it is applied to: the JSON
of messages and tools, or of a prompt. So it covers a template's own tokens and JSON's quotes on average.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from headway.core.request import PREFIX_TOKENS
from headway.gateway.fleet.scan import ChatSent, Scan

FIRST_RATIO = 4.0  # bytes in a token: English, in common vocabularies
LOWEST_RATIO, HIGHEST_RATIO = 0.25, 32.0
LEARN_RATE = 0.05
LEARN_FROM_TOKENS = 16  # a shorter prompt is mostly template
MAX_MODELS = 1024  # whose ratios are kept
# An image or a sound in JSON is no text: what it costs depends on the model, and this is a middling picture.
MEDIA_TOKENS = 1024
_MEDIA = re.compile(rb";base64,[A-Za-z0-9+/=_-]*")

# Affinity is found by leading blocks of so many bytes: about as many tokens as the core takes a block to have.
PREFIX_BYTES = int(PREFIX_TOKENS * FIRST_RATIO)
MAX_PREFIX_BLOCKS = 64


class Counter(Protocol):
    """Counts exactly. Thread-safe; may take long. Raises `InvalidRequest` for what its model's template refuses."""

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int: ...
    def text(self, text: str) -> int: ...


class Counting:
    """`exact`: by model name, those whose tokenizer is known."""

    def __init__(self, exact: Mapping[str, Counter] | None = None) -> None:
        self._exact = dict(exact or {})
        self._ratios: dict[str, float] = {}

    def know(self, exact: Mapping[str, Counter]) -> None:
        """These models' tokenizers are known from now on, and no others."""
        self._exact = dict(exact)

    def exactly(self, scan: Scan) -> Counter | None:
        """The counter for a call, where its model has one and its ids are not counted already."""
        return self._exact.get(scan.model) if self._exact and scan.token_ids is None else None

    def estimate(self, scan: Scan) -> int:
        """Tokens of all prompts together, at least 1. Costs a division."""
        if scan.token_ids is not None:
            return max(1, scan.token_ids)
        text_bytes, media = text_size(scan.text)
        return max(1, int(text_bytes / self.ratio(scan.model)) + media * MEDIA_TOKENS)

    def ratio(self, model: str) -> float:
        return self._ratios.get(model, FIRST_RATIO)

    def learn(self, scan: Scan, prompt_tokens: int) -> None:
        """What a worker counted. Of pictures nothing is learnt."""
        if scan.token_ids is not None or prompt_tokens < LEARN_FROM_TOKENS or b";base64," in scan.text:
            return
        seen = min(HIGHEST_RATIO, max(LOWEST_RATIO, len(scan.text) / prompt_tokens))
        known = self._ratios.get(scan.model)
        if known is not None:
            self._ratios[scan.model] = known + (seen - known) * LEARN_RATE
        elif len(self._ratios) < MAX_MODELS:
            self._ratios[scan.model] = seen


def text_size(text: bytes) -> tuple[int, int]:
    """Bytes that are text, and how many media parts stand between them."""
    if b";base64," not in text:
        return len(text), 0
    parts = [match.end() - match.start() for match in _MEDIA.finditer(text)]
    return len(text) - sum(parts), len(parts)


def count_exactly(counter: Counter, scan: Scan) -> int:
    """Blocking work. Raises `InvalidRequest` where the template refuses the conversation."""
    sent = scan.sent
    if isinstance(sent, ChatSent):
        tools = msgspec.json.decode(sent.tools) if bytes(sent.tools) else None
        return max(1, counter.chat(msgspec.json.decode(sent.messages), tools))
    prompts = msgspec.json.decode(sent.prompt)
    return max(1, sum(map(counter.text, [prompts] if isinstance(prompts, str) else prompts)))


def prefix_of(text: bytes, scope: str) -> tuple[int, ...]:
    """Chained hashes of the leading blocks: equal only where everything before is equal, within one scope."""
    chain = hash(scope)
    hashes = []
    for start in range(0, min(len(text) - PREFIX_BYTES + 1, MAX_PREFIX_BLOCKS * PREFIX_BYTES), PREFIX_BYTES):
        chain = hash((chain, text[start : start + PREFIX_BYTES]))
        hashes.append(chain)
    return tuple(hashes)
