"""`Exchange`: one call on its way to a worker and its answer on the way back; to another worker before the first byte.

A client that leaves cancels its coroutine at whatever it awaits; leaving the blocks below closes the worker's
connection, which ends the work there, and gives back what the call held.
"""

from __future__ import annotations

from aiohttp import web

from headway.core.errors import HeadwayError, InvalidRequest, NotFound, Refused
from headway.core.front.front import NOTHING
from headway.core.request import Request, Usage
from headway.gateway.edge import REQUEST_ID, internal_error
from headway.gateway.fleet.headers import SHOWN, TRAIL, to_client
from headway.gateway.fleet.scan import Scan
from headway.gateway.fleet.service import FleetService
from headway.gateway.fleet.trail import Trail
from headway.gateway.fleet.usage import usage_in
from headway.gateway.fleet.writer import Writer
from headway.gateway.observe import TALLY
from headway.gateway.service import log
from headway.gateway.writing import SlowReader
from headway.wire import sse
from headway.wire.chunks import error_event
from headway.wire.errors import error_body
from headway.workers.worker import Answer, Call, Head, WorkerFailed

# Of a worker's refusals, those that say nothing of the request: another worker may take it, and the client's key is
# not the one that was refused. A 500 may be the request's own doing, and would take the next worker along.
ELSEWHERE = frozenset({401, 403, 408, 429, 502, 503, 504})
OVERLOADED = frozenset({429, 503})
RETRY_OVERLOADED_S = 1.0
# What ends a call that was let in and never sent: it waited too long, or gave its place to another tenant's.
TURNED_AWAY = frozenset({"queue_timeout", "queue_full"})


