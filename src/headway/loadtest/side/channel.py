"""Questions to the tested server beside the load, that no figure depends on: in its own way in, and blocking."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.loadtest.client.address import Tls
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import Unreachable
from headway.wire.blocking import Answer, Channel

__all__ = ["ASK_S", "Answer", "asked", "channel_to", "refusal"]

ASK_S = 60.0


def channel_to(template: RequestTemplate, tls: Tls, timeout_s: float = ASK_S) -> Channel:
    """With what the load itself is let in by: where only tenants have keys, the first one's.

    Raises InvalidPlan when `tls` names certificates that cannot be used.
    """
    headers = template.common_headers()
    if "authorization" not in headers:
        first = next(iter(template.tenant_headers.values()), {})
        headers |= {name.lower(): value for name, value in first.items()}
    return Channel(template.address, headers, tls.context_for(template.address), timeout_s)


def asked(template: RequestTemplate, tls: Tls, target: str, body: Any = None, timeout_s: float = ASK_S) -> Answer:
    """The answer to one GET, or to a POST of `body`. Raises `Unreachable`, and as `channel_to` does."""
    channel = channel_to(template, tls, timeout_s)
    try:
        if body is None:
            return channel.get(target)
        return channel.ask("POST", target, msgspec.json.encode(body))
    except OSError as error:
        raise Unreachable(f"{template.address.authority}{target} cannot be asked: {error}") from None
    finally:
        channel.close()


def refusal(answer: Answer) -> str:
    """What a headway server says of what it does not do."""
    body = answer.json
    refused = body.get("error") if isinstance(body, dict) else None
    words = refused.get("message") if isinstance(refused, dict) else None
    return str(words) if words else f"HTTP {answer.status}."
