"""Where the server will listen, and what it says when it cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headway.cli import status
from headway.cli.address import bound_socket, url_of
from headway.core.errors import ConfigError


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_told_before_the_model_is_loaded(taken_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The model does not exist: had it been loaded first, that would be the complaint."""
    assert status(["serve", "/no/such/model.gguf", "--port", str(taken_port)]) == 2
    assert capsys.readouterr().err == (
        f"headway: Port {taken_port} on 127.0.0.1 is in use. Choose another with --port; 0 takes a free one "
        '(with make: ARGS="--port 9000").\n'
    )


def test_port_zero_takes_a_free_one() -> None:
    with bound_socket("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_clients_are_refused_until_the_server_listens() -> None:
    with bound_socket("127.0.0.1", 0) as sock:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(sock.getsockname(), timeout=5)
        sock.listen()
        socket.create_connection(sock.getsockname(), timeout=5).close()


def test_every_interface_is_reached_by_name() -> None:
    with bound_socket("0.0.0.0", 0) as sock:
        assert url_of(sock).startswith("http://localhost:")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 is not an address of this machine"):
        bound_socket("192.0.2.1", 0)


def test_a_name_that_means_nothing() -> None:
    with pytest.raises(ConfigError, match=r"--host no\.such\.host\.invalid: "):
        bound_socket("no.such.host.invalid", 0)


def test_a_port_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_sock: socket.socket, _address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", forbidden)
    with pytest.raises(ConfigError, match="Port 80 may not be opened by this user; ports from 1024 on may"):
        bound_socket("127.0.0.1", 80)
