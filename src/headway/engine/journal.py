"""What is written down while serving: the step log and the decision log, JSON lines, versioned.

`docs/reference/logs.md` describes every field. Both begin with a `header` line that says what produced them. Writing is
buffered; `close` (and every `FLUSH_EVERY` lines) flushes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headway.core.decisions import Decision, Listener
from headway.core.errors import ConfigError
from headway.core.request import Request
from headway.core.scheduler.sequence import Ended
from headway.core.scheduler.step import Outcome, Step

Gauges = Callable[[], Mapping[str, int]]

VERSION = 1
FLUSH_EVERY = 64


def open_log(path: str, kind: str) -> BinaryIO:
    """For appending. Raises `ConfigError`; to ask before a model is loaded, open and close it."""
    try:
        file = Path(path).open("ab")  # noqa: SIM115 - open for the life of the engine
        if file.tell():
            file.write(b"\n")  # a crash or a full disk may have cut the last line short: the next one must stand alone
        return file
    except OSError as error:
        raise ConfigError(
            f"The {kind} log {path!r} cannot be written: {error.strerror}.", param=f"{kind}_log"
        ) from error


class Journal:
    """JSON lines. Raises `ConfigError` when it cannot be opened; a full disk later costs lines, not the server."""

    def __init__(self, path: str, kind: str, header: Mapping[str, Any]) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._lines = 0
        self.lost_lines = 0
        self._file = open_log(path, kind)
        self.write({"kind": "header", "log": kind, "version": VERSION, **header})

    def write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(self._encode(line) + b"\n")
            self._lines += 1
            if self._lines % FLUSH_EVERY == 0:
                self._file.flush()
        except OSError:
            self.lost_lines += 1

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            self.lost_lines += 1


def step_line(
    step: Step, outcome: Outcome, now_ns: int, predicted_ns: float, gauges: Mapping[str, int]
) -> dict[str, Any]:
    """A committed step. `predicted_s` is what the model said when the step was planned."""
    return {
        "kind": "step",
        "step": step.id,
        "planned_ns": step.planned_ns,
        "committed_ns": now_ns,
        "predicted_s": predicted_ns / 1e9,
        "real_s": (now_ns - step.planned_ns) / 1e9,
        "executor_s": outcome.seconds,
        "prefill_tokens": step.prefill_tokens,
        "decode_tokens": step.decode_tokens,
        "pad_tokens": step.pad_tokens,
        "context_tokens": step.context_tokens,
        "attention_tokens": step.attention_tokens,
        "sequences": len(step.rows),
        **gauges,
    }


def request_line(ended: Ended, lane: str) -> dict[str, Any]:
    """A request that was started and has ended: what it was, and where its time went."""
    request, times, usage = ended.request, ended.times, ended.usage
    first = times.first_token_ns or times.ended_ns
    return {
        "kind": "request",
        "request": request.id,
        "tenant": request.tenant,
        "lane": lane,
        "end": ended.reason.value if ended.reason is not None else ended.state.value,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "arrival_ns": times.arrival_ns,
        "queue_s": (times.started_ns - times.arrival_ns) / 1e9,
        "prefill_s": (first - times.started_ns) / 1e9,
        "decode_s": (times.ended_ns - first) / 1e9,
        "e2e_s": (times.ended_ns - times.arrival_ns) / 1e9,
    }


def decision_line(decision: Decision) -> dict[str, Any]:
    return {
        "decision": decision.kind,
        "now_ns": decision.now_ns,
        "request": decision.request,
        "why": decision.why,
        **decision.numbers,
    }


def request_stimulus(request: Request) -> dict[str, Any]:
    """What the core knows of a request when it is submitted."""
    return {
        "request": request.id,
        "prompt": list(request.prompt),  # for the prefix cache
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "tenant": request.tenant,
        "scope": request.cache_scope,
        "model": request.model,
        "pool": request.pool,
        "prefix": list(request.prefix),
        "slo": asdict(request.slo),
    }


class Journals:
    """The logs an engine keeps, each or none. Told by the driver of everything it tells the core (stimuli), and by the
    core of what it decided (`listener`): so the decision log can be replayed.
    """

    def __init__(self, steps: Journal | None, decisions: Journal | None) -> None:
        self._steps = steps
        self._decisions = decisions

    @property
    def listener(self) -> Listener | None:
        return self._decided if self._decisions is not None else None

    def _decided(self, decision: Decision) -> None:
        if self._decisions is not None:
            self._decisions.write(decision_line(decision))

    def stimulus(self, kind: str, now_ns: int, **fields: Any) -> None:
        """Something the core is about to be told."""
        if self._decisions is not None:
            self._decisions.write({"stimulus": kind, "now_ns": now_ns, **fields})

    def submitting(self, requests: Sequence[Request], now_ns: int) -> None:
        if self._decisions is not None:
            self.stimulus("submit", now_ns, requests=[request_stimulus(request) for request in requests])

    def committing(self, outcome: Outcome, now_ns: int) -> None:
        if self._decisions is not None:
            drawn = [
                [result.seq, result.tokens, result.ended.value if result.ended else None, result.failed]
                for result in outcome.results
            ]
            self.stimulus("commit", now_ns, step=outcome.step_id, drawn=drawn)

    def committed(self, step: Step, outcome: Outcome, now_ns: int, predicted_ns: float, gauges: Gauges) -> None:
        if self._steps is not None:
            self._steps.write(step_line(step, outcome, now_ns, predicted_ns, gauges()))

    def ended(self, event: Ended, lane: str) -> None:
        if self._steps is not None:
            self._steps.write(request_line(event, lane))

    def close(self) -> None:
        """What is told after this is not kept. Idempotent, as its engine's is."""
        for journal in (self._steps, self._decisions):
            if journal is not None:
                journal.close()
        self._steps = self._decisions = None
