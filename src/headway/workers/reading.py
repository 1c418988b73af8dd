"""`Reading`: what a completion's answer says while it passes by. No socket and no clock in here.

A stream's bytes are handed on as they came, whole event by whole event: an event that the connection cut in two, or
that tells of a failure, reaches nobody. How the bytes were cut never changes what is handed on in all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headway.wire.errors import error_text
from headway.wire.sse import DONE, EventParser
from headway.workers.worker import Told, WorkerFailed

MAX_EVENT_BYTES = 4 * 1024 * 1024
_DONE = b"[DONE]"
_SHOWN_CHARS = 200


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: Any = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Reading:
    """Feed it a stream's bytes; it returns those to hand on. Afterwards `failure` says what went wrong, if anything."""

    __slots__ = (
        "_after_cr",
        "_choices",
        "_held",
        "_held_bytes",
        "_last",
        "_usage_added",
        "failure",
        "told",
    )

    def __init__(self, *, choices: int = 1, usage_added: bool = False) -> None:
        self._choices = choices
        self._usage_added = usage_added
        self._held: list[bytes] = []  # of an event that is not complete
        self._held_bytes = 0
        self._last = b""  # the last byte held
        self._after_cr = False  # the last byte was a CR: an LF that follows belongs to it
        self.told = Told()
        self.failure: WorkerFailed | None = None

    def feed(self, data: bytes) -> bytes:
        if self.told.complete or self.failure is not None:
            return b""
        if self._after_cr or b"\r" in data:
            data = self._plain(data)
        if not self._held and data.endswith(b"\n\n"):  # nearly always
            return self._blocks(data)
        probe = self._last + data
        cut = probe.rfind(b"\n\n") + 2 - len(self._last)
        if cut < 2 - len(self._last):
            self._hold(data)
            return b""
        whole = b"".join((*self._held, data[:cut]))
        self._held, self._held_bytes, self._last = [], 0, b""
        if cut < len(data):
            self._hold(data[cut:])
        return self._blocks(whole)

    def end(self) -> bytes:
        """The body ended. Was that the end of the answer? Returns what the worker forgot to say."""
        told = self.told
        if told.complete or self.failure is not None:
            return b""
        if len(told.finish_reasons) >= self._choices:
            told.complete = True
            return DONE
        self.failure = WorkerFailed(
            "its stream ended early: it gave neither a finish reason nor [DONE].", code="worker_closed"
        )
        return b""

    def _plain(self, data: bytes) -> bytes:
        """With LF at the end of every line."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        if not data:
            self._after_cr = False
            return b""
        self._after_cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, data: bytes) -> None:
        if not data:
            return
        self._held.append(data)
        self._held_bytes += len(data)
        self._last = data[-1:]
        if self._held_bytes > MAX_EVENT_BYTES:
            self._held = []
            self._garbage(f"an event of its stream is larger than {MAX_EVENT_BYTES} bytes")

    def _blocks(self, data: bytes) -> bytes:
        """Whole events: those to hand on."""
        if data.find(b"\n\n") == len(data) - 2:
            return data if self._block(data[:-2]) else b""
        blocks = data[:-2].split(b"\n\n")
        kept = [block for block in blocks if self._block(block)]
        return data if len(kept) == len(blocks) else b"".join(b"%b\n\n" % block for block in kept)

    def _block(self, block: bytes) -> bool:
        """One event, without its blank line. Is it handed on?"""
        if self.told.complete or self.failure is not None:
            return False
        if block.startswith(b"data: ") and b"\n" not in block:
            return self._data(block[6:])
        events = EventParser().feed(block.lstrip(b"\n") + b"\n\n")
        if not events:
            return True  # a comment, which keeps the connection alive
        data = events[0].data.encode()
        if events[0].event == "error":
            self._fail(data)
            return False
        return self._data(data)

    def _data(self, data: bytes) -> bool:
        if data.strip() == _DONE:
            self.told.complete = True
            return True
        chunk = self._chunk(data)
        if chunk is None:
            return False
        if chunk.error is not None or chunk.object == "error":
            self._fail(data)
            return False
        if chunk.usage is not None:
            _count(self.told, chunk.usage)
        if not chunk.choices:
            return not (chunk.usage is not None and self._usage_added)
        for choice in chunk.choices:
            if choice.finish_reason:
                self.told.finish_reasons[choice.index or 0] = str(choice.finish_reason)
            if not self.told.exact and _speaks(choice):
                self.told.output_tokens += 1
        return True

    def _chunk(self, data: bytes) -> _Chunk | None:
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:  # as the standard reads a stream: a character that is none is replaced
            return _decode(data.decode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError) as error:
            self._garbage(f"an event of its stream is not a completion chunk ({error})")
            return None

    def _garbage(self, what: str) -> None:
        self.failure = WorkerFailed(f"its answer cannot be understood: {what}.", code="worker_garbage")

    def _fail(self, data: bytes) -> None:
        self.failure = failure_told(data)


def failure_told(data: bytes) -> WorkerFailed:
    """A worker's own error after a good status, in OpenAI's shape or another."""
    return WorkerFailed(f"it failed: {error_text(data)[:_SHOWN_CHARS] or 'no words'}", code="worker_error", told=data)


def read_whole(told: Told, body: bytes) -> WorkerFailed | None:
    """An answer in one piece, told to `told`. Returns what is wrong with it."""
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "it is empty" if not body.strip() else f"it is not a completion ({error})"
        return WorkerFailed(f"its answer cannot be understood: {what}.", code="worker_garbage")
    if answer.error is not None or answer.object == "error":
        return failure_told(body)
    if not answer.choices:
        return WorkerFailed("its answer cannot be understood: it holds no choices.", code="worker_garbage")
    if answer.usage is not None:
        _count(told, answer.usage)
    for choice in answer.choices:
        if choice.finish_reason:
            told.finish_reasons[choice.index or 0] = str(choice.finish_reason)
    told.complete = True
    return None


def _count(told: Told, usage: _Usage) -> None:
    if _is_count(usage.prompt_tokens):
        told.prompt_tokens = usage.prompt_tokens
    if _is_count(usage.completion_tokens):
        told.output_tokens, told.exact = usage.completion_tokens, True
    details = usage.prompt_tokens_details
    if isinstance(details, dict) and _is_count(details.get("cached_tokens")):
        told.cached_tokens = details["cached_tokens"]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _speaks(choice: _Choice) -> bool:
    """Is there anything in it that took a token? A role or a finish reason alone did not."""
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(
        delta.content
        or delta.reasoning_content
        or delta.reasoning
        or delta.tool_calls
        or delta.function_call
        or delta.refusal
    )
