"""A blocking call ends in time, whatever the server does, and whoever hangs up frees who reads."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headway.core.errors import ConfigError
from headway.wire.asker import Asker, Unreachable
from headway.wire.blocking import connection_to, hang_up, within

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """One connection, in a thread; it ends with the test."""

    def run() -> None:
        there, _ = listener.accept()
        with there:
            try:
                there.recv(65536)
                serve(there)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(5)
        assert not thread.is_alive()


def trickle(first: bytes) -> Callable[[socket.socket], None]:
    def serve(there: socket.socket) -> None:
        there.sendall(first)
        for _ in range(100):
            time.sleep(0.05)
            there.sendall(b"a")

    return serve


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nx: ", HEAD], ids=["line", "headers", "body"])
def test_a_byte_now_and_then_is_no_answer(first: bytes) -> None:
    """Each of them comes within the limit of one read."""
    with server(trickle(first)) as port:
        asker = Asker(f"http://127.0.0.1:{port}", timeout_s=0.4)
        began_s = time.monotonic()
        with pytest.raises(Unreachable, match=r"did not answer within 0\.4 s"):
            asker.try_get("/metrics")
        assert time.monotonic() - began_s < 3
        asker.close()


def test_a_body_that_ends_with_its_connection_and_is_cut_is_not_whole() -> None:
    with server(trickle(b"HTTP/1.1 200 OK\r\n\r\n")) as port:
        connection = connection_to("127.0.0.1", port, None, 5.0)
        connection.connect()

        def ask() -> bytes:
            with within(connection, 0.3):
                connection.request("GET", "/")
                return connection.getresponse().read()

        with pytest.raises(TimeoutError, match=r"no whole answer within 0\.3 s"):
            ask()
        hang_up(connection)


def test_who_hangs_up_frees_who_reads() -> None:
    with server(trickle(HEAD)) as port:
        connection = connection_to("127.0.0.1", port, None, 5.0)
        connection.request("GET", "/")
        response = connection.getresponse()
        failed: list[Exception] = []

        def read() -> None:
            try:
                response.read()
            except Exception as error:
                failed.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.2)
        hang_up(connection)
        reader.join(5)
        assert not reader.is_alive()
        assert failed


def test_what_comes_before_an_answer_is_not_the_answer() -> None:
    def serve(there: socket.socket) -> None:
        there.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        there.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    with server(serve) as port:
        answer = Asker(f"http://127.0.0.1:{port}").get("/")
        assert (answer.status, answer.body) == (200, b"ok")


def test_port_0_is_nobodys() -> None:
    with pytest.raises(ConfigError, match="port 0"):
        Asker("http://here:0")
