"""The lines of a batch: read from its input file, checked; written to its output files."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Raw, Struct

from headway.store import AsyncStore, BatchError
from headway.wire import limits

MAX_LINE_BYTES = limits.MAX_BODY_BYTES + 64 * 1024
MAX_CUSTOM_ID = 512
_BOM = b"\xef\xbb\xbf"

Numbered = tuple[int, bytes]


class Line(Struct, frozen=True):
    """One request of a batch."""

    number: int
    custom_id: str
    body: bytes
    model: str

    @property
    def body_hash(self) -> bytes:
        return hashlib.sha256(self.body).digest()[:16]


class WrongLine(Exception):
    """A line that is no request; `error` as the batch tells it."""

    def __init__(self, number: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = BatchError(code=code, message=message, line=number, param=param)


class _Line(Struct):
    custom_id: str
    method: str
    url: str
    body: Raw


class _Body(Struct):
    model: str | None = None


_line = msgspec.json.Decoder(_Line)
_body = msgspec.json.Decoder(_Body)


async def read_lines(store: AsyncStore, file_id: str, owner: str) -> AsyncIterator[list[Numbered]]:
    """The lines of a stored file with their numbers, from 1, as many at a time as a piece of it holds.

    Blank lines are left out. One that is too long is cut, so that it can be told from a good one. Raises `StoreError`.
    """
    number, rest, cut = 0, b"", False
    async with aclosing(store.read(file_id, owner)) as pieces:  # type: ignore[type-var] # an async generator is one
        async for piece in pieces:
            *whole, last = piece.split(b"\n")
            lines: list[Numbered] = []
            for text in whole:
                number += 1
                lines.append((number, rest + (b"" if cut else text)))
                rest, cut = b"", False
            if not cut:
                rest += last
            cut = len(rest) > MAX_LINE_BYTES
            if found := _cleaned(lines):
                yield found
    if found := _cleaned([(number + 1, rest)]):
        yield found


def _cleaned(lines: Sequence[Numbered]) -> list[Numbered]:
    stripped = ((number, (text.removeprefix(_BOM) if number == 1 else text).strip()) for number, text in lines)
    return [(number, text) for number, text in stripped if text]


def parse_line(number: int, text: bytes, endpoint: str) -> Line:
    """Raises `WrongLine`."""
    if len(text) > MAX_LINE_BYTES:
        raise WrongLine(number, "line_too_long", f"The line has more than {MAX_LINE_BYTES:,} bytes, the limit.")
    try:
        text.decode()
        line = _line.decode(text)
        body = bytes(line.body)
        model = _body.decode(body).model or ""
    except msgspec.ValidationError as error:
        raise WrongLine(number, "invalid_request", f"The line is no request: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongLine(number, "invalid_json_line", f"The line is not valid JSON: {error}.") from None
    if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID or "\0" in line.custom_id:
        raise WrongLine(
            number,
            "invalid_custom_id",
            f"custom_id must have 1 to {MAX_CUSTOM_ID} characters, and no NUL.",
            "custom_id",
        )
    if line.method != "POST":
        raise WrongLine(number, "invalid_method", f"method must be POST, not {line.method[:40]!r}.", "method")
    if line.url != endpoint:
        raise WrongLine(
            number, "invalid_url", f"url must be the endpoint of the batch, {endpoint}, not {line.url[:80]!r}.", "url"
        )
    return Line(number, line.custom_id, body, model)


# -- output --------------------------------------------------------------------------------------------------------


class _Response(Struct):
    status_code: int
    request_id: str
    body: Raw


class _Error(Struct):
    code: str
    message: str


class _Told(Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


def answer_line(request_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """What came of a line, in OpenAI's shape. An answer may be written over several lines; JSON does not mind."""
    flat = body.replace(b"\n", b" ").replace(b"\r", b" ")
    try:
        raw = msgspec.json.decode(flat, type=Raw)
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raw = Raw(msgspec.json.encode({"error": {"message": flat[:1000].decode(errors="replace")}}))
    return _encoded(_Told(line_id(request_id), custom_id, _Response(status, request_id, raw), None))


def unanswered_line(request_id: str, custom_id: str, code: str, message: str) -> bytes:
    """Of a line that was never computed."""
    return _encoded(_Told(line_id(request_id), custom_id, None, _Error(code, message)))


def line_id(request_id: str) -> str:
    return f"batch_req_{hashlib.sha256(request_id.encode()).hexdigest()[:24]}"


def _encoded(told: _Told) -> bytes:
    return msgspec.json.encode(told) + b"\n"
