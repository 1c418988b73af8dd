"""The address of a store of quotas: what is one, and what of it may be shown. Its password is nobody's to read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from headway.core.errors import ConfigError

PASSWORD_ENV = "HEADWAY_QUOTA_PASSWORD"
SCHEMES = ("redis", "rediss", "unix")
# Certificates, for rediss. Anything else that the client could be told is not an operator's business.
OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"})


def check_url(url: str) -> None:
    """Raises ConfigError for what is no `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`; `rediss`, `unix:///PATH`."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unix = parts.scheme == "unix"
        database = options.pop("db", "0") if unix else parts.path.strip("/") or "0"
        somewhere = parts.path.strip("/") if unix else parts.hostname and parts.port != 0
    except ValueError:
        somewhere, options, database, parts = None, {}, "0", urlsplit("")
    if parts.scheme not in SCHEMES or not somewhere or not (database.isascii() and database.isdecimal()):
        raise ConfigError(
            "--quota-store: that is no address of a store; write redis://HOST:PORT, with /NUMBER for a database other "
            "than 0, or rediss:// for TLS.",
            param="quota_store",
        )
    if unknown := options.keys() - OPTIONS:
        raise ConfigError(
            f"--quota-store: unknown option {min(unknown)[:40]!r} in the address. There are "
            f"{', '.join(sorted(OPTIONS))}.",
            param="quota_store",
        )


def shown_url(url: str) -> str:
    """Where the store is, for people: without user, password and options."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_password(url: str) -> str:
    """The same address, for one who has `HEADWAY_QUOTA_PASSWORD`."""
    parts = urlsplit(url)
    return _at(url, quote(unquote(parts.username), safe="") if parts.username else "")


def with_password(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """With that of the environment where it has none: a command line can be seen by everybody on the machine."""
    parts, password = urlsplit(url), environment.get(PASSWORD_ENV, "")
    if parts.password or not password:
        return url
    return _at(url, f"{quote(unquote(parts.username or ''), safe='')}:{quote(password, safe='')}")


def _at(url: str, who: str) -> str:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{who}@{place}" if who else place))
