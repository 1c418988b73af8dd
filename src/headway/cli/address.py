"""The server's address, taken before a model is loaded: a port in use must be known in a moment, not in a minute."""

from __future__ import annotations

import errno
import socket

from headway.core.errors import ConfigError


def bound_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet: clients are refused, not kept waiting, while the model loads.

    Raises ConfigError when the address is in use, not ours, not allowed or unknown.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}.", param="host") from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise unusable(host, port, error) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a client on this machine reaches the socket."""
    host, port = sock.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def unusable(host: str, port: int, error: OSError) -> ConfigError:
    """The one message for an address that cannot be had."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"Port {port} on {host} is in use. Choose another with --port; 0 takes a free one "
            '(with make: ARGS="--port 9000").',
            param="port",
        )
    if error.errno == errno.EACCES:
        return ConfigError(f"Port {port} may not be opened by this user; ports from 1024 on may.", param="port")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"--host {host} is not an address of this machine.", param="host")
    return ConfigError(f"{host}:{port} cannot be listened on: {error.strerror}.", param="port")
