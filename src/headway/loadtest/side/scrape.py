"""`Scraper`: the server's own numbers over the run, on the run's time axis. A scrape that fails is a gap, not an error.

It has a thread of its own; what it parses is a few lines a second, so the client hardly notices.
"""

from __future__ import annotations

import threading
from time import monotonic_ns

from headway.loadtest.client.address import Address, parse_url
from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.result import Signals
from headway.loadtest.runner.plan import Plan
from headway.loadtest.side.channel import SideChannel
from headway.loadtest.side.signals import Sample, read_load, read_metrics

TIMEOUT_S = 5.0


def channel_of(plan: Plan, timeout_s: float = TIMEOUT_S) -> tuple[SideChannel, list[str]]:
    """How the server's signals are asked for, and the paths where they may be. Keys go to the tested server only."""
    ask = plan.ask
    address: Address = ask.address
    paths = [f"{address.root}/metrics", f"{address.root}/load", f"{address.root}/v1/loads"]
    headers = ask.common_headers()
    if plan.metrics_url is not None:
        address, _ = parse_url(plan.metrics_url)
        paths = [address.base if plan.metrics_url.rstrip("/").endswith(address.base) else f"{address.root}/metrics"]
        if (address.scheme, address.authority) != (ask.address.scheme, ask.address.authority):
            headers = {"user-agent": headers["user-agent"]}
    tls = plan.tls.context() if address.scheme == "https" else None
    return SideChannel(address, headers, tls, timeout_s), paths


class Scraper:
    """Polls from `start` to `stop`."""

    def __init__(self, channel: SideChannel, paths: list[str], interval_s: float) -> None:
        self._channel = channel
        self._paths = paths
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
            self._thread.join()
        self._channel.close()
        return self._signals

    def _run(self, zero_ns: int) -> None:
        due_s = 0.0
        while not self._done.wait(max(0.0, due_s - _elapsed_s(zero_ns))):
            self._note(self.ask(), _elapsed_s(zero_ns))
            # A slow server is asked less often, never twice at once.
            due_s += self._interval_s * max(1, 1 + int((_elapsed_s(zero_ns) - due_s) / self._interval_s))

    def ask(self) -> Sample | None:
        """Once. None when the server tells nothing that is known; the next time another of its paths is tried."""
        path = self._paths[0]
        try:
            answer = self._channel.get(path)
            if answer.status == 200:
                sample = (
                    read_load(answer.json) if "load" in path else read_metrics(answer.body.decode("utf-8", "replace"))
                )
                if sample is not None:
                    return sample
        except (OSError, ValueError):
            pass
        if not self._signals.source:
            self._paths.append(self._paths.pop(0))
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
