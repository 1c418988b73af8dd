"""How the engine in this process reads a batch's bodies and words its answers: as the server would.

Offline work and the gateway do not know each other; here, where parts are assembled, the one is given the other's.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence

from headway.core.request import Request, Usage
from headway.engine import Delta, Engine
from headway.gateway.answers import Answer, ChatAnswer, CompletionAnswer, Output, usage_of
from headway.gateway.prepare import Call, Preparer
from headway.offline.items import CHAT
from headway.offline.local import Prepare


class _Telling:
    def __init__(self, call: Call, answer: Answer) -> None:
        self._call = call
        self._answer = answer
        self._outputs = [Output() for _ in call.requests]

    def keep(self, index: int, delta: Delta) -> None:
        output = self._outputs[index]
        output.note(delta)
        output.texts.append(delta.text)
        output.logprobs.extend(delta.logprobs or ())

    def cut(self) -> None:
        for output in self._outputs:
            output.finish_reason = output.finish_reason or "length"

    def body(self) -> bytes:
        return self._answer.body(self._outputs, usage_of(self._call, self._outputs))

    def usage(self) -> Usage:
        usage = usage_of(self._call, self._outputs)
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else 0
        return Usage(usage.prompt_tokens, usage.completion_tokens, cached)


class _Prepared:
    """Many of them wait at a time: token ids are kept small."""

    def __init__(self, call: Call, engine: Engine, *, chat: bool) -> None:
        for request in call.requests:
            request.prompt = array("i", request.prompt)
        self._call = call
        self._engine = engine
        self._chat = chat

    @property
    def requests(self) -> Sequence[Request]:
        return [dataclasses.replace(request, prompt=list(request.prompt)) for request in self._call.requests]

    @property
    def prompt_tokens(self) -> int:
        return self._call.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return sum(request.max_tokens for request in self._call.requests)

    def begin(self) -> _Telling:
        tokenizer = self._engine.tokenizer
        return _Telling(
            self._call, ChatAnswer(self._call, tokenizer) if self._chat else CompletionAnswer(self._call, tokenizer)
        )


def prepare_of(engine: Engine, names: Sequence[str]) -> Prepare:
    """`names`: those that the model may be asked for by."""
    preparer = Preparer(engine, names, engine.model.sampling_defaults)

    def prepare(url: str, body: bytes) -> _Prepared:
        chat = url == CHAT
        return _Prepared(preparer.chat(body) if chat else preparer.completion(body), engine, chat=chat)

    return prepare
