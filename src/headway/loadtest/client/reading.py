"""`Reading`: what a stream of server-sent events says, written into a `Record`. No socket and no clock in here.

How the bytes were cut never changes the record, but for its times. Tokens are shared out over the chunks at the end,
when it is known how the server counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from headway.loadtest.client.shares import Shares, shares
from headway.loadtest.record import CountedBy, Fate, Record
from headway.wire.errors import error_text
from headway.wire.sse import Event, EventParser

MAX_GAP_TOKENS = 65_535
MAX_EVENT_BYTES = 16 * 1024 * 1024
# A stream may have so many bytes, and so many for each token that was asked for where that is more: a chunk has some
# hundred, with the probabilities of twenty other tokens some thousand.
MAX_STREAM_BYTES = 64 * 1024 * 1024
MAX_TOKEN_BYTES = 8 * 1024
GIVEN_UP = {"error", "abort", "aborted"}  # finish reasons of vLLM, SGLang and others for their own failures
# Thoughts that are so many times as dense in their chunks as the rest of the answer in its own were not all shown.
SUMMARY_RATIO = 4
NOT_DONE = "the stream ended without [DONE]"
CUT_OFF = "stream ended early: neither a finish reason nor [DONE]"


# What is outside is no number of tokens, and no choice of an answer.
_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


class _Details(msgspec.Struct):
    cached_tokens: _Tokens | None = None
    reasoning_tokens: _Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    total_tokens: Any = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None

    @property
    def thoughts(self) -> int:
        """Reasoning tokens among the completion tokens. Some servers count them beside those: the total tells."""
        details = self.completion_tokens_details
        told = 0 if details is None else details.reasoning_tokens or 0
        beside = (self.prompt_tokens or 0) + (self.completion_tokens or 0) + told
        return 0 if self.total_tokens == beside else told


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    index: _Index | None = None
    delta: _Delta | None = None
    message: _Delta | None = None  # of an answer in one piece
    text: str | None = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


class _OddChunk(msgspec.Struct):
    """With a usage that is not as it should be."""

    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None
    object: Any = None
    message: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_odd = msgspec.json.Decoder(_OddChunk).decode


def _decode(data: bytes | str) -> tuple[_Chunk, str]:
    """A chunk, and a note where its usage makes no sense: that costs the usage, not the answer."""
    try:
        return _decode_chunk(data), ""
    except msgspec.ValidationError as error:
        odd = _decode_odd(data)
        chunk = _Chunk(odd.choices, None, odd.error, odd.object, odd.message)
        return chunk, f"the server's usage is ignored: {error}"


class Reading:
    """Feed it the body's bytes with the time they arrived; `judge` it if the body ended, `settle` it in any case."""

    __slots__ = (
        "_bytes",
        "_choices",
        "_clean",
        "_counts",
        "_finish_reasons",
        "_last_ns",
        "_most_bytes",
        "_open_bytes",
        "_owners",
        "_parser",
        "_record",
        "_running_usage",
        "_texts",
        "_thoughts",
        "_usage",
        "_usages",
        "done",
        "error",
        "failed",
        "fate",
        "finished",
        "heard_ns",
        "note",
    )

    def __init__(self, record: Record, *, choices: int = 1, keep_text: bool = False) -> None:
        self._record = record
        self._choices = choices  # how many were asked for
        self._parser = EventParser()
        self._clean = False  # nothing of an event is in the parser: whole events may be read without it
        self._bytes = 0  # of the whole stream
        self._most_bytes = max(MAX_STREAM_BYTES, MAX_TOKEN_BYTES * record.asked_output_tokens * choices)
        self._open_bytes = 0  # of the event that is still arriving
        self._last_ns: dict[int, int] = {}  # by choice: when its last visible chunk came
        self._counts = array("q")  # the running usage that each visible chunk told, -1 where none
        self._owners = array("H")  # the choice of each visible chunk
        self._finish_reasons: dict[int, str] = {}
        self._running_usage: _Usage | None = None  # the last that came with a chunk
        self._usages = 0  # chunks that carried one
        self._usage: _Usage | None = None  # that came alone: of the whole answer
        self._texts: list[str] | None = [] if keep_text else None
        self._thoughts = 0  # visible chunks of them
        self.done = False
        self.finished = False  # nothing more can come that matters, but for the usage
        self.failed = False
        self.error = ""  # why it failed, or a note about what is merely odd
        self.fate = Fate.OK  # what kind of end that is
        self.note = ""  # about a usage that makes no sense
        self.heard_ns = -1  # when the last chunk or [DONE] came: the end of a good answer

    @property
    def text(self) -> str | None:
        """Of all choices, in order of arrival; None where it was not kept."""
        return None if self._texts is None else "".join(self._texts)

    def feed(self, data: bytes, now_ns: int) -> None:
        if self.done or self.failed:
            return
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            self.fail(f"the stream is longer than {self._most_bytes // 2**20} MB", Fate.TOO_LONG)
            return
        # Nearly always a read holds whole events of one line each, and mostly one. The parser's state is then what it
        # was, so that they can be taken at their line ends. The first read may begin with a byte-order mark.
        if self._clean and data.startswith(b"data: ") and data.endswith(b"\n\n") and b"\r" not in data:
            if data.find(b"\n") == len(data) - 2:
                self._event(data[6:-2], now_ns)
                return
            events = data[:-2].split(b"\n\n")
            if all(event.startswith(b"data: ") and b"\n" not in event for event in events):
                for event in events:
                    self._event(event[6:], now_ns)
                return
        events_read = self._parser.feed(data)
        self._open_bytes = self._open_bytes + len(data) if self._parser.incomplete and not events_read else 0
        if self._open_bytes > MAX_EVENT_BYTES:
            self.fail(f"an event is longer than {MAX_EVENT_BYTES // 2**20} MB", Fate.TOO_LONG)
        for parsed in events_read:
            self._parsed(parsed, now_ns)
        self._clean = data.endswith(b"\n\n")  # a blank line ended it: an event was dispatched, no field is pending

    def _parsed(self, parsed: Event, now_ns: int) -> None:
        if parsed.event != "error":
            self._event(parsed.data.encode(), now_ns)
        elif not self.done:  # after [DONE] it counts no more than if it had come in a later read
            self.fail(f"error event: {error_text(parsed.data)}")

    def fail(self, error: str, fate: Fate = Fate.SERVER_ERROR) -> None:
        """The first reason is the one that is told."""
        if not self.failed:
            self.failed, self.error, self.fate = True, error, fate

    def _event(self, data: bytes, now_ns: int) -> None:
        if self.done or self.failed:
            return
        if not data.startswith(b"{") and data.strip() == b"[DONE]":
            self.done = self.finished = True
            self.heard_ns = now_ns
            return
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            readable = data.decode("utf-8", "replace")  # as the standard reads a stream; often it was whole already
            try:
                chunk, odd = _decode(readable)
            except (msgspec.DecodeError, RecursionError) as error:
                self.fail(f"an event is not a completion chunk ({error}): {readable}")  # masked whole, and cut then
                return
            self.note = self.note or odd
        if chunk.error is not None or chunk.object == "error":
            self.fail(f"error event: {error_text(data)}")
            return
        self._chunk(chunk, now_ns)

    def _chunk(self, chunk: _Chunk, now_ns: int) -> None:
        usage = chunk.usage
        if not chunk.choices:
            if usage is not None:
                self._usage = usage
                self.heard_ns = now_ns
            return
        self.heard_ns = now_ns
        count = -1
        if usage is not None:
            self._running_usage = usage
            self._usages += 1
            if usage.completion_tokens is not None:
                count = usage.completion_tokens
        record, last_ns = self._record, self._last_ns
        for choice in chunk.choices:
            index, delta, thought = choice.index or 0, choice.delta, False
            words = choice.text if delta is None else delta.content
            if (
                not isinstance(words, str)
                or not words
                or (delta is not None and (delta.reasoning_content or delta.reasoning))
            ):
                words, thought = ("", False) if delta is None else _words_of(delta)
            if words:  # it is visible
                if index in last_ns:
                    record.gaps_ns.append(now_ns - last_ns[index])
                elif record.first_ns < 0:
                    record.first_ns, record.reasoning = now_ns, thought
                last_ns[index] = record.last_ns = now_ns
                record.chunks += 1
                self._thoughts += thought
                self._counts.append(count)
                self._owners.append(index)
                if self._texts is not None:
                    self._texts.append(words)
            if choice.finish_reason:
                self._finish_reasons[index] = str(choice.finish_reason)
                self.finished = len(self._finish_reasons) >= self._choices

    def judge(self) -> None:
        """The body has ended: was that the end of the answer? `failed` and `error` tell."""
        if not self.finished:
            self.fail(CUT_OFF)
        elif broken := broken_off(self._finish_reasons.values()):
            self.fail(broken)
        elif not self.done and not self.failed:
            self.error = NOT_DONE

    def settle(self) -> None:
        """No more bytes come, for whatever reason. Tokens are shared out by the server's usage, else one a chunk."""
        record = self._record
        record.finish_reason = ",".join(dict.fromkeys(reason for _, reason in sorted(self._finish_reasons.items())))
        usage = self._usage or self._running_usage
        note_input(record, usage)
        total = None if usage is None else usage.completion_tokens
        if self._usage is None and self._usages > 1 and len(self._last_ns) > 1:
            total = None  # what came with the last chunk may be one choice's
        self.share_out(total, CountedBy.USAGE, 0 if usage is None else self._unseen(usage.thoughts, total or 0))

    def _unseen(self, thoughts: int, total: int) -> int:
        """Of `thoughts` that the server counts, how many were not shown: all, or what a summary of them leaves out."""
        others = len(self._owners) - self._thoughts
        if not thoughts or not self._thoughts or not others:
            return 0 if self._thoughts else thoughts
        a_chunk = max(1.0, (total - thoughts) / others)  # of what is shown for certain
        seen = a_chunk * self._thoughts
        return thoughts - round(seen) if thoughts > SUMMARY_RATIO * seen else 0

    def share_out(self, total: int | None, counted: CountedBy, hidden: int = 0) -> None:
        """Give every visible chunk its tokens. `total` is of all choices; None is not known. `hidden`: of these."""
        record = self._record
        stopped = sum(reason == "stop" for reason in self._finish_reasons.values())
        total = total or None  # 0 beside visible text says nothing
        shared = shares(self._owners, self._counts, total, stopped, hidden)
        if max(shared.tokens, default=0) > MAX_GAP_TOKENS:
            self.note = self.note or f"{shared.total:,} tokens in {len(shared.tokens):,} chunks are not believed"
            shared = Shares(CountedBy.CHUNKS, len(shared.tokens), [1] * len(shared.tokens))
        record.counted = counted if shared.counted is CountedBy.USAGE else shared.counted
        record.output_tokens = shared.total
        record.hidden_tokens = 0 if shared.counted is CountedBy.CHUNKS else min(hidden, shared.total)
        record.choices = max(len(self._last_ns), 1)
        record.first_tokens = 0
        gap_tokens = array("H")
        seen: set[int] = set()
        for owner, tokens in zip(self._owners, shared.tokens, strict=True):
            if owner in seen:
                gap_tokens.append(tokens)
            else:
                seen.add(owner)
                record.first_tokens += tokens
        record.gap_tokens = gap_tokens


