"""The events of a stream, as bytes. The hot path of the server: one event per token per client.

Everything but the text is the same in every event of a stream, so it is encoded once; an event then costs one JSON
escape and one concatenation.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headway.wire.responses import ChatLogprobs, CompletionLogprobs, UsageBody
from headway.wire.sse import event_bytes

_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
# A stream that will end in a usage event carries `"usage":null` in all others: OpenAI's clients expect the key.
Tail = UsageBody | None | msgspec.UnsetType


def _tail(usage: Tail) -> bytes:
    return b"" if usage is msgspec.UNSET else b',"usage":' + _json(usage)


class ChatChunks:
    """Builds the events of one `chat.completion.chunk` stream."""

    def __init__(self, id: str, created: int, model: str) -> None:
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _json(id),
            created,
            _json(model),
        )

    def role(self, index: int, usage: Tail) -> bytes:
        """The first event of a choice."""
        return (
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b}\n\n'
            % (
                self._head,
                index,
                _tail(usage),
            )
        )

    def text(self, index: int, text: str, logprobs: ChatLogprobs | None, usage: Tail) -> bytes:
        return b'%b{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}]%b}\n\n' % (
            self._head,
            index,
            _json(text),
            b"null" if logprobs is None else _json(logprobs),
            _tail(usage),
        )

    def finish(self, index: int, reason: str, usage: Tail) -> bytes:
        """The last event of a choice."""
        return b'%b{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b}]%b}\n\n' % (
            self._head,
            index,
            _json(reason),
            _tail(usage),
        )

    def usage(self, usage: UsageBody) -> bytes:
        """The last event of a stream that was asked for its usage."""
        return b"%b]%b}\n\n" % (self._head, _tail(usage))


class CompletionChunks:
    """Builds the events of one `text_completion` stream."""

    def __init__(self, id: str, created: int, model: str) -> None:
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            _json(id),
            created,
            _json(model),
        )

    def text(
        self, index: int, text: str, logprobs: CompletionLogprobs | None, reason: str | None, usage: Tail
    ) -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}]%b}\n\n' % (
            self._head,
            index,
            _json(text),
            b"null" if logprobs is None else _json(logprobs),
            b"null" if reason is None else _json(reason),
            _tail(usage),
        )

    def usage(self, usage: UsageBody) -> bytes:
        """The last event of a stream that was asked for its usage."""
        return b"%b]%b}\n\n" % (self._head, _tail(usage))


def error_event(body: bytes) -> bytes:
    """A failure after the first byte: the error's JSON as an event. The stream ends after it, without `[DONE]`."""
    return event_bytes(body)
