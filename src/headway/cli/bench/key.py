"""The key that the environment holds, and which servers are sent it."""

from __future__ import annotations

import ipaddress
import os
import sys

from headway.loadtest.client.address import parse_url
from headway.loadtest.report.wording import printable

KEY_VARIABLES = ("HEADWAY_API_KEY", "OPENAI_API_KEY")
# Names that no public server has (RFC 6761, RFC 6762, RFC 8375, ICANN's resolution on .internal).
_PRIVATE_ENDINGS = (".localhost", ".local", ".home.arpa", ".internal")


def key_of_environment(url: str) -> str | None:
    """The key for this server, where there is one; and says on stderr which it is, for nobody typed it.

    It was set for some server, and perhaps not for this: over plain http it goes to hosts of one's own network only,
    for beyond that everybody on the way could read it. Raises `InvalidPlan` for what is no URL.
    """
    variable = next(filter(os.environ.get, KEY_VARIABLES), None)
    if variable is None:
        return None
    address, _ = parse_url(url)
    if address.scheme == "https" or is_private(address.host):
        print(f"headway: with the key of {variable}", file=sys.stderr)
        return os.environ[variable]
    print(
        f"headway: without the key of {variable}: {printable(address.url)} is not encrypted, and on no network of your "
        "own. --api-key sends one all the same.",
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
