"""A decision log, decided again: the same core, fed the same stimuli at the same times, must decide the same.

result = replay("decisions.jsonl")
assert result.difference is None
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.core.decisions import Decision
from headway.core.errors import HeadwayError
from headway.core.lanes import LaneLimits
from headway.core.pace import Shape, StepTime
from headway.core.request import Reason, Request, Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.sequence import Ended, Event
from headway.core.scheduler.step import BrokenOutcome, Outcome, RowResult, Step
from headway.engine.assembly import assemble, step_time_model
from headway.engine.config import engine_config
from headway.engine.journal import decision_line
from headway.executors.executor import ExecutorInfo
from headway.simulate.log_lines import Line, last_run
from headway.simulate.replay_front import FleetCore


@dataclass(frozen=True, slots=True)
class Replay:
    """How a replay went. `difference` is the first decision that came out otherwise: (number, logged, now)."""

    decisions: int
    difference: tuple[int, Line | None, Line | None] | None


def replay(path: str | Path) -> Replay:
    """Replay one run of a decision log, an engine's or a gateway's: the last, if the file holds several.

    Raises `ConfigError` for another file.
    """
    header, lines = last_run(Path(path))
    logged = [line for line in lines if "decision" in line]
    core = FleetCore(header) if header.get("body") == "gateway" else _Core(header)
    made = core.run(line for line in lines if "stimulus" in line)
    for number in range(max(len(logged), len(made))):
        then = logged[number] if number < len(logged) else None
        now = made[number] if number < len(made) else None
        if then != now:
            return Replay(len(logged), (number, then, now))
    return Replay(len(logged), None)


class _Core:
    """A front and a scheduler as the log's header describes them, and what they decide."""

    def __init__(self, header: Line) -> None:
        executor = dict(header["executor"])
        if executor["step_time"] is not None:
            executor["step_time"] = StepTime(**executor["step_time"])
        info = ExecutorInfo(**executor)
        model = step_time_model(info)
        model.profile([(Shape(*shape), real_ns) for shape, real_ns in header["profile"]])
        self.made: list[Line] = []
        self.front, self.scheduler = assemble(engine_config(**header["config"]), info, model, self._decided)
        self.step: Step | None = None

    def _decided(self, decision: Decision) -> None:
        # Through JSON and back, as the logged ones went.
        self.made.append(msgspec.json.decode(msgspec.json.encode(decision_line(decision))))

    def run(self, stimuli: Iterator[Line]) -> list[Line]:
        """What was decided, as far as the log's outcomes still answer the steps that are planned now."""
        with suppress(BrokenOutcome):
            for line in stimuli:
                getattr(self, "_" + line["stimulus"])(line, line["now_ns"])
        return self.made

    def _submit(self, line: Line, now: int) -> None:
        requests = [
            Request(
                one["request"],
                one["prompt"],
                one["max_tokens"],
                priority=one["priority"],
                tenant=one["tenant"],
                cache_scope=_hashable(one["scope"]),
                model=one.get("model", ""),
                pool=one.get("pool", "online"),
                prefix=tuple(one.get("prefix", ())),
                slo=Slo(**one["slo"]),
            )
            for one in line["requests"]
        ]
        with suppress(HeadwayError):  # the refusal is among the decisions
            self.front.submit_all(requests, now)

    def _door(self, _: Line, now: int) -> None:
        with suppress(HeadwayError):
            self.front.check_door(now)

    def _closed(self, line: Line, _: int) -> None:
        self.front.closed = line["reason"]

    def _drain(self, _: Line, __: int) -> None:
        self.front.draining = True

    def _cancel(self, line: Line, now: int) -> None:
        if not self.front.cancel(line["request"], now):
            self._settle(self.scheduler.cancel(line["request"], now), now)

    def _expire(self, _: Line, now: int) -> None:
        self.front.expire(now)

    def _plan(self, _: Line, now: int) -> None:
        self.step = self.scheduler.plan(now)

    def _commit(self, line: Line, now: int) -> None:
        step, self.step = self.step, None
        if step is None:
            raise BrokenOutcome(f"step {line['step']} was not planned this time")
        results = [
            RowResult(seq, tokens, Reason(ended) if ended else None, failed=failed)
            for seq, tokens, ended, failed in line["drawn"]
        ]
        self._settle(self.scheduler.commit(step, Outcome(line["step"], results), now), now)

    def _reconfigure(self, line: Line, now: int) -> None:  # noqa: ARG002 - one shape for all stimuli
        self.scheduler.reconfigure(SchedulerLimits(**line["limits"]))
        self.front.lanes.set_limits(tuple(LaneLimits(**lane) for lane in line["lanes"]))

    def _abort(self, _: Line, now: int) -> None:
        self.step = None
        self._settle(self.scheduler.abort(now), now)

    def _fail_waiting(self, _: Line, now: int) -> None:
        self.front.fail_waiting(now)

    def _settle(self, events: list[Event], now: int) -> None:
        for event in events:
            if isinstance(event, Ended):
                self.front.settle(event.request.id, event.usage, now)


def _hashable(value: Any) -> Hashable:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
