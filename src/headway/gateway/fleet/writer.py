"""`Writer`: a stream's pieces to its client, each as a chunk of its own."""

from __future__ import annotations

from typing import NoReturn

from aiohttp import web

from headway.gateway.edge import REQUEST_ID
from headway.gateway.writing import NEVER_BLOCKS_BYTES, write_in_time


class Writer:
    """Of a response whose headers are written."""

    __slots__ = ("_chunked", "_request", "_response", "_timeout_s", "_transport")

    def __init__(self, request: web.Request, response: web.StreamResponse, *, timeout_s: float) -> None:
        self._request = request
        self._response = response
        self._timeout_s = timeout_s
        self._transport = request.transport
        self._chunked = request.version >= (1, 1)

    async def write(self, piece: bytes) -> None:
        """Raises `ConnectionError` when the client is gone, or reads too slowly."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        if self._chunked and transport.get_write_buffer_size() + len(piece) < NEVER_BLOCKS_BYTES:
            transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))  # as the server frames it, at a fraction of the cost
            return
        who = self._request[REQUEST_ID]
        await write_in_time(self._request, self._response, piece, timeout_s=self._timeout_s, who=who)

    async def ended(self, last: bytes = b"") -> web.StreamResponse:
        """Write what is left to say, and end the response."""
        if last:
            await self.write(last)
        await self._response.write_eof()
        return self._response

    def cut(self) -> NoReturn:
        """Close the connection in the middle: its client sees that this is not all."""
        if self._transport is not None:
            self._transport.abort()
        raise ConnectionResetError("the answer is incomplete")
