"""The two generating routes: prepare, submit, tell. Every way out of them closes every stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from headway.core.errors import EngineFailed, HeadwayError, InvalidRequest, QueueFull
from headway.core.request import NO_SLO, Usage
from headway.engine.factories import TextTokenizer
from headway.gateway.answers import Answer, ChatAnswer, CompletionAnswer, Output, usage_of
from headway.gateway.backend import Backend, TokenStream
from headway.gateway.background.work import CHAT, COMPLETIONS, NO_STORE
from headway.gateway.edge import IGNORED, REQUEST_ID, internal_error
from headway.gateway.merge import Batch, Merged
from headway.gateway.observe import TALLY, Part, Timing
from headway.gateway.prepare import Call
from headway.gateway.promises import slo_of
from headway.gateway.service import SERVICE, Service, log
from headway.gateway.writing import SlowReader, write_in_time
from headway.wire import sse
from headway.wire.chunks import Tail, error_event
from headway.wire.errors import error_body

ANSWERS: dict[str, Callable[[Call, TextTokenizer], Answer]] = {CHAT: ChatAnswer, COMPLETIONS: CompletionAnswer}


class _Wish(msgspec.Struct):
    background: Any = None


_wish = msgspec.json.Decoder(_Wish)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await _generate(request, request.app[SERVICE].preparer.chat, CHAT)


async def completions(request: web.Request) -> web.StreamResponse:
    return await _generate(request, request.app[SERVICE].preparer.completion, COMPLETIONS)


async def _generate(request: web.Request, prepare: Callable[[bytes], Call], path: str) -> web.StreamResponse:
    service = request.app[SERVICE]
    timing = Timing(service.metrics)
    full = _check_door(service)
    slo = slo_of(request.headers, service.backend.default_slo)
    body = await service.body(request)
    timing.received()
    if b'"background"' in body and _is_for_later(body):
        return await _kept(service, path, body)
    if full is not None:
        raise full
    call = await service.prepared(prepare, body)
    request[IGNORED] = call.ignored
    for one in call.requests:
        one.slo = slo
    timing.ready(_labels(service, call), slo)
    telling = request[TALLY] = Telling(call, ANSWERS[path](call, service.backend.tokenizer), timing)
    # A client that leaves cancels this handler at whatever it awaits, so leaving the block is what frees everything.
    with _submitted(service.backend, call) as streams:
        async with Merged(streams) as merged:
            if call.stream:
                return await _stream(request, merged, telling)
            return await _whole(merged, telling)


async def whole_answer(service: Service, call: Call, path: str) -> Telling:
    """The whole answer to a call that has no client waiting. Cancelled, it leaves the engine."""
    timing = Timing(service.metrics)
    telling = Telling(call, ANSWERS[path](call, service.backend.tokenizer), timing)
    timing.ready(_labels(service, call), NO_SLO)
    try:
        with _submitted(service.backend, call) as streams:
            async with Merged(streams) as merged:
                while batch := await merged.next():
                    telling.keep(batch)
        telling.finish()
    except BaseException as error:  # no answer is sent that it would be counted by
        telling.over("cancelled" if isinstance(error, asyncio.CancelledError) else "failed")
        raise
    return telling


def _labels(service: Service, call: Call) -> Mapping[str, str]:
    """What a call is counted by; the lane is that of its first request."""
    return {"lane": service.backend.lane_of(call.requests[0]), "model": call.model}


def _check_door(service: Service) -> QueueFull | None:
    """Before the body is read: a refusal must not cost what it saves. A full queue is no reason not to keep a call."""
    try:
        service.backend.check_door()
    except QueueFull as full:
        if service.divert is None:
            raise
        return full
    return None


def _is_for_later(body: bytes) -> bool:
    try:
        return _wish.decode(body).background is True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # what is wrong with it is told when it is prepared


async def _kept(service: Service, path: str, body: bytes) -> web.Response:
    if service.divert is None:
        raise InvalidRequest(NO_STORE, param="background", code="unsupported_feature")
    return await service.divert(path, body)


@contextlib.contextmanager
def _submitted(backend: Backend, call: Call) -> Iterator[Sequence[TokenStream]]:
    """All of a call's requests, or none. What is wrong with them is told by the fields that the client sent."""
    try:
        streams = backend.submit_all(call.requests)
    except InvalidRequest as error:
        error.param = call.fields.get(error.param or "", error.param)
        error.code = error.code or "invalid_value"
        raise
    with contextlib.ExitStack() as closing:
        for stream in streams:
            closing.callback(stream.close)
        yield streams


