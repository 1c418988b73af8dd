"""`ServerWorker`: a server elsewhere that speaks OpenAI's API runs the items."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from headway.core.batch.climb import Climb
from headway.core.batch.dispatch import Fault
from headway.core.batch.promises import Promises
from headway.core.errors import ConfigError, InvalidRequest
from headway.offline.items import Item, Sketch, sketch
from headway.offline.recent import ITL, TTFT, Recent, histograms
from headway.offline.worker import Answered, Failed, is_out_of_memory
from headway.wire.errors import error_text
from headway.wire.http_address import http_address
from headway.wire.http_client import Exchange, HttpClient, ResponseHead, Timeouts, client_of, own_headers
from headway.wire.http_connection import HttpFault, NoConnection, NotHttp, TooSlow
from headway.wire.http_pool import Server
from headway.wire.json_fields import JsonFields

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_MODELS_BYTES = 4 * 1024 * 1024
MAX_METRICS_BYTES = 16 * 1024 * 1024
UNHEARD_S = 10.0  # without a word on how others fare, it is taken that they fare badly
ASK_TIMEOUT_S = 10.0
_SHOWN_CHARS = 500

# A status whose meaning its hundreds do not give.
_FAULTS = {
    401: Fault.FORBIDDEN,
    403: Fault.FORBIDDEN,
    408: Fault.TIMEOUT,
    429: Fault.REFUSED,
    503: Fault.REFUSED,
    504: Fault.TIMEOUT,
    529: Fault.REFUSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`first` and `most` items at once; with equal numbers it stays there."""

    url: str
    api_key: str = field(default="", repr=False)
    item_timeout_s: float = 600.0
    first: int = 8
    most: int = 1024
    model: str = ""  # asked for where a body names none
    promises: Promises = field(default_factory=Promises)  # to others that it serves


