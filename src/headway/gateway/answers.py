"""Deltas -> answers: the two APIs' ways of telling the same output, whole or as a stream of events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from headway.core.request import Times, Usage
from headway.core.scheduler.step import TokenLogprob
from headway.engine.factories import TextTokenizer
from headway.engine.stream import Delta
from headway.gateway.prepare import Call
from headway.wire.chunks import ChatChunks, CompletionChunks, Tail
from headway.wire.responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatTokenLogprob,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptTokensDetails,
    TopLogprob,
    UsageBody,
)

MIN_LOGPROB = -9999.0  # JSON has no -inf; OpenAI's documented stand-in


class Output:
    """What one sequence has produced so far."""

    __slots__ = ("finish_reason", "logprobs", "texts", "times", "tokens", "usage")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.tokens = 0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.times: Times | None = None

    def note(self, delta: Delta) -> None:
        """Count a delta. Its text is kept by whoever needs it whole."""
        self.tokens += len(delta.tokens)
        if delta.finish_reason is not None:
            self.finish_reason, self.usage, self.times = delta.finish_reason, delta.usage, delta.times

    @property
    def output_tokens(self) -> int:
        return self.tokens if self.usage is None else self.usage.output_tokens


def usage_of(call: Call, outputs: Sequence[Output], *, final: bool = True) -> UsageBody:
    """Usage of a whole call. A prompt with several samples is counted once, as OpenAI does."""
    completion_tokens = sum(output.output_tokens for output in outputs)
    cached = sum(output.usage.cached_tokens for output in outputs[:: call.samples] if output.usage is not None)
    return UsageBody(
        prompt_tokens=call.prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=call.prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached) if final else None,
    )


class Answer(Protocol):
    """One API's way of telling. `events` may be called for any choice in any order, but a choice's deltas in theirs."""

    def events(self, index: int, delta: Delta, usage: Tail) -> bytes: ...
    def usage_event(self, usage: UsageBody) -> bytes: ...
    def body(self, outputs: Sequence[Output], usage: UsageBody) -> bytes: ...


class ChatAnswer:
    def __init__(self, call: Call, tokenizer: TextTokenizer) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._chunks = ChatChunks(call.id, call.created, call.model)
        self._begun: set[int] = set()

    def events(self, index: int, delta: Delta, usage: Tail) -> bytes:
        """The role event before a choice's first text; a finish event after its last."""
        events = b""
        if index not in self._begun:
            self._begun.add(index)
            events = self._chunks.role(index, usage)
        if delta.text or delta.logprobs:
            events += self._chunks.text(index, delta.text, self._logprobs(delta.logprobs), usage)
        if delta.finish_reason is not None:
            events += self._chunks.finish(index, delta.finish_reason, usage)
        return events

    def usage_event(self, usage: UsageBody) -> bytes:
        return self._chunks.usage(usage)

    def body(self, outputs: Sequence[Output], usage: UsageBody) -> bytes:
        asked = self._call.requests[0].params.logprobs is not None
        choices = [
            ChatChoice(
                index=i,
                message=AssistantMessage(content="".join(output.texts)),
                logprobs=self._logprobs(output.logprobs) if asked else None,
                finish_reason=_reason(output),
            )
            for i, output in enumerate(outputs)
        ]
        call = self._call
        return msgspec.json.encode(
            ChatCompletion(id=call.id, created=call.created, model=call.model, choices=choices, usage=usage)
        )

    def _logprobs(self, logprobs: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
        if logprobs is None:
            return None
        return ChatLogprobs(
            content=[
                ChatTokenLogprob(
                    token=self._tokenizer.token_text(one.token),
                    logprob=_finite(one.logprob),
                    bytes=list(self._tokenizer.token_bytes(one.token)),
                    top_logprobs=[
                        TopLogprob(
                            token=self._tokenizer.token_text(token),
                            logprob=_finite(logprob),
                            bytes=list(self._tokenizer.token_bytes(token)),
                        )
                        for token, logprob in one.top
                    ],
                )
                for one in logprobs
            ]
        )


class CompletionAnswer:
    def __init__(self, call: Call, tokenizer: TextTokenizer) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._chunks = CompletionChunks(call.id, call.created, call.model)
        self._places = [_Place(tokenizer) for _ in call.requests]

    def events(self, index: int, delta: Delta, usage: Tail) -> bytes:
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return b""
        return self._chunks.text(index, delta.text, self._logprobs(index, delta.logprobs), delta.finish_reason, usage)

    def usage_event(self, usage: UsageBody) -> bytes:
        return self._chunks.usage(usage)

    def body(self, outputs: Sequence[Output], usage: UsageBody) -> bytes:
        asked = self._call.requests[0].params.logprobs is not None
        choices = [
            CompletionChoice(
                index=i,
                text="".join(output.texts),
                logprobs=self._logprobs(i, output.logprobs) if asked else None,
                finish_reason=_reason(output),
            )
            for i, output in enumerate(outputs)
        ]
        call = self._call
        return msgspec.json.encode(
            Completion(id=call.id, created=call.created, model=call.model, choices=choices, usage=usage)
        )

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob] | None) -> CompletionLogprobs | None:
        if logprobs is None:
            return None
        told = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for one in logprobs:
            token = self._label(one.token)
            told.tokens.append(token)
            told.token_logprobs.append(_finite(one.logprob))
            # The chosen token is always among them, so there may be one more than asked; OpenAI says so too.
            top = {self._label(token): _finite(logprob) for token, logprob in one.top}
            top.setdefault(token, _finite(one.logprob))
            told.top_logprobs.append(top)
            told.text_offset.append(self._places[index].of(one.token))
        return told

    def _label(self, token: int) -> str:
        """A token's text. Parts of a character are shown by their bytes, since as text they all look alike."""
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode() or self._tokenizer.token_text(token)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class _Place:
    """Where in its choice's text each token begins. A part of a character begins where the character does."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._detokenizer = tokenizer.stream()  # the text is read the way that the engine reads it
        self._chars = 0

    def of(self, token: int) -> int:
        begins = self._chars
        self._chars += len(self._detokenizer.add((token,)))
        return begins


def _reason(output: Output) -> str:
    assert output.finish_reason is not None  # a stream without an end raises, and does not get here
    return output.finish_reason


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else MIN_LOGPROB
