"""`Record`: what became of one item, and the lines that tell it: OpenAI's, with our part under `headway`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from headway.core.batch.dispatch import ErrorClass


class Record(Struct, kw_only=True, omit_defaults=True):
    """Seconds and tokens; None is not known. `wall_s` is from the last start to the end, and holds the others."""

    line: int
    hash: str  # of the url and the body as they stood in the input
    tries: int = 0
    worker: str = ""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    wall_s: float | None = None
    ended_at: float = 0.0  # seconds since 1970
    cut: bool = False  # its output was cut off, since it ran on when nearly everything was done
    error_class: str = ""


class Written(Struct, kw_only=True):
    """What is read again of a line that was written; the rest of it is not looked at."""

    headway: Record
    custom_id: str | None = None


class ErrorBody(Struct, kw_only=True):
    code: str
    message: str


class Response(Struct, kw_only=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class Line(Struct, kw_only=True):
    id: str
    custom_id: str | None
    response: Response | None
    error: ErrorBody | None
    headway: Record


written = msgspec.json.Decoder(Written)
_encoder = msgspec.json.Encoder()


def hex_of(value: int) -> str:
    return f"{value:016x}"


def answer_line(custom_id: str, record: Record, body: bytes, request_id: str) -> bytes:
    """With its line end."""
    response = Response(status_code=200, request_id=request_id, body=msgspec.Raw(body))
    return _line(Line(id=_id(record), custom_id=custom_id, response=response, error=None, headway=record))


def error_line(
    custom_id: str | None, record: Record, error: ErrorBody, *, status: int = 0, body: bytes = b"", request_id: str = ""
) -> bytes:
    """`body`: what the server said, as JSON."""
    response = Response(status_code=status, request_id=request_id, body=msgspec.Raw(body)) if status and body else None
    return _line(Line(id=_id(record), custom_id=custom_id, response=response, error=error, headway=record))


def bad_item(line: int, body_hash: int, now: float) -> Record:
    return Record(line=line, hash=hex_of(body_hash), ended_at=now, error_class=ErrorClass.BAD_ITEM.value)


def _id(record: Record) -> str:
    return f"batch_req_{record.line}_{record.hash}"


def _line(line: Line) -> bytes:
    return _encoder.encode(line).replace(b"\n", b" ") + b"\n"  # a server's JSON may be spread over lines
