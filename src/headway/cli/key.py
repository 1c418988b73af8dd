"""The key that the environment holds, and which servers are sent it."""

from __future__ import annotations

import ipaddress
import os
import sys

from headway.wire.http_address import any_address

KEY_VARIABLES = ("HEADWAY_API_KEY", "OPENAI_API_KEY")
# Names that no public server has (RFC 6761, RFC 6762, RFC 8375, ICANN's resolution on .internal).
_PRIVATE_ENDINGS = (".localhost", ".local", ".home.arpa", ".internal")


def key_of_environment(url: str) -> str | None:
    """The key for this server, where there is one; and says on stderr which it is, for nobody typed it.

    It was set for some server, and perhaps not for this: over plain http it goes to hosts of one's own network only,
    for beyond that everybody on the way could read it. What is no URL gets none: whoever asks there says what is wrong.
    """
    variable = next(filter(os.environ.get, KEY_VARIABLES), None)
    if variable is None:
        return None
    try:
        address = any_address(url)
    except ValueError:
        return None
    host = address.host
    if not host.isprintable():
        return None
    if address.scheme == "https" or is_private(host):
        print(f"headway: with the key of {variable}", file=sys.stderr)
        return os.environ[variable]
    print(
        f"headway: without the key of {variable}: http://{host} is not encrypted, and on no network of your "
        "own. Use https; where a command has --api-key, that is sent all the same.",
        file=sys.stderr,
    )
    return None


def is_private(host: str) -> bool:
    """Whether it is this machine or one of its own network, by its name or its address; nobody is asked."""
    try:
        return not ipaddress.ip_address(host.partition("%")[0]).is_global
    except ValueError:
        name = host.rstrip(".").lower()
        return "." not in name or name.endswith(_PRIVATE_ENDINGS)
