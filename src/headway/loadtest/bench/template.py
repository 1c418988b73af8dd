"""Who is asked, and with which headers and fields: from options to a `RequestTemplate`."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.loadtest.bench.options import PromiseOptions, ServerOptions
from headway.loadtest.client.address import parse_url
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import InvalidPlan


def template_of(url: str, server: ServerOptions, promise: PromiseOptions) -> RequestTemplate:
    """What all requests have in common. Raises `InvalidPlan`."""
    if not server.stream and (promise.slo_ttft is not None or promise.slo_itl is not None):
        raise InvalidPlan(
            "An answer in one piece has no TTFT and no ITL, so nothing can be promised about them (--slo-ttft, "
            "--slo-itl): leave out --no-stream, or promise --slo-e2e."
        )
    address, endpoint = parse_url(url)
    headers = dict(_pair(text, "--header") for text in server.header)
    if server.api_key and not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = f"Bearer {server.api_key}"
    keys = keys_of_tenants(server)
    return RequestTemplate(
        address=address,
        model=server.model or "",
        endpoint=server.endpoint or endpoint or "chat",
        stream=server.stream,
        choices=server.n,
        temperature=server.temperature,
        extra=_extra(server.extra_body),
        headers=headers,
        tenant_header=server.tenant_header or "",
        tenant_headers={tenant: {"Authorization": f"Bearer {key}"} for tenant, key in keys.items()},
        slo_ttft_s=promise.slo_ttft,
        slo_itl_s=promise.slo_itl,
    )


def keys_of_tenants(server: ServerOptions) -> dict[str, str]:
    """By name of the tenant. Raises `InvalidPlan`."""
    pairs = [_pair(text, "--tenant-key") for text in server.tenant_key]
    keys = dict(pairs)
    if len(keys) < len(pairs):
        twice = next(name for name in keys if sum(name == other for other, _ in pairs) > 1)
        raise InvalidPlan(f"--tenant-key {twice} is given twice. A tenant has one key.")
    return keys


def _pair(text: str, flag: str) -> tuple[str, str]:
    """NAME=VALUE; of a header NAME: VALUE as well. The value is not shown: it may be a key."""
    for sign in "=:":
        name, found, value = text.partition(sign)
        if found and name.strip() and all(other not in name for other in "=:"):
            return name.strip(), value.strip()
    raise InvalidPlan(f"{flag} takes NAME=VALUE; what was given ({len(text)} characters) has no name and sign.")


def _extra(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        fields = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidPlan(f"--extra-body is no JSON: {error}. Write an object such as '{{\"top_p\": 0.9}}'.") from None
    if not isinstance(fields, dict):
        raise InvalidPlan("--extra-body must be a JSON object such as '{\"top_p\": 0.9}'.")
    return fields
