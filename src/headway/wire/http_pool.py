"""`Pool`: connections to one server that are kept open and used again, and how they are made."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic_ns

from headway.wire.http_connection import NS_PER_S, Connection, Cut, HttpFault, Inbox, NoConnection


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str = ""  # that its certificate must have; empty for `host`


# Connects a fresh connection to a server: calls its `connection_made`. Raises OSError.
Connect = Callable[[Connection, Server], Awaitable[None]]


async def connect_by_loop(connection: Connection, server: Server) -> None:
    await asyncio.get_running_loop().create_connection(
        lambda: connection,
        server.host,
        server.port,
        ssl=server.tls,
        server_hostname=(server.server_name or server.host) if server.tls is not None else None,
    )


class Pool:
    """Connections to one server: as many as there are calls at once. The last used is used again first.

    One that was idle for `idle_s` is closed: most servers close theirs after 5 s, and a request that crosses with that
    close is lost.
    """

    def __init__(
        self,
        server: Server,
        *,
        connect_timeout_s: float = 5.0,
        idle_s: float = 4.0,
        inbox: Inbox | None = None,
        connect: Connect = connect_by_loop,
    ) -> None:
        self.server = server
        self.inbox = inbox
        self.idle: list[Connection] = []
        self.connections: set[Connection] = set()
        self.opened = 0
        self._connect = connect
        self._connect_timeout_s = connect_timeout_s
        self._idle_ns = int(idle_s * NS_PER_S)
        self._opening: dict[asyncio.Task[None], Callable[[Connection | HttpFault], None]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self) -> Connection | None:
        """An idle connection, or None."""
        while self.idle:
            connection = self.idle.pop()
            if connection.alive and monotonic_ns() - connection.idle_since_ns < self._idle_ns:
                return connection
            connection.close()
        return None

    def release(self, connection: Connection, now_ns: int) -> None:
        """It may carry another call."""
        if self._closed:
            connection.close()
            return
        connection.idle_since_ns = now_ns
        self.idle.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._idle_ns / NS_PER_S, self._sweep)

    def _sweep(self) -> None:
        """The oldest are first."""
        self._sweeping = None
        now_ns = monotonic_ns()
        old = [one for one in self.idle if not one.alive or now_ns - one.idle_since_ns >= self._idle_ns]
        self.idle = [one for one in self.idle if one.alive and now_ns - one.idle_since_ns < self._idle_ns]
        for connection in old:
            connection.close()
        if self.idle:
            wait_ns = self.idle[0].idle_since_ns + self._idle_ns - now_ns
            self._sweeping = asyncio.get_running_loop().call_later(max(0.001, wait_ns / NS_PER_S), self._sweep)

    def open(self, ready: Callable[[Connection | HttpFault], None]) -> asyncio.Task[None]:
        """Connect; `ready` gets the connection or what went wrong. Cancel the task to give up."""
        task = asyncio.get_running_loop().create_task(self._open(ready))
        self._opening[task] = ready
        task.add_done_callback(lambda done: self._opening.pop(done, None))
        return task

    async def _open(self, ready: Callable[[Connection | HttpFault], None]) -> None:
        connection, made = Connection(self), False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._connect(connection, self.server)
        except TimeoutError as error:
            late = NoConnection(f"no connection within {self._connect_timeout_s:g} s")
            late.__cause__ = error
            ready(late)
        except (OSError, ssl.SSLError) as error:
            fault = NoConnection(words_of(error))
            fault.__cause__ = error
            ready(fault)
        else:
            made = True
            self.opened += 1
            ready(connection)
        finally:
            if not made:
                connection.close()  # it may be half open

    def move(self, server: Server) -> None:
        """The server is elsewhere now. Calls in flight are not touched."""
        self.server = server
        self._drop_idle()

    def _drop_idle(self) -> None:
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()

    async def close(self) -> None:
        """Every call in flight is told. The pool takes nobody any more."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for task, ready in tuple(self._opening.items()):
            if not task.done():  # else it was told already
                task.cancel()
                ready(NoConnection("the client is being closed"))
        self._drop_idle()
        for connection in tuple(self.connections):
            connection.give_up(Cut("the client is being closed"))
        await asyncio.sleep(0)


def words_of(error: Exception) -> str:
    """A failure to connect in few words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'verify_message', '') or error.reason or error}"
    return str(error) or type(error).__name__
