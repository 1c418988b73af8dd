"""`Leftover`: the end of an answer that nobody waits for."""

from __future__ import annotations

from headway.wire.http_connection import Connection, Headers, HttpFault


class Leftover:
    """Takes the place of whoever asked: the connection serves again if the body's end comes before `close`."""

    __slots__ = ("_connection", "reused")

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self.reused = False
        connection.hand_over(self)

    def close(self) -> None:
        """Unless the body has ended, and another call perhaps goes this way."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def on_head(self, status: int, headers: Headers, now_ns: int) -> None: ...

    def on_body(self, data: bytes, now_ns: int) -> None: ...

    def on_complete(self, now_ns: int) -> None:
        del now_ns
        self._connection = None

    def on_broken(self, fault: HttpFault, now_ns: int, *, answered: bool) -> None:
        del fault, now_ns, answered
        self._connection = None