class ServerWorker:
    """Raises `ConfigError` for a URL that is none."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._address = http_address(config.url)
        self.id = self._address.url
        self.batch = 0
        self.models: tuple[str, ...] = ()  # it knows itself what it has
        tls = ssl.create_default_context() if self._address.scheme == "https" else None
        limit_s = config.item_timeout_s
        self._client: HttpClient = client_of(
            Server(self._address.host, self._address.port, tls),
            self._address.authority,
            headers=own_headers(config.api_key),
            timeouts=Timeouts(first_byte_s=limit_s, between_bytes_s=limit_s, total_s=limit_s),
        )
        self._model = config.model
        self._recent = Recent()
        self._heard_s = 0.0

    @property
    def shared(self) -> bool:
        return bool(self._config.promises)

    async def strain(self) -> float:
        try:
            self._recent.feed(time.monotonic(), await self._read_metrics())
            self._heard_s = time.monotonic()
        except (HttpFault, ConfigError):
            return 1.0 if time.monotonic() - self._heard_s > UNHEARD_S else 0.0
        return self._config.promises.strain(ttft_s=self._recent.p95_s(TTFT), itl_s=self._recent.p95_s(ITL))

    async def _read_metrics(self) -> dict[str, dict[float, float]]:
        """Raises `HttpFault`, and `ConfigError` where the promises are to things that the server does not measure."""
        target = self._address.target("/metrics")
        head, body = await self._client.get(target, most_bytes=MAX_METRICS_BYTES, timeout_s=ASK_TIMEOUT_S)
        try:
            read = histograms(body.decode("utf-8", "replace")) if head.status == 200 else {}
        except ValueError:
            read = {}
        promises = self._config.promises
        for flag, promised, name in (
            ("--protect-ttft", promises.ttft_s, TTFT),
            ("--protect-itl", promises.itl_s, ITL),
        ):
            if promised is not None and name not in read:
                raise ConfigError(
                    f"{flag} needs to know how the other requests of {self.id} fare, and {self.id}/metrics "
                    f"(status {head.status}) has no histogram of it that is known: Headway's, vLLM's or SGLang's.",
                    param=flag.removeprefix("--").replace("-", "_"),
                )
        return read

    def climb(self) -> Climb:
        return Climb(self._config.first, self._config.most)

    async def start(self) -> None:
        """Asks which model it has, if nobody said. A server that is not there yet is no error: it may come. Raises
        `ConfigError` where one that is there cannot tell how the others fare whom it must not disturb.
        """
        if self.shared:
            with contextlib.suppress(HttpFault):
                self._recent.feed(time.monotonic(), await self._read_metrics())
                self._heard_s = time.monotonic()
        if self._model:
            return
        try:
            head, body = await self._client.get(
                self._address.target("/v1/models"), most_bytes=MAX_MODELS_BYTES, timeout_s=ASK_TIMEOUT_S
            )
            names = [one["id"] for one in msgspec.json.decode(body)["data"]] if head.status == 200 else []
        except (HttpFault, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            return
        if len(names) == 1 and isinstance(names[0], str):
            self._model = names[0]

    def prepare(self, item: Item) -> Sketch:
        if self._model:
            fields = JsonFields(item.body, name="`body`")
            if "model" not in fields:
                fields.set("model", msgspec.json.encode(self._model))
                item.body = fields.encoded()
        elif b'"model"' not in item.body:
            raise InvalidRequest("No model is named; say which with --model.", param="model", code="missing_model")
        return sketch(item)

    async def run(self, item: Item, cut: asyncio.Event) -> Answered | Failed:
        # It may be sent again: a completion leaves nothing behind, and nobody has read a word of the first answer.
        exchange = self._client.ask(
            "POST",
            self._address.target(item.url),
            headers=((b"content-type", b"application/json"),),
            body=item.body,
            repeatable=True,
        )
        asking = asyncio.ensure_future(_answer(exchange))
        cutting = asyncio.ensure_future(cut.wait())
        try:
            await asyncio.wait({asking, cutting}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            return Failed(
                fault=Fault.TIMEOUT,
                code="straggler",
                message="It ran much longer than the others and was cut off (--straggler-factor).",
                final=True,
            )
        finally:
            asking.cancel()
            cutting.cancel()
            exchange.close()

    async def close(self) -> None:
        await self._client.close()


async def _answer(exchange: Exchange) -> Answered | Failed:
    try:
        head = await exchange.head()
        body = await exchange.read_all(MAX_ANSWER_BYTES)
    except HttpFault as fault:
        return _fault_of(fault)
    exchange.release()
    return answer_of(head, body)


def _fault_of(fault: HttpFault) -> Failed:
    if isinstance(fault, NoConnection):
        return Failed(fault=Fault.UNREACHABLE, code="unreachable", message=f"There is no connection: {fault}.")
    if isinstance(fault, TooSlow):
        return Failed(fault=Fault.TIMEOUT, code="timeout", message=f"The server took too long: {fault}.")
    if isinstance(fault, NotHttp):
        return Failed(fault=Fault.SERVER, code="garbage", message=f"The answer cannot be understood: {fault}.")
    return Failed(fault=Fault.SERVER, code="broken_off", message=f"The answer broke off: {fault}.")


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: Any = None


class _Completion(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: Any = None


_completion = msgspec.json.Decoder(_Completion)


def answer_of(head: ResponseHead, body: bytes) -> Answered | Failed:
    """What a status and a body come to."""
    if not 200 <= head.status < 300:
        return _refusal(head, body)
    try:
        body.decode()
        told = _completion.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _useless(f"it is not a completion ({error})")
    if told.error is not None:  # some servers say 200 first
        return _refusal(ResponseHead(500, head.headers), body)
    if not told.choices:
        return _useless("it holds no choices")
    usage = told.usage or _Usage()
    details = usage.prompt_tokens_details
    timing = _server_timing(head.header(b"server-timing"))
    return Answered(
        body=body,
        request_id=head.header(b"x-request-id")[:200].decode("latin-1"),
        input_tokens=_count(usage.prompt_tokens),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=_count(usage.completion_tokens),
        queue_s=timing.get("queue"),
        prefill_s=timing.get("prefill"),
        decode_s=timing.get("decode"),
    )


def _useless(what: str) -> Failed:
    return Failed(fault=Fault.SERVER, code="garbage", message=f"The answer is of no use: {what}.")


def _refusal(head: ResponseHead, body: bytes) -> Failed:
    status, words = head.status, error_text(body)[:_SHOWN_CHARS].strip()
    code = f"http_{status}"
    message = f"The server said {status}" + (f": {words}" if words else ".")
    json = body if _is_json(body) else b""
    if status >= 500 and is_out_of_memory(words):
        return Failed(fault=Fault.OUT_OF_MEMORY, code=code, message=message, status=status, body=json)
    fault = _FAULTS.get(status)
    if fault is None:
        fault = Fault.SERVER if status >= 500 else Fault.BAD if status >= 400 else Fault.FORBIDDEN
    return Failed(fault=fault, code=code, message=message, retry_after_s=retry_after_s(head), status=status, body=json)


def retry_after_s(head: ResponseHead) -> float:
    """What it asks us to wait, in seconds or until a date by its own clock; 0 where it does not say. Never more than an
    hour.
    """
    for name, unit in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        value = head.header(name).strip()
        if re.fullmatch(rb"\d{1,12}(\.\d{1,9})?", value):
            return min(3600.0, float(value) * unit)
    until_s, now_s = _date_s(head.header(b"retry-after")), _date_s(head.header(b"date"))
    if until_s is None:
        return 0.0
    return min(3600.0, max(0.0, until_s - (time.time() if now_s is None else now_s)))


def _date_s(value: bytes) -> float | None:
    """Seconds since 1970; None for what is no date of HTTP's."""
    try:
        return parsedate_to_datetime(value.decode("ascii")).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _is_json(body: bytes) -> bool:
    try:
        body.decode()
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _server_timing(value: bytes) -> dict[str, float]:
    """Seconds by name."""
    found = re.findall(rb"([\w-]{1,32});dur=(\d{1,9}(?:\.\d{1,9})?)", value[:2000])
    return {name.decode(): float(number) / 1000 for name, number in found}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