class Telling:
    """A call's answer in the making: counts what comes, and says it in the API's words."""

    def __init__(self, call: Call, answer: Answer, timing: Timing) -> None:
        self.answer = answer
        self.outputs = [Output() for _ in call.requests]
        self.failure = ""
        self._call = call
        self._timing = timing

    @property
    def prompt_tokens(self) -> int:
        return self._call.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return sum(output.output_tokens for output in self.outputs)

    @property
    def ttft_s(self) -> float | None:
        return self._timing.ttft_s

    @property
    def model(self) -> str:
        return self._call.model

    @property
    def finish_reasons(self) -> Sequence[str]:
        return [output.finish_reason for output in self.outputs if output.finish_reason is not None]

    @property
    def cached_tokens(self) -> int:
        return sum(output.usage.cached_tokens for output in self.outputs if output.usage is not None)

    @property
    def facts(self) -> Mapping[str, str]:
        return {}

    def parts(self) -> Sequence[Part]:
        return self._timing.parts()

    def keep(self, batch: Batch) -> None:
        for index, delta in batch:
            self._timing.token(index, delta)
            output = self.outputs[index]
            output.note(delta)
            output.texts.append(delta.text)
            output.logprobs.extend(delta.logprobs or ())

    def events(self, batch: Batch) -> bytes:
        """A batch as events. Its text is not kept."""
        events = []
        for index, delta in batch:
            self._timing.token(index, delta)
            self.outputs[index].note(delta)
            events.append(self.answer.events(index, delta, self._tail()))
        return b"".join(events)

    def last_events(self) -> bytes:
        """What a stream that went well ends with."""
        self.finish()
        usage = self.answer.usage_event(usage_of(self._call, self.outputs)) if self._call.include_usage else b""
        return usage + sse.DONE

    def body(self) -> bytes:
        return self.answer.body(self.outputs, usage_of(self._call, self.outputs))

    def begun(self) -> str:
        """The `Server-Timing` value of a stream at its first token."""
        return self._timing.begun()

    def finish(self) -> str:
        """Check that every output ended, observe the times, and return the `Server-Timing` value."""
        if any(output.finish_reason is None for output in self.outputs):
            raise EngineFailed("The engine ended a sequence without saying why. Please report it.")
        timing = self._timing.finished([output.times for output in self.outputs])
        self._timing.ended("good", self._usage())
        return timing

    def over(self, outcome: str) -> None:
        self._timing.ended(outcome, self._usage())

    def _usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.output_tokens, self.cached_tokens)

    def _tail(self) -> Tail:
        if not self._call.include_usage:
            return msgspec.UNSET
        return usage_of(self._call, self.outputs, final=False) if self._call.continuous_usage else None


async def _whole(merged: Merged, telling: Telling) -> web.Response:
    while batch := await merged.next():
        telling.keep(batch)
    timing = telling.finish()
    return web.Response(body=telling.body(), content_type="application/json", headers={"Server-Timing": timing})


async def _stream(request: web.Request, merged: Merged, telling: Telling) -> web.StreamResponse:
    # Headers wait for the first token: until then a failure can still be an honest HTTP status.
    batch = await merged.next()
    response = web.StreamResponse(headers={"Content-Type": sse.CONTENT_TYPE, "Cache-Control": "no-cache"})
    response.headers["X-Accel-Buffering"] = "no"  # nginx would collect the events of a stream otherwise
    response.headers["Server-Timing"] = telling.begun()
    await response.prepare(request)
    errors = request.app[SERVICE].metrics.stream_errors
    try:
        last = await _told(request, response, merged, telling, batch)
    except HeadwayError as error:
        log.warning("request %s failed in its stream: %s", request[REQUEST_ID], error.message)
        telling.failure = error.code or error.type
        errors.labels(telling.failure).inc()
        last = error_event(error_body(error))
    except ConnectionError:
        raise  # the client is gone
    except Exception:
        defect = internal_error(request)
        telling.failure = defect.code or defect.type
        errors.labels(telling.failure).inc()
        last = error_event(error_body(defect))
    await _write(request, response, last)
    await response.write_eof()
    return response


async def _told(
    request: web.Request, response: web.StreamResponse, merged: Merged, telling: Telling, batch: Batch
) -> bytes:
    """Send `batch` and all that follow. Returns the events that end a stream that went well."""
    while batch:
        if events := telling.events(batch):
            await _write(request, response, events)
        batch = await merged.next()
    return telling.last_events()


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send, waiting while the client's buffers are full, but not for ever."""
    service = request.app[SERVICE]
    try:
        await write_in_time(request, response, data, timeout_s=service.config.write_timeout_s, who=request[REQUEST_ID])
    except SlowReader:
        service.metrics.stream_errors.labels("slow_reader").inc()
        raise
