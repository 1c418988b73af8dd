"""`Door`: a call's headers -> its tenant, or 401 and 403 as OpenAI's clients know them; and what is left of its quota.

No message repeats a key, and nothing here is ever logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.core.errors import HeadwayError
from headway.core.front.ledger import Quota
from headway.gateway.tenancy.keys import KeyRing

_SCHEME = "bearer "


class Unauthenticated(HeadwayError):
    """No key, or none that may be used. Which of the reasons it is, is not told."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(HeadwayError):
    """A good key that may not do this."""

    status = 403
    type = "permission_error"
    code = "not_allowed"


@dataclass(slots=True)
class Identity:
    """Who calls. `tenant` is empty where there are no keys at all: then everybody is one tenant."""

    tenant: str
    key_id: str = ""
    admin: bool = False


NOBODY = Identity("")  # of a server without keys
ANONYMOUS = Identity("anonymous")  # of a server with keys that lets in who has none


class Door:
    """`ring` None: a server without keys. `anonymous`: who presents no key is let in, as one tenant."""

    def __init__(
        self, ring: KeyRing | None = None, *, anonymous: bool = False, clock_s: Callable[[], float] = time.time
    ) -> None:
        self.ring = ring
        self._anonymous = anonymous
        self._clock_s = clock_s

    def caller(self, headers: Mapping[str, str]) -> Identity:
        """Who calls the API. Raises `Unauthenticated`, and `Forbidden` for a key that is for administration."""
        if self.ring is None:
            return NOBODY
        found = self.presented(headers)
        if found is None:
            if self._anonymous:
                return ANONYMOUS
            raise Unauthenticated(
                "No API key was sent. Send one in the header Authorization: Bearer KEY.", code="missing_api_key"
            )
        if found.admin:
            raise Forbidden("This key is for administration only; use a tenant's key here.")
        return found

    def presented(self, headers: Mapping[str, str]) -> Identity | None:
        """Whose key the call carries; None when it carries none. Raises `Unauthenticated` for one that is no good."""
        sent = headers.get("Authorization", "")
        if not sent:
            return None
        if self.ring is None or sent[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("The header Authorization must be: Bearer KEY.")
        key = self.ring.find(sent[len(_SCHEME) :].strip(), self._clock_s())
        if key is None:
            raise Unauthenticated("This API key is not valid: unknown, expired or revoked.")
        return Identity(key.tenant, key.id, key.admin)


def challenge() -> dict[str, str]:
    """What an answer of 401 must carry."""
    return {"WWW-Authenticate": "Bearer"}


def quota_headers(quotas: Mapping[str, Quota]) -> dict[str, str]:
    """`x-ratelimit-*` of a tenant's limits a minute; of what is not limited nothing is said."""
    headers = {}
    for name, quota in quotas.items():
        headers[f"x-ratelimit-limit-{name}"] = str(quota.limit)
        headers[f"x-ratelimit-remaining-{name}"] = str(max(0, quota.remaining))
        headers[f"x-ratelimit-reset-{name}"] = duration(quota.reset_s)
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: 6m0s, 1.5s, 20ms."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    minutes, rest_s = divmod(seconds, 60)
    shown = f"{rest_s:.3f}".rstrip("0").rstrip(".")
    return f"{minutes:.0f}m{shown}s" if minutes else f"{shown}s"
