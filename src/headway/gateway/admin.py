"""What an operator may change while serving. Answers only the machine it runs on, as far as that can be told."""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import Any

import msgspec
from aiohttp import web

from headway.core.errors import HeadwayError, InvalidRequest
from headway.gateway.inform import json_response
from headway.gateway.service import SERVICE

MAX_HOST_CHARS = 64  # of it in a message
# A proxy on this machine makes the whole world look local, and so does a browser that shows somebody's page; these say
# that it is not. Where a browser leaves `origin` out, `sec-fetch-site` tells whose page it was.
_FROM_ELSEWHERE = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"),
    "origin",
)
# Where a local client comes from. The rest of 127.0.0.0/8 is a forwarder's choice: 127.0.0.6 is a mesh's sidecar.
_SOURCES = {ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")}
_NAMES = {"localhost", "ip6-localhost"}


class NotLocal(HeadwayError):
    """Administration from elsewhere."""

    status = 403
    type = "permission_error"
    code = "not_local"


async def config(request: web.Request) -> web.Response:
    """The engine's configuration as it is now, and `precision`: what came of `dtype` on this machine."""
    check_local(request)
    backend = request.app[SERVICE].backend
    told = dataclasses.asdict(backend.config)
    if (info := getattr(backend, "info", None)) is not None:  # only what computes itself knows
        told["precision"] = info.precision
    return json_response(told)


async def reconfigure(request: web.Request) -> web.Response:
    """POST the settings to change, as JSON: all of them are taken, or none. Answers with the whole configuration."""
    check_local(request)
    service = request.app[SERVICE]
    try:
        changes: Any = msgspec.json.decode(await service.body(request))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(changes, dict) or not changes:
        raise InvalidRequest('Send an object of settings, such as {"max_num_seqs": 32}.', code="invalid_value")
    return json_response(dataclasses.asdict(service.backend.reconfigure(**changes)))


def check_local(request: web.Request) -> None:
    """Raises `NotLocal` for who is not on this machine, or is a web page in a browser on it.

    A page whose own name was pointed at this machine (DNS rebinding) is of our origin to its browser. Its name is then
    in `Host`, as is the address that was asked where something on this machine forwards connections: only names that
    mean the asker's own machine are taken. A forwarder that says `localhost` itself, and nothing else, is not seen.
    """
    headers = request.headers
    page = headers.get("Sec-Fetch-Site", "none") not in {"same-origin", "none"}
    if _address(request.remote or "") not in _SOURCES or page or any(name in headers for name in _FROM_ELSEWHERE):
        raise NotLocal("Administration answers only requests from this machine, through no proxy and from no web page.")
    host = headers.get("Host", "")
    name = _without_port(host)
    address = _address(name)
    if name not in _NAMES and (address is None or not address.is_loopback):
        raise NotLocal(
            f"Administration answers only to localhost or a loopback address, since any page can have its name point "
            f"here, and anything can forward here what it was sent; this request's Host is {host[:MAX_HOST_CHARS]!r}. "
            "Ask http://localhost:PORT on this machine instead."
        )


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A socket of both families (`--host ::`) shows an IPv4 peer as ::ffff:127.0.0.1."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _without_port(host: str) -> str:
    """And an IPv6 address without its brackets, a name without the dot of its root."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host.rpartition(":")[0] if ":" in host else host).lower().removesuffix(".")
