"""`StampedSockets`: a pool's plain sockets, of which each read carries the time at which the kernel received it.

They are looked at together, by an epoll of their own: at once when one has something, and after `LOOK_S` otherwise. So
it is known when a socket had nothing yet: a stamp that is older is not of what has become readable since. Of a segment
that was lost, what came after it waits in the kernel, and only its retransmission makes all of it readable.

All that have something are read first and parsed then: the kernel's code and the parsers' would otherwise drive each
other out of the processor's caches with every chunk. At a flood only so much is read, so that sends get their turn: the
rest waits in the kernel, each socket for its turn. How long that is, a file that stands in the same line can tell.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import TypeAlias

from headway.loadtest.client.kernel_time import SPACE_BYTES, KernelTime, ask_for_stamps
from headway.wire.http_connection import Connection
from headway.wire.http_pool import Server, connect_by_loop

_BUFFER = memoryview(bytearray(16 * 1024))  # of all, as each takes out what it reads
_INTO = [_BUFFER]  # as `recvmsg_into` wants it
_READABLE = select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP if sys.platform == "linux" else 0
LOOK_S = 0.1  # a run's own alarm rings more often, and is looked at as well
# At one look, some 300 µs but for one larger read: then sends get their turn. A look costs as much as reading one or
# two sockets; a chunk of a stream is some 200 bytes, and a whole answer of a fast server a few thousand.
READS, LOOK_BYTES = 16, 2048
_Taken: TypeAlias = "tuple[_Transport | _File, bytes, int]"  # and when it arrived


class StampedSockets:
    """How a pool connects to an address. Under TLS, and on other systems than Linux, the loop's own way is taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, _Transport | _File] = {}
        self._left: list[tuple[int, int]] = []  # seen to be ready, and not taken at that look
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._next: asyncio.TimerHandle | None = None
        self.time = KernelTime()
        self._looked_ns = monotonic_ns()
        # The kernel begins to stamp a moment after the first socket asks for it, and ends with the last.
        self._first = socket.socket()
        ask_for_stamps(self._first)
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._look)

    async def connect(self, connection: Connection, server: Server) -> None:
        """Raises OSError."""
        if self._epoll is None or server.tls is not None:
            await connect_by_loop(connection, server)
            return
        transport = _Transport(self, await _connected_socket(self._loop, server), connection)
        self._watched[transport.fileno] = transport
        self._epoll.register(transport.fileno, select.EPOLLIN)
        connection.connection_made(transport)
        if self._next is None:
            self._look_again()

    def close(self) -> None:
        """When all connections are."""
        self._first.close()
        if self._next is not None:
            self._next.cancel()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def add_reader(self, fileno: int, callback: Callable[[], None]) -> None:
        """A file that waits for its turn as the sockets do."""
        if self._epoll is None:
            self._loop.add_reader(fileno, callback)
            return
        self._watched[fileno] = _File(callback)
        self._epoll.register(fileno, select.EPOLLIN)

    def remove_reader(self, fileno: int) -> None:
        if self._epoll is None:
            self._loop.remove_reader(fileno)
        else:
            self._watched[fileno].over = True
            self.forget(fileno)

    def watch(self, fileno: int, events: int) -> None:
        """What a socket is looked at for; an error is always seen."""
        if self._epoll is not None:
            self._epoll.modify(fileno, events)

    def forget(self, fileno: int) -> None:
        del self._watched[fileno]
        if self._epoll is not None:
            self._epoll.unregister(fileno)

    def _look_again(self) -> None:
        self._next = self._loop.call_later(LOOK_S, self._look_again)
        self._look()

    def _look(self) -> None:
        if self._epoll is None:
            return
        nothing_ns, now_ns = self._looked_ns, self.time.compare()
        taken, all_seen = self._take(self._epoll, nothing_ns)
        if all_seen:
            self._looked_ns = now_ns
        self._tell(iter(taken))

    def _take(self, epoll: select.epoll, nothing_ns: int) -> tuple[list[_Taken], bool]:
        """What is heard at this look, and whether that is all there is."""
        ready, self._left = self._left, []
        all_seen = not ready
        if all_seen:
            ready = epoll.poll(0, READS)
            all_seen = len(ready) < READS
        taken: list[_Taken] = []
        taken_bytes = 0
        for place, (fileno, events) in enumerate(ready):
            if taken_bytes > LOOK_BYTES:  # who is not at the front now would never be: the kernel keeps their order
                self._left = ready[place:]
                return taken, False
            watched = self._watched.get(fileno)  # None: closed since it was seen
            if watched is not None and (one := watched.take(events, nothing_ns)):
                taken.append(one)
                taken_bytes += len(one[1])
                all_seen &= len(one[1]) < len(_BUFFER)
        return taken, all_seen

    def _tell(self, stamped: Iterator[_Taken]) -> None:
        try:
            for one, data, at_ns in stamped:
                if not one.over:  # by what another one has said
                    one.hear(data, at_ns)
        except BaseException:
            self._loop.call_soon(self._tell, stamped)  # a defect in one call must not leave the others unheard
            raise


