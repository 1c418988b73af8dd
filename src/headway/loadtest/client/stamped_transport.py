"""`StampedTransport`: a plain socket of which each read carries the time at which the kernel received it."""

from __future__ import annotations

import asyncio
import socket
import sys

from headway.loadtest.client.kernel_time import SPACE_BYTES, KernelTime, ask_for_stamps
from headway.wire.http_connection import Connection
from headway.wire.http_pool import Connect, Server, connect_by_loop

READ_BYTES = 64 * 1024


class StampedTransport:
    """A connected socket as `Connection` needs it. What is written is sent at once, as far as the socket takes it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, connection: Connection, clock: KernelTime
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._connection = connection
        self._clock = clock
        self._since_ns = 0  # the last arrival: time does not run backwards on a connection
        self._unsent = bytearray()
        self._over = False
        connection.connection_made(self)
        self.resume_reading()

    def write(self, data: bytes) -> None:
        if self._over:
            return
        rest = memoryview(data)
        if not self._unsent:
            try:
                rest = rest[self._sock.send(data) :]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._loop.call_soon(self._lost, error)
                return
            if not rest:
                return
            self._loop.add_writer(self._sock, self._writable)
        self._unsent += rest

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
            data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, SPACE_BYTES)
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


def connecting(clock: KernelTime) -> Connect:
    """How a pool connects to an address: with stamps, but by the loop's own means under TLS and on other systems."""

    async def connect(connection: Connection, server: Server) -> None:
        if sys.platform != "linux" or server.tls is not None:
            await connect_by_loop(connection, server)
        else:
            loop = asyncio.get_running_loop()
            StampedTransport(loop, await _connected_socket(loop, server), connection, clock)

    return connect


async def _connected_socket(loop: asyncio.AbstractEventLoop, server: Server) -> socket.socket:
    found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(sock)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
