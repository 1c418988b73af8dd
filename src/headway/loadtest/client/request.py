"""`RequestTemplate` and `RequestWriter`: from an item and its prompt to the bytes that are written to the socket.

Everything but prompt and lengths is the same in all requests of a run, so it is encoded once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote_plus

import msgspec

from headway.loadtest.client.address import PATHS, Endpoint
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.redact import Redactor, hidden_in, in_urls, secrets_in
from headway.wire.http_address import HttpAddress
from headway.workload.item import Item

# Text, token ids (completions only), chat messages, or a whole JSON body that is sent as it is.
PromptContent = str | Sequence[int] | Sequence[Mapping[str, Any]] | bytes

# What decides how an answer is read, or is told by the item, cannot be a field of the user's.
RESERVED = frozenset({"model", "messages", "prompt", "stream", "stream_options", "n", "max_tokens"})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Accepted:
    """Which fields beyond the plainest this server takes; found out before the load (`discover`)."""

    usage: bool = True  # stream_options.include_usage
    continuous_usage: bool = True  # stream_options.continuous_usage_stats
    ignore_eos: bool = True
    min_tokens: bool = True
    temperature: bool = True
    limit_name: str = "max_tokens"  # or max_completion_tokens


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """What all requests of a run have in common. Headers may hold keys, so they are never shown."""

    address: HttpAddress
    model: str
    endpoint: Endpoint = "chat"
    stream: bool = True
    choices: int = 1  # `n`
    temperature: float | None = 0.0  # None: as the server likes
    extra: Mapping[str, Any] = field(default_factory=dict)  # further fields of the body
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tenant_header: str = ""  # a header that carries the tenant's name
    tenant_headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)  # by tenant: its key
    slo_ttft_s: float | None = None  # told to the server as x-slo-ttft-ms and x-slo-itl-ms
    slo_itl_s: float | None = None
    accepted: Accepted = field(default_factory=Accepted)

    def __post_init__(self) -> None:
        if clash := RESERVED & set(self.extra):
            raise InvalidPlan(f"The body's {', '.join(sorted(clash))} cannot be set as an extra field.")
        if self.choices < 1:
            raise InvalidPlan(f"n must be at least 1, not {self.choices}.")
        for headers in (self.headers, *self.tenant_headers.values()):
            for name, value in headers.items():
                _check_header(name, value)
        if self.tenant_header:
            _check_header(self.tenant_header, "")

    def secrets(self) -> list[str]:
        """Every key that these requests carry, and whatever else in them may be one."""
        query = [field.partition("=") for field in self.address.query.split("&")]
        secrets = hidden_in(self.extra)
        for headers in (self.headers, *self.tenant_headers.values()):
            secrets += secrets_in(headers) + hidden_in([*headers.values(), *map(_without_scheme, headers.values())])
        login = self.address.login
        user, _, password = login.partition(":")
        for secret in (login, password or user, f"{quote(user, safe='')}:{quote(password, safe='')}"):
            secrets += in_urls(secret)
        secrets += [self.address.authorization.partition(" ")[2]]
        for name, _, value in query:
            if secrets_in({unquote_plus(name): value}) or hidden_in(unquote_plus(value)):
                secrets += in_urls(value)
        shown = f"{self.address.url} {self.model}"  # what every report tells
        return [secret for secret in secrets if secret and secret not in shown]

    def redactor(self) -> Redactor:
        """Hides them."""
        return Redactor(self.secrets())

    def common_headers(self) -> dict[str, str]:
        """Of every request to this server, also of those that are no part of the load. Names in lower case."""
        headers = {"host": self.address.authority, "user-agent": "headway-bench"}
        if self.address.login:
            headers["authorization"] = self.address.authorization
        headers |= {name.lower(): value for name, value in self.headers.items()}
        return headers


def _without_scheme(value: str) -> str:
    return value.partition(" ")[2]


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidPlan(f"{name!r} is no name of an HTTP header.")
    if name.lower() in _OURS:
        raise InvalidPlan(f"The header {name} is set by the client itself.")
    if re.search(r"[\r\n\0]", value):
        raise InvalidPlan(f"The value of the header {name} has a line end in it.")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidPlan(f"The value of the header {name} has a character that HTTP headers cannot carry.") from None


class RequestWriter:
    """Call it with an item and its prompt; it returns the whole request as bytes."""

    def __init__(self, template: RequestTemplate) -> None:
        self._template = template
        self.path = template.address.path(PATHS[template.endpoint])
        self._heads: dict[str, bytes] = {}
        self._fields = _json(self._common_fields())[:-1]  # without its closing brace
        accepted = template.accepted
        self._limits = [accepted.limit_name] + (["min_tokens"] if accepted.min_tokens else [])

    def _common_fields(self) -> dict[str, Any]:
        template, accepted = self._template, self._template.accepted
        fields: dict[str, Any] = {"model": template.model, "stream": template.stream}
        if template.stream and accepted.usage:
            fields["stream_options"] = {"include_usage": True}
            if accepted.continuous_usage:
                fields["stream_options"]["continuous_usage_stats"] = True
        if template.temperature is not None and accepted.temperature:
            fields["temperature"] = template.temperature
        if accepted.ignore_eos:
            fields["ignore_eos"] = True
        if template.choices > 1:
            fields["n"] = template.choices
        return fields | dict(template.extra)

    def __call__(self, item: Item, prompt: PromptContent) -> bytes:
        body = self.body(item, prompt)
        head = self._heads.get(item.tenant)
        if head is None:
            lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers(item.tenant).items())
            head = f"POST {self.path} HTTP/1.1\r\n{lines}content-length: ".encode("latin-1")
            self._heads[item.tenant] = head
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def body(self, item: Item, prompt: PromptContent) -> bytes:
        if isinstance(prompt, bytes):
            return prompt
        limits = b"".join(
            b',"%b":%d' % (name.encode(), item.output_tokens)
            for name in self._limits
            if name not in self._template.extra
        )
        if self._template.endpoint == "completions":
            if not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int):
                raise InvalidPlan("Chat messages cannot be sent to /completions; use /chat/completions or plain text.")
            return b'%b%b,"prompt":%b}' % (self._fields, limits, _json(prompt))
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        elif prompt and isinstance(prompt[0], int):
            raise InvalidPlan("Token ids cannot be sent to /chat/completions; use the endpoint completions.")
        return b'%b%b,"messages":%b}' % (self._fields, limits, _json(prompt))

    def headers(self, tenant: str) -> dict[str, str]:
        """Of a request of this tenant. No encoding is asked for: decompression is no time of the server's."""
        template = self._template
        headers = template.common_headers() | {
            "content-type": "application/json",
            "accept": "text/event-stream" if template.stream else "application/json",
        }
        if template.slo_ttft_s is not None:
            headers["x-slo-ttft-ms"] = f"{template.slo_ttft_s * 1e3:g}"
        if template.slo_itl_s is not None:
            headers["x-slo-itl-ms"] = f"{template.slo_itl_s * 1e3:g}"
        if template.tenant_header and tenant:
            _check_header(template.tenant_header, tenant)
            headers[template.tenant_header.lower()] = tenant
        headers |= {name.lower(): value for name, value in template.tenant_headers.get(tenant, {}).items()}
        return headers
