"""Where the time to the first token goes: queue, own prefill, interference, pre-processing, client and network.

| part | from |
|---|---|
| network | a round trip that the server does no work in, or the client's TTFT less the server's of the same requests |
| pre-processing | checking, templating, tokenising: as told, else what of the server's TTFT no station accounts for |
| queue | as told, or by Little's law (waiting requests over the rate of first tokens), whichever is more |
| own prefill | the prompt alone in the engine, by the model of steps |
| interference | the rest of the time between start and first token: others' tokens in the same steps |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headway.doctor.facts import Facts
from headway.doctor.step_model import new_prompt_tokens, step_time

PARTS = ("network_s", "preprocess_s", "queue_s", "own_s", "interference_s")


@dataclass(frozen=True, slots=True)
class Split:
    """Means, s; None is unknown. `prefill_s` is own work and interference together."""

    ttft_s: float | None = None  # as the server sees it
    network_s: float | None = None
    preprocess_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    own_s: float | None = None
    interference_s: float | None = None

    @property
    def total_s(self) -> float:
        """What is known of the time to a first token, at the client. While a queue grows, its parts are more than what
        those who have their first token already waited for it.
        """
        parts = sum(part for part in (self.preprocess_s, self.queue_s, self.prefill_s) if part is not None)
        return max(parts, self.ttft_s or 0.0) + (self.network_s or 0.0)

    def share(self, part: float | None) -> float:
        """Of the whole, 0 where it is unknown."""
        total = self.total_s
        return part / total if part is not None and total > 0 else 0.0


def split(facts: Facts) -> Split:
    service = facts.service
    ttft = service.spread("ttft_s") or facts.client.server_ttft_s
    ttft_s = ttft.mean if ttft is not None else None
    prefill = service.spread("prefill_s")
    prefill_s = prefill.mean if prefill is not None else None
    queue_s = _queue_s(facts)
    if prefill_s is None and ttft_s is not None and queue_s is not None:
        prefill_s = max(0.0, ttft_s - queue_s - (_told_preprocess_s(facts) or 0.0))
    own_s = _own_s(facts)
    if own_s is not None and prefill_s is not None:
        own_s = min(max(own_s, prefill_s * _alone(facts)), prefill_s)
    return Split(
        ttft_s,
        _network_s(facts),
        _preprocess_s(facts, ttft_s, queue_s, prefill_s),
        queue_s,
        prefill_s,
        own_s,
        prefill_s - own_s if prefill_s is not None and own_s is not None else None,
    )


def _queue_s(facts: Facts) -> float | None:
    """Histograms are written when a request ends; while a queue grows, its length knows sooner."""
    told = facts.service.spread("queue_s")
    little = _little_s(facts)
    known = [value for value in (told.mean if told is not None else None, little) if value is not None]
    return max(known) if known else None


def _little_s(facts: Facts) -> float | None:
    """Mean wait = mean number waiting / rate of starts (Little 1961), for whatever order they are served in."""
    service = facts.service
    waiting, first = service.mean("waiting"), service.spread("ttft_s")
    started, seconds = service.increase("ended"), service.seconds("ended")
    if first is not None:
        started, seconds = first.count, service.spread_s("ttft_s")
    if waiting is None or not service.window_s:
        return None
    if not started:
        return None if waiting else 0.0
    return waiting * seconds / started


def _own_s(facts: Facts) -> float | None:
    """The prompt in the engine with nobody beside it: so many full chunks, and each chunk's constant."""
    model, tokens = step_time(facts), new_prompt_tokens(facts)
    if model is None or tokens is None:
        return None
    budget = facts.settings.max_num_batched_tokens or math.inf
    steps = max(1.0, math.ceil(tokens / budget))
    return (steps * model.step_ns + model.prefill_ns(0, round(tokens))) / 1e9


def _alone(facts: Facts) -> float:
    """How often a sequence that runs is the only one inside: so much of its prefill is nobody else's, whatever the
    model of steps says. 0 where it is not told.
    """
    running = facts.service.gauge("running")
    inside = running + np.nan_to_num(facts.service.gauge("waiting"))
    busy = np.isfinite(running) & (running > 0)
    return float((inside[busy] <= 1).mean()) if busy.any() else 0.0


def _told_preprocess_s(facts: Facts) -> float | None:
    parts = [facts.service.spread(name) for name in ("body_s", "tokenise_s")]
    told = [part.mean for part in parts if part is not None]
    return sum(told) if told else None


def _preprocess_s(facts: Facts, ttft_s: float | None, queue_s: float | None, prefill_s: float | None) -> float | None:
    told = _told_preprocess_s(facts)
    if told is not None or ttft_s is None or queue_s is None or facts.service.spread("prefill_s") is None:
        return told
    return max(0.0, ttft_s - queue_s - (prefill_s or 0.0))


def _network_s(facts: Facts) -> float | None:
    client = facts.client
    if client.ttft_s is not None and client.server_ttft_s is not None:
        return max(0.0, client.ttft_s.mean - client.server_ttft_s.mean)
    return client.network_s
