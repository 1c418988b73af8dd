"""What the gateway needs behind it. `engine.Engine` fits; so does a fake, or later a remote worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from headway.core.request import Request, Times, Usage
from headway.core.step import TokenLogprob
from headway.metrics.exporter import SnapshotView


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Tokenizer(Protocol):
    """Text <-> token ids. Called from several threads at once."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = True) -> list[list[int]]: ...
    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token: int) -> bytes: ...
    def token_text(self, token: int) -> str: ...


class ChatTemplate(Protocol):
    """Messages -> prompt text. Raises `InvalidRequest` for what the model's template does not take."""

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str: ...


class DeltaView(Protocol):
    """What is new in one output. The last one carries `finish_reason`, `usage` and `times`."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[TokenLogprob] | None: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def usage(self) -> Usage | None: ...
    @property
    def times(self) -> Times | None: ...


class TokenStream(Protocol):
    """One output as it appears; raises a `HeadwayError` when it is lost. `close` cancels and is idempotent."""

    def __aiter__(self) -> AsyncIterator[DeltaView]: ...
    def close(self) -> None: ...


class Backend(Protocol):
    @property
    def model(self) -> Named: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def ready(self) -> bool: ...
    @property
    def not_ready_reason(self) -> str: ...
    def check_door(self) -> None:
        """Raise the `HeadwayError` with which any request at all would be refused now."""

    def submit(self, request: Request) -> TokenStream:
        """Take a request in, or raise the `HeadwayError` that says why not."""

    def snapshot(self) -> SnapshotView: ...