class _File:
    """No socket, but waits among them."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.over = False

    def take(self, events: int, nothing_ns: int) -> _Taken:
        del events
        return self, b"", nothing_ns

    def hear(self, data: bytes, at_ns: int) -> None:
        del data, at_ns
        self._callback()


class _Transport:
    """A connected socket as `Connection` needs it. What is written is sent at once, as far as the socket takes it."""

    def __init__(self, sockets: StampedSockets, sock: socket.socket, connection: Connection) -> None:
        self._sockets = sockets
        self._time = sockets.time
        self._sock = sock
        self._connection = connection
        self._since_ns = 0  # the last arrival, or the last write: no answer is older than its request
        self._unsent = bytearray()
        self._reads = True
        self._events = select.EPOLLIN  # that it is looked at for
        self.over = False
        self._failure: OSError | None = None  # to send, or to receive
        self.fileno = sock.fileno()

    def write(self, data: bytes) -> None:
        self._since_ns = max(self._since_ns, monotonic_ns())
        if self.over or self._failure is not None:
            return
        waits = bool(self._unsent)
        self._unsent += data
        if not waits:
            self._send()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def pause_reading(self) -> None:
        self._reads = False
        self._watch()

    def resume_reading(self) -> None:
        self._reads = True
        self._watch()

    def abort(self) -> None:
        if not self.over:
            self.over = True
            self._sockets.forget(self.fileno)
            self._sock.close()

    def take(self, events: int, nothing_ns: int) -> _Taken | None:
        """What there is to read, and when it arrived: not at `nothing_ns` yet. No bytes are the end."""
        if events & select.EPOLLOUT:
            self._send()
        if not events & _READABLE:
            return None
        try:
            count, ancillary, _, _ = self._sock.recvmsg_into(_INTO, SPACE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self._failure, count = error, 0
        if not count:
            return self, b"", monotonic_ns()
        self._since_ns = max(self._since_ns, nothing_ns, self._time.arrived_ns(ancillary, monotonic_ns()))
        return self, _BUFFER[:count].tobytes(), self._since_ns

    def hear(self, data: bytes, at_ns: int) -> None:
        if data:
            self._connection.read(data, at_ns)
        else:
            self.abort()
            self._connection.connection_lost(self._failure)

    def _send(self) -> None:
        """What cannot be sent is given up; what the server has said before it went away is read all the same."""
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._failure = error
            self._unsent.clear()
        self._watch()

    def _watch(self) -> None:
        events = (select.EPOLLIN if self._reads else 0) | (select.EPOLLOUT if self._unsent else 0)
        if not self.over and events != self._events:
            self._events = events
            self._sockets.watch(self.fileno, events)


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
