"""Server-sent events, both ways: `event_bytes` frames what is sent, `EventParser` reads what arrives.

The parser follows the WHATWG grammar (section 9.2.6 of the HTML standard) byte by byte: lines end in LF, CR or CR LF,
even when a CR LF is split over two reads; `data` lines of one event are joined with LF; an event that the connection
cut off is not an event.
"""

from __future__ import annotations

from dataclasses import dataclass

DONE = b"data: [DONE]\n\n"
CONTENT_TYPE = "text/event-stream"
_BOM = b"\xef\xbb\xbf"


def event_bytes(data: bytes, *, event: str | None = None) -> bytes:
    """One event carrying `data`. Line ends inside `data` become several `data` lines, as the grammar wants."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    if b"\n" not in data and b"\r" not in data:
        return b"%bdata: %b\n\n" % (head, data)
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return head + b"".join(b"data: %b\n" % line for line in lines) + b"\n"


@dataclass(frozen=True, slots=True)
class Event:
    data: str
    event: str = "message"
    id: str = ""


class EventParser:
    """Feed it bytes as they arrive, in pieces of any size; it returns the events that became complete.

    How the bytes are cut never changes the events. Memory is bounded by the largest event.
    """

    __slots__ = ("_after_cr", "_data", "_event", "_id", "_line", "_started")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line being received
        self._after_cr = False  # the last byte seen was a CR: an LF that follows belongs to it
        self._started = False  # the first line, which may carry a byte-order mark, was read
        self._data: list[bytes] = []
        self._event = b""
        self._id = b""  # kept from event to event

    @property
    def incomplete(self) -> bool:
        """Whether bytes were fed that no event accounts for: at the end of a stream, a sign that it was cut off."""
        return bool(self._data or any(self._line))

    def feed(self, chunk: bytes) -> list[Event]:
        if not chunk:
            return []
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._after_cr = chunk[-1:] == b"\r"
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._line.append(chunk)
            return []
        first, *lines = chunk.split(b"\n")
        first = b"".join((*self._line, first))
        self._line = [lines.pop()]
        events = []
        for line in (first, *lines):
            event = self._read(line)
            if event is not None:
                events.append(event)
        return events

    def _read(self, line: bytes) -> Event | None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value
        elif name == b"id" and b"\0" not in value:
            self._id = value
        return None  # comments, `retry` and unknown fields say nothing here

    def _dispatch(self) -> Event | None:
        data, event = self._data, self._event
        self._data, self._event = [], b""
        if not data:
            return None
        return Event(
            data=b"\n".join(data).decode("utf-8", "replace"),
            event=event.decode("utf-8", "replace") or "message",
            id=self._id.decode("utf-8", "replace"),
        )
