"""`merged`: what several sources know of one server, the first of them where two speak of the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from headway.doctor.facts import Client, Facts, Settings
from headway.doctor.spread import Spread

# As many requests as another source counted, but for those at the edges of its window.
ALIKE = 0.1

T = TypeVar("T", Settings, Client)


def merged(several: Sequence[Facts]) -> Facts:
    """Series are the first one's that has any: windows of two sources are not the same. Distributions, settings, what
    a client saw, and what a fit says fill one another's gaps.
    """
    first = next((facts for facts in several if facts.service.gauges or facts.service.totals), several[0])
    others = [facts for facts in several if facts is not first]
    spreads, counted_s = dict(first.service.spreads), dict(first.service.counted_s)
    settings, client, whole = first.settings, first.client, first
    for facts in others:
        counted_s |= {name: facts.service.spread_s(name) for name in facts.service.spreads if name not in spreads}
        spreads = {**facts.service.spreads, **spreads}
        settings = _filled(settings, facts.settings)
        client = _filled(client, facts.client)
        client = _filled(client, Client(server_ttft_s=_same_requests(first, facts)))
        whole = replace(
            whole,
            kind=whole.kind or facts.kind,
            step_time=whole.step_time or facts.step_time,
            prefill_step_ns=(whole if whole.step_time else facts).prefill_step_ns,
            demand=whole.demand or facts.demand,
            promise=whole.promise if whole.promise.said or not facts.promise.said else facts.promise,
        )
    known = spreads.keys()
    missing = [
        line for facts in several for line in facts.missing if line.partition(":")[0] not in known or len(several) == 1
    ]
    return replace(
        whole,
        source=" and ".join(facts.source for facts in several),
        service=replace(first.service, spreads=spreads, counted_s=counted_s),
        settings=settings,
        client=client,
        missing=tuple(dict.fromkeys(missing)),
        notes=tuple(dict.fromkeys(note for facts in several for note in facts.notes)),
        heard={name: one for facts in several for name, one in facts.heard.items()},
    )


def _same_requests(server: Facts, seen: Facts) -> Spread | None:
    """The server's TTFT of the requests that a client saw: where it counted as many, they are the same."""
    client, own = seen.client.ttft_s, server.service.spread("ttft_s")
    if client is None or own is None or abs(own.count - client.count) > ALIKE * client.count:
        return None
    return own


def _filled(one: T, other: T) -> T:
    """A gap is what nobody has set: False and 0 are known."""
    unset = [field.name for field in fields(one) if getattr(one, field.name) is field.default]
    return replace(one, **{name: getattr(other, name) for name in unset})
