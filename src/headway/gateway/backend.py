"""What the gateway needs behind it. `engine.Engine` fits; so does a fake, or later a remote worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from headway.core.request import Request, Slo
from headway.engine.factories import TextTokenizer
from headway.engine.stream import Delta
from headway.metrics.snapshot import RecentStep, Snapshot


class ServedModel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        """What its makers recommend, by the names of `SamplingParams`."""


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


class TokenStream(Protocol):
    """One output as it appears; raises a `HeadwayError` when it is lost. `close` cancels and is idempotent."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...
    def close(self) -> None: ...


class Backend(Protocol):
    @property
    def model(self) -> ServedModel: ...
    @property
    def tokenizer(self) -> TextTokenizer:
        """Called from several threads at once."""

    @property
    def chat_template(self) -> ChatTemplate: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def not_ready_reason(self) -> str:
        """Why no request is taken at the moment; empty when one would be."""

    @property
    def dead(self) -> bool:
        """Down for good: only a new process can help. `not_ready_reason` says why."""

    @property
    def default_slo(self) -> Slo:
        """What a request is promised that does not say otherwise."""

    @property
    def config(self) -> Any:
        """The configuration as it is, a dataclass."""

    def reconfigure(self, /, **changes: Any) -> Any:
        """Change settings while serving, all or none. Returns the new configuration, or raises `ConfigError`."""

    def lane_of(self, request: Request) -> str:
        """The class of work that it belongs to."""

    def check_door(self) -> None:
        """Raise the `HeadwayError` with which any request at all would be refused now."""

    def submit_all(self, requests: Sequence[Request]) -> Sequence[TokenStream]:
        """Take all of a call's requests in, or none: then raise the `HeadwayError` that says why not.

        An error's `param` is one of the core's words: `prompt`, `max_tokens`, or `n` for the number of requests.
        """

    def snapshot(self) -> Snapshot: ...
    @property
    def recent_steps(self) -> Sequence[RecentStep]:
        """What the last steps carried, oldest first."""
