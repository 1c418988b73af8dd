"""The kinds of servers: what each takes in a body and where it tells how it is; and which of them answers there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.core.errors import ConfigError
from headway.metrics.worker_signals import Sample, read_load, read_metrics
from headway.wire.http_client import HttpClient
from headway.wire.http_connection import HttpFault

MAX_PAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    """Where a server tells its load. `every`: only each so many-th time, for what is costly to make there."""

    path: str
    json: bool = False
    every: int = 1


@dataclass(frozen=True, slots=True)
class Kind:
    """`takes_priority` None: only where the operator says that the server was started for it; it refuses one else.

    `priority_sign` -1: there a higher number is sooner.
    """

    name: str
    pages: tuple[Page, ...] = ()  # several: all that answer are asked
    health: str = "/health"
    takes_salt: bool = False
    takes_priority: bool | None = False
    priority_sign: int = 1
    limit_names: tuple[str, ...] = ("max_tokens", "max_completion_tokens")  # of fields that limit the output


HEADWAY = Kind("headway", (Page("/load", json=True), Page("/metrics", every=10)), takes_salt=True, takes_priority=True)
VLLM = Kind("vllm", (Page("/metrics"),), takes_salt=True, takes_priority=None)
SGLANG = Kind(
    "sglang",
    (Page("/v1/loads", json=True), Page("/metrics", every=5)),
    takes_salt=True,
    takes_priority=None,
    priority_sign=-1,
)
LLAMACPP = Kind(
    "llamacpp",
    (Page("/metrics"), Page("/slots", json=True)),
    limit_names=("max_tokens", "max_completion_tokens", "n_predict"),
)
TGI = Kind("tgi", (Page("/metrics"),))
OPENAI = Kind("openai", health="/v1/models")

KINDS: dict[str, Kind] = {kind.name: kind for kind in (HEADWAY, VLLM, SGLANG, LLAMACPP, TGI, OPENAI)}


def kind_named(name: str) -> Kind:
    """Raises `ConfigError`."""
    if name not in KINDS:
        raise ConfigError(f"There is no worker kind {name!r}. Use one of {', '.join(KINDS)}.", param="kind")
    return KINDS[name]


@dataclass(frozen=True, slots=True)
class Detected:
    """`evidence` says what it was known by."""

    kind: Kind
    evidence: str
    models: frozenset[str] = frozenset()


_OWNERS = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMACPP, "headway": HEADWAY}
# Path -> a field of the JSON that only this kind has there.
_INFO_PAGES = (
    ("/props", "default_generation_settings", LLAMACPP),
    ("/get_server_info", "max_total_num_tokens", SGLANG),
    ("/get_model_info", "is_generation", SGLANG),
    ("/info", "model_sha", TGI),
    ("/info", "docker_label", TGI),
)


async def detect(client: HttpClient, target: Callable[[str], str], *, timeout_s: float) -> Detected | None:
    """What answers there; None when nothing does. A server that no kind fits is `openai`.

    `target` says how a path is asked for there.
    """
    pages = ["/v1/models", "/metrics", *dict.fromkeys(path for path, _, _ in _INFO_PAGES)]
    found = await asyncio.gather(*(_page(client, target(path), timeout_s) for path in pages))
    answers = dict(zip(pages, found, strict=True))
    if all(answer is None for answer in found):
        return None
    models, owners = models_of(json_of(answers["/v1/models"]))
    for owner in owners:
        if owner in _OWNERS:
            return Detected(_OWNERS[owner], f"/v1/models says owned_by {owner}", models)
    sample = read_metrics((answers["/metrics"] or b"").decode("utf-8", "replace"))
    if sample is not None and sample.source in KINDS:
        return Detected(KINDS[sample.source], f"/metrics has the names of {sample.source}", models)
    for path, field, kind in _INFO_PAGES:
        told = json_of(answers[path])
        if isinstance(told, dict) and field in told:
            return Detected(kind, f"{path} has the field {field}", models)
    return Detected(OPENAI, "nothing that another kind has: it tells no load", models)


async def _page(client: HttpClient, target: str, timeout_s: float) -> bytes | None:
    """Empty for an answer that is no 200; None for none at all."""
    try:
        head, body = await client.get(target, most_bytes=MAX_PAGE_BYTES, timeout_s=timeout_s)
    except HttpFault:
        return None
    return body if head.status == 200 else b""


def models_of(body: Any) -> tuple[frozenset[str], list[str]]:
    """Names that `/v1/models` lists, and who it says owns them."""
    cards = body.get("data") if isinstance(body, dict) else None
    cards = [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
    names = frozenset(card["id"] for card in cards if isinstance(card.get("id"), str))
    return names, [str(card["owned_by"]) for card in cards if "owned_by" in card]


def json_of(body: bytes | None) -> Any:
    """None where it is no JSON."""
    try:
        return msgspec.json.decode(body or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_page(page: Page, body: bytes) -> Sample | None:
    """None for what has no signals in it."""
    return read_load(json_of(body)) if page.json else read_metrics(body.decode("utf-8", "replace"))
