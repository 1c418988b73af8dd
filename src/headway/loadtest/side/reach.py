"""Whether somebody is there: the host's addresses, and the first of them that takes a connection."""

from __future__ import annotations

import asyncio
import socket
import ssl

from headway.loadtest.client.exchange import describe
from headway.loadtest.errors import TlsFailed, Unreachable
from headway.wire.http_address import HttpAddress


async def reach(address: HttpAddress, tls: ssl.SSLContext | None, timeout_s: float) -> tuple[str, int]:
    """An address and port that a connection, encrypted if it must be, can be made to. Raises `LoadTestError`s."""
    loop = asyncio.get_running_loop()
    where = address.authority
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"The host {address.host!r} has no address ({error}). Check the URL's spelling.") from None
    failure: Exception = OSError("no address")
    for *_, socket_address in found:
        host, port = str(socket_address[0]), int(socket_address[1])
        answered = False
        try:
            await _connect(host, port, None, None, timeout_s)
            answered = True
            if tls is not None:
                await _connect(host, port, tls, address.host, timeout_s)
        except ssl.SSLCertVerificationError as error:
            raise TlsFailed(
                f"The certificate of {where} is not trusted: {error.verify_message}. Give its authority's "
                "certificate, or turn verification off if you know the server."
            ) from None
        except ssl.SSLError as error:
            words = error.reason or str(error)
            raise TlsFailed(f"{where} does not speak TLS as asked ({words}). Is it a plain http:// server?") from None
        except TimeoutError:
            if answered:
                raise TlsFailed(
                    f"{where} took a connection and no TLS within {timeout_s:g} s. Is it a plain http:// server?"
                ) from None
            failure = TimeoutError(f"no answer within {timeout_s:g} s")
        except OSError as error:
            failure = error
        else:
            return host, port
    raise Unreachable(f"No connection to {where}: {describe(failure)}. Is the server running, and the port right?")


async def _connect(host: str, port: int, tls: ssl.SSLContext | None, name: str | None, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        transport, _ = await loop.create_connection(asyncio.Protocol, host, port, ssl=tls, server_hostname=name)
    transport.abort()