class Exchange:
    """One call on its way. `scan` is what its prompt's count is learnt with; None where nothing is known of it."""

    def __init__(
        self,
        request: web.Request,
        service: FleetService,
        call: Call,
        trail: Trail,
        *,
        scan: Scan | None = None,
    ) -> None:
        self._request = request
        self._service = service
        self._call = call
        self._trail = trail
        self._scan = scan
        self._answer: Answer | None = None
        self._refusal: Refused | None = None  # of the worker that was tried last

    async def carried(self, asked: Request) -> web.StreamResponse:
        """Let in, sent, told. Raises the `HeadwayError` with which it is refused or fails before its first byte."""
        service, trail, request = self._service, self._trail, self._request
        if (quotas := service.driver.quotas) is not None and quotas.short(asked):
            await quotas.more()
        self._place = place = service.driver.enter(asked)
        end = "failed"
        try:
            trail.id = request[REQUEST_ID]
            trail.lane = service.front.lanes.lane_of(asked)
            request[TRAIL] = request[TALLY] = trail
            service.trails.keep(trail)
            while True:
                dispatch = await place.placed()
                trail.sent(dispatch)
                if (response := await self._tried(dispatch.worker)) is not None:
                    return response
        except HeadwayError as error:
            end = "expired" if error.code in TURNED_AWAY else "failed"
            raise
        except SlowReader:
            end = "cancelled"
            service.metrics.stream_errors.labels("slow_reader").inc()
            raise
        except BaseException:
            end = "cancelled"  # the client is gone
            raise
        finally:
            if not trail.ended_ns:
                usage = self._usage() if place.dispatch is not None else NOTHING
                trail.ended(end, usage)
                place.leave(usage)
            place.leave()

    async def _tried(self, worker_id: str) -> web.StreamResponse | None:
        """One worker's answer, told; None when it failed before its first byte and the call waits for another."""
        answer = self._sent(worker_id)
        if answer is None:
            return None
        stream: Writer | None = None
        try:
            head = await answer.head()
            if head.status >= 400:
                return self._refused(head, await answer.whole())
            if self._in_one_piece(head):
                return self._whole(head, await answer.whole())
            async for piece in answer:
                if stream is None:
                    stream = await self._begun(head)
                told = answer.told
                self._trail.passed(told.output_tokens, exact=told.exact)
                await stream.write(piece)
            if stream is None:  # it was whole, and held nothing that could be told
                return self._whole(head, b"")
            self._finished(self._usage())
            return await stream.ended()
        except WorkerFailed as failed:
            if stream is None:
                self._lost(failed)
                return None
            return await self._broken_off(stream, failed)
        except (HeadwayError, ConnectionError):
            raise
        except Exception:
            if stream is None:
                raise
            return await stream.ended(error_event(error_body(internal_error(self._request))))
        finally:
            answer.close()

    def _sent(self, worker_id: str) -> Answer | None:
        """On its way. None when that worker has just been removed. Raises `InvalidRequest` for what cannot be sent."""
        try:
            self._answer = self._service.roster.worker(worker_id).stream(self._call)
        except NotFound:
            self._lost(WorkerFailed(f"The worker {worker_id} has just been removed.", code="worker_removed"))
            return None
        except (InvalidRequest, ValueError) as error:
            self._ended("failed", NOTHING, by_worker=False)
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(f"The request cannot be passed on: {error}.", code="invalid_header") from error
        return self._answer

    def _in_one_piece(self, head: Head) -> bool:
        """Of a kind of call that is not known here, what is short enough to be counted is read whole."""
        if self._scan is not None:
            return not self._call.streams
        return head.header(b"content-type").startswith(b"application/json")

    # -- in one piece ----------------------------------------------------------------------------------------------

    def _whole(self, head: Head, body: bytes) -> web.Response:
        usage = self._usage() if self._scan is not None else usage_in(body, self._trail.estimate)
        self._place.told_at_once(usage.output_tokens)
        self._finished(usage)
        return web.Response(body=body, status=head.status, headers=to_client(head))

    def _refused(self, head: Head, body: bytes) -> web.Response | None:
        """A worker's own refusal: handed on, or a reason to ask another."""
        status = head.status
        if status in ELSEWHERE:
            if status in OVERLOADED:
                self._refusal = Refused(
                    "Every worker that was tried is overloaded. Come back later.",
                    retry_after_s=_retry_after_s(head),
                    code="workers_overloaded",
                )
            self._lost(WorkerFailed(f"It answered {status}.", code=f"worker_{status}"))
            return None
        if status >= 500:
            self._trail.failed(f"worker_{status}")
        else:
            self._trail.invalid = True
        self._ended("failed", NOTHING, by_worker=status >= 500)
        if head.header(b"content-type").startswith(b"application/json"):
            return web.Response(body=body, status=status, headers=to_client(head))
        error = HeadwayError(f"The worker refused this with status {status}.", code="worker_refused")
        error.type = "invalid_request_error" if status < 500 else "server_error"
        return web.Response(status=status, body=error_body(error), content_type="application/json")

    # -- in a stream -----------------------------------------------------------------------------------------------

    async def _begun(self, head: Head) -> Writer:
        """The first byte is here: from now on its client is answered, and nobody else is asked."""
        self._place.began()
        self._trail.first_byte()
        headers = to_client(head)
        if self._call.streams:
            headers |= {"content-type": sse.CONTENT_TYPE, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(status=head.status, headers=headers)
        await response.prepare(self._request)
        return Writer(self._request, response, timeout_s=self._service.config.write_timeout_s)

    async def _broken_off(self, stream: Writer, failed: WorkerFailed) -> web.StreamResponse:
        """After the first byte a failure is an event, and the stream ends without `[DONE]`."""
        request = self._request
        log.warning("request %s failed in its stream: %s", request[REQUEST_ID], failed.message)
        self._service.metrics.stream_errors.labels(failed.code or failed.type).inc()
        self._trail.failed(failed.code or failed.type)
        self._ended("failed", self._usage(), by_worker=True)
        if not self._call.streams:  # bytes of another kind: that they end too early is all that can be said
            stream.cut()
        return await stream.ended(
            sse.event_bytes(failed.told) if failed.told else error_event(error_body(_shown(failed)))
        )

    # -- how it went -----------------------------------------------------------------------------------------------

    def _usage(self) -> Usage:
        """What the call cost, as far as is known: of its prompt what was counted here, until its worker says."""
        told = self._answer.told if self._answer is not None else None
        if told is None:
            return NOTHING
        prompt_tokens = self._trail.estimate if told.prompt_tokens is None else told.prompt_tokens
        return Usage(prompt_tokens, told.output_tokens, min(told.cached_tokens, prompt_tokens))

    def _finished(self, usage: Usage) -> None:
        answer = self._answer
        assert answer is not None, "what has finished was answered"
        told, slo = answer.told, self._place.request.slo
        if told.prompt_tokens is not None and self._scan is not None and not self._call.decided.replaced:
            self._service.counting.learn(self._scan, told.prompt_tokens)
        reason = next(iter(told.finish_reasons.values()), "stop")
        self._trail.ended(reason if reason in SHOWN else "other", usage)
        self._place.finished(usage)
        if slo.ttft_ns or slo.itl_ns:
            self._service.driver.promised(self._place, kept=self._trail.kept(slo))

    def _ended(self, state: str, usage: Usage, *, by_worker: bool) -> None:
        self._trail.ended(state, usage)
        self._place.failed(usage, by_worker=by_worker)

    def _lost(self, failed: WorkerFailed) -> None:
        """Before the first byte: it waits for another worker, or this raises what its client is to hear."""
        log.warning("request %s: %s", self._request[REQUEST_ID], failed.message)
        self._trail.failed(failed.code or failed.type)
        try:
            self._place.lost(NOTHING, began=False)
        except HeadwayError as last:
            self._trail.ended("failed", NOTHING)
            if self._refusal is not None:
                raise self._refusal from last
            last.status = failed.status
            raise
        self._service.figures.returned += 1


def _shown(failed: WorkerFailed) -> HeadwayError:
    """A failure as a client may know it: which worker it was, and where that is, is the operator's affair."""
    shown = HeadwayError(
        "The worker failed while it was answering; what was sent is incomplete.", code=failed.code or "worker_lost"
    )
    shown.status = failed.status
    return shown


def _retry_after_s(head: Head) -> float:
    try:
        return float(head.header(b"retry-after") or RETRY_OVERLOADED_S)
    except ValueError:  # a date
        return RETRY_OVERLOADED_S