def _words_of(delta: _Delta) -> tuple[str, bool]:
    """What a delta shows, and whether it begins with reasoning. A role or an id alone shows nothing."""
    thought = _text(delta.reasoning_content) or _text(delta.reasoning)
    words = _text(delta.content) + _text(delta.refusal)
    calls = delta.tool_calls if isinstance(delta.tool_calls, list) else []
    for call in [*calls, {"function": delta.function_call}]:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            words += _text(function.get("name")) + _text(function.get("arguments"))
    return thought + words, bool(thought)


def _text(value: Any) -> str:
    """A string, or the strings inside parts such as `{"type": "text", "text": …}`."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return _text(value.get("text")) + _text(value.get("thinking"))
    return ""


def broken_off(finish_reasons: Iterable[str]) -> str:
    """What is wrong with an answer that the server says it gave up; empty where it did not."""
    given_up = next((reason for reason in finish_reasons if reason.lower() in GIVEN_UP), "")
    return f"the server gave the answer up: finish_reason {given_up}" if given_up else ""


def note_input(record: Record, usage: _Usage | None) -> None:
    if usage is None:
        return
    if usage.prompt_tokens is not None:
        record.input_tokens = usage.prompt_tokens
    details = usage.prompt_tokens_details
    if details is not None and details.cached_tokens is not None:
        record.cached_tokens = details.cached_tokens


def read_whole(record: Record, body: bytes) -> tuple[str, str]:
    """An answer in one piece, written into the record: ("what is wrong with it", "its text"). It has no first token."""
    try:
        answer, _ = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"the answer is not a completion ({error}): {body.decode('utf-8', 'replace')}", ""
    if answer.error is not None or answer.object == "error":
        return f"error in the answer: {error_text(body)}", ""
    if not answer.choices:
        return "the answer holds no choices", ""
    note_input(record, answer.usage)
    if answer.usage is not None and answer.usage.completion_tokens is not None:
        record.output_tokens, record.counted = answer.usage.completion_tokens, CountedBy.USAGE
        if not any(choice.message is not None and _words_of(choice.message)[1] for choice in answer.choices):
            record.hidden_tokens = min(answer.usage.thoughts, record.output_tokens)
    reasons = [str(choice.finish_reason) for choice in answer.choices if choice.finish_reason]
    record.finish_reason = ",".join(dict.fromkeys(reasons))
    if broken := broken_off(reasons):
        return broken, ""
    texts = [choice.text or (_words_of(choice.message)[0] if choice.message else "") for choice in answer.choices]
    return "", "".join(texts)
