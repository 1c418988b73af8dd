"""Bytes carry the time at which the kernel received them, however late this process reads them.

A client that is busy, or was not run for a while, would otherwise measure its own delay as the server's. Linux stamps
what arrives on a socket that asks for it (SO_TIMESTAMPNS, socket(7)) on the real-time clock. Where it does not, and
under TLS, where records are read by the TLS library, arrival is when the bytes are read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Sequence
from time import monotonic_ns, time_ns

from headway.wire.http_connection import Connection, Server, connect_by_loop

NS_PER_S = 1_000_000_000
SO_TIMESTAMPNS = 35  # the same in all of Linux' 64-bit ABIs that Python is built for; the module `socket` lacks it
_TIMESPEC = struct.Struct("@qq")
_SPACE_BYTES = 64  # for one stamp
READ_BYTES = 64 * 1024
STEP_NS = 1_000_000  # more than a clock is slewed between two reads: somebody has set it
DISTRUST_NS = NS_PER_S  # what arrived before that is read by then

_Ancillary = Sequence[tuple[int, int, bytes]]


class KernelTime:
    """The kernel's stamps on the clock of `time.monotonic_ns`. Those around a step of the real-time clock are left."""

    __slots__ = ("_offset_ns", "_trusted_from_ns")

    def __init__(self) -> None:
        self._offset_ns = time_ns() - monotonic_ns()
        self._trusted_from_ns = 0

    def arrived_ns(self, ancillary: _Ancillary) -> int:
        """When the last of what was just read arrived: never later than now."""
        now_ns = monotonic_ns()
        offset_ns = time_ns() - now_ns
        if abs(offset_ns - self._offset_ns) > STEP_NS:
            self._trusted_from_ns = now_ns + DISTRUST_NS
        self._offset_ns = offset_ns
        if now_ns < self._trusted_from_ns:
            return now_ns
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, ns = _TIMESPEC.unpack(data)
                return min(now_ns, int(seconds) * NS_PER_S + int(ns) - offset_ns)
        return now_ns


class StampedTransport(asyncio.Transport):
    """A connected socket as `Connection` needs it. What is written is sent at once, as far as the socket takes it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, connection: Connection, clock: KernelTime
    ) -> None:
        super().__init__()
        self._loop = loop
        self._sock = sock
        self._connection = connection
        self._clock = clock
        self._since_ns = 0  # the last arrival: time does not run backwards on a connection
        self._unsent = bytearray()
        self._over = False
        connection.connection_made(self)
        if not self._over:
            loop.add_reader(sock, self._readable)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._over:
            return
        if not self._unsent:
            try:
                data = memoryview(data)[self._sock.send(data) :]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._loop.call_soon(self._lost, error)
                return
            if not data:
                return
            self._loop.add_writer(self._sock, self._writable)
        self._unsent += data

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def pause_reading(self) -> None:
        if not self._over:
            self._loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        if not self._over:
            self._loop.add_reader(self._sock, self._readable)

    def abort(self) -> None:
        if not self._over:
            self._over = True
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, _SPACE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        if data:
            self._since_ns = max(self._since_ns, self._clock.arrived_ns(ancillary))
            self._connection.arrived(data, self._since_ns)
        else:
            self._lost(None)

    def _writable(self) -> None:
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _lost(self, error: OSError | None) -> None:
        if not self._over:
            self.abort()
            self._connection.connection_lost(error)


class ConnectStamped:
    """Makes a pool's connections to an address, with stamps where there are any."""

    def __init__(self) -> None:
        self._clock = KernelTime()

    async def __call__(self, connection: Connection, server: Server) -> None:
        if sys.platform != "linux" or server.tls is not None:
            await connect_by_loop(connection, server)
            return
        loop = asyncio.get_running_loop()
        StampedTransport(loop, await _connected(loop, server), connection, self._clock)


async def _connected(loop: asyncio.AbstractEventLoop, server: Server) -> socket.socket:
    found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
