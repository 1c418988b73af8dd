"""`Scraper`: the server's own numbers over the run, on the run's time axis. A scrape that fails is a gap, not an error.

It has a thread of its own; what it parses is a few lines a second, so the client hardly notices.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from time import monotonic_ns

from headway.loadtest.client.address import Tls, parse_url
from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.result import Signals
from headway.loadtest.side.channel import channel_to
from headway.metrics.worker_signals import Sample, read_load, read_metrics
from headway.wire.blocking import Answer, Channel

TIMEOUT_S = 5.0
LAST_S = 1.0  # for the answer that is on its way when the run is over
# What a run keeps of all that is read.
KEPT = (
    "running",
    "waiting",
    "kv_used_ratio",
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "memory_bytes",
    "desired_replicas",
)

Reader = Callable[[Answer], Sample | None]
Place = tuple[str, Reader]  # a path, and how its answer is read


def of_text(answer: Answer) -> Sample | None:
    """Prometheus' text."""
    return read_metrics(answer.text)


def of_json(answer: Answer) -> Sample | None:
    return read_load(answer.json)


def channel_of(
    template: RequestTemplate, tls: Tls, metrics_url: str | None = None, timeout_s: float = TIMEOUT_S
) -> tuple[Channel, list[Place]]:
    """How the server's signals are asked for, and where they may be. Keys go to the tested server only."""
    root = template.address.root
    if metrics_url is None:
        places: list[Place] = [(f"{root}/metrics", of_text), (f"{root}/load", of_json), (f"{root}/v1/loads", of_json)]
        return channel_to(template, tls, timeout_s), places
    address, _ = parse_url(metrics_url)
    path = address.base if metrics_url.rstrip("/").endswith(address.base) else f"{address.root}/metrics"
    places = [(path, of_json if path.rpartition("/")[2] in {"load", "loads"} else of_text)]
    if (address.scheme, address.authority) == (template.address.scheme, template.address.authority):
        return channel_to(template, tls, timeout_s), places
    headers = {"user-agent": template.common_headers()["user-agent"]}
    return Channel(address, headers, tls.context_for(address), timeout_s), places


class Scraper:
    """Polls from `start` to `stop`."""

    def __init__(self, channel: Channel, places: Sequence[Place], interval_s: float) -> None:
        self._channel = channel
        self._places = list(places)
        self._interval_s = interval_s
        self._signals = Signals()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, zero_ns: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(zero_ns,), name="headway-scrape", daemon=True)
        self._thread.start()

    def stop(self) -> Signals:
        """Every series is as long as the times."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(LAST_S)
        self._channel.close()  # an answer that is still coming is not waited for
        if self._thread is not None:
            self._thread.join()
        return self._signals

    def _run(self, zero_ns: int) -> None:
        due_s = 0.0
        while not self._done.wait(max(0.0, due_s - _elapsed_s(zero_ns))):
            self._note(self.ask(), _elapsed_s(zero_ns))
            # A slow server is asked less often, never twice at once.
            due_s += self._interval_s * max(1, 1 + int((_elapsed_s(zero_ns) - due_s) / self._interval_s))

    def ask(self) -> Sample | None:
        """Once. None when the server tells nothing that is known; the next time another of its paths is tried."""
        path, read = self._places[0]
        try:
            answer = self._channel.get(path)
            sample = read(answer) if answer.status == 200 else None
        except OSError:
            sample = None
        if sample is not None and (kept := {name: sample.values[name] for name in KEPT if name in sample.values}):
            return dataclasses.replace(sample, values=kept)
        if not self._signals.source:
            self._places.append(self._places.pop(0))
        return None

    def _note(self, sample: Sample | None, at_s: float) -> None:
        signals = self._signals
        if sample is None and not signals.source:
            return  # nothing is known yet, not even what is missing
        series = signals.series
        if sample is not None:
            signals.source = sample.source
            for name in sample.values:
                series.setdefault(name, [None] * len(signals.times_s))
        signals.times_s.append(round(at_s, 6))
        for name, values in series.items():
            values.append(None if sample is None else sample.values.get(name))


def _elapsed_s(zero_ns: int) -> float:
    return (monotonic_ns() - zero_ns) / NS_PER_S
