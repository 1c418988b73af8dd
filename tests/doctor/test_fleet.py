"""Between workers: one that does not answer is not one that has room."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from headway.doctor.diagnose import diagnose
from headway.doctor.facts import HELD_SAMPLES, Part, Settings, joined
from headway.doctor.rules.case import study
from tests.doctor.making import SAMPLES, facts, series, spread

QUEUED = {"ttft_s": spread(1.5, 2.0, 3.0), "queue_s": spread(1.4, 1.9, 2.9)}
GONE = math.nan


def worker(name: str, running: list[float], waiting: list[float]) -> Part:
    return Part(name, np.arange(float(SAMPLES)), {"running": series(running), "waiting": series(waiting)})


def hot(*workers: Part) -> str:
    """What is said of a hot worker, if anything."""
    found = diagnose(facts({"running": 16.0, "waiting": 9.0}, spreads=QUEUED, workers=workers)).findings
    return next((" ".join(one.evidence) for one in found if one.cause == "hot-worker"), "")


def test_a_worker_that_stopped_answering_has_no_room() -> None:
    busy, seen = worker("a", [16.0] * SAMPLES, [9.0] * SAMPLES), 5
    silent = worker("b", [4.0] * seen + [GONE] * (SAMPLES - seen), [0.0] * seen + [GONE] * (SAMPLES - seen))
    assert not hot(busy, silent)
    untold = Part("b", np.arange(float(SAMPLES)), {"waiting": series(0.0)})  # nobody waits, but who runs?
    assert not hot(busy, untold)


def test_what_is_not_known_does_not_count_as_nobody() -> None:
    """The numbers are of the moments at which there are any."""
    half = SAMPLES // 2
    busy = worker("a", [16.0] * half + [GONE] * (SAMPLES - half), [9.0] * half + [GONE] * (SAMPLES - half))
    told = hot(busy, worker("b", [4.0] * SAMPLES, [0.0] * SAMPLES))
    assert "9.0 requests wait there on average, at b 0.0; it runs 16.0, the others 4.0" in told


def running(*rows: list[float]) -> list[float]:
    parts = [Part(str(number), np.arange(10.0), {"running": series(row)}) for number, row in enumerate(rows)]
    return joined(parts).gauge("running").tolist()


@pytest.mark.parametrize("back", [0, 1])
def test_a_worker_is_taken_to_be_as_it_was_for_a_while(back: int) -> None:
    """One that stays away for longer was gone from the first moment on."""
    few, many = HELD_SAMPLES, HELD_SAMPLES + 1
    row = [3.0] * (10 - few - back) + [GONE] * few + [3.0] * back
    assert running([2.0] * 10, row) == [5.0] * 10
    row = [3.0] * (10 - many - back) + [GONE] * many + [3.0] * back
    assert running([2.0] * 10, row) == [5.0] * (10 - many - back) + [2.0] * many + [5.0] * back


def test_a_worker_that_another_came_for_does_not_count_beside_it() -> None:
    """There was never more than what two of them run."""
    old, new = [3.0] * 7 + [GONE] * 3, [GONE] * 7 + [3.0] * 3
    assert running([2.0] * 10, old, new) == [5.0] * 10
    assert running([2.0] * 10, old, [GONE] * 8 + [3.0] * 2) == [5.0] * 10


def test_a_moment_at_which_nobody_was_seen_stays_unknown() -> None:
    row = series([1.0, GONE, 3.0])
    both = joined([Part(name, np.arange(3.0), {"running": row}, {"ended": row}) for name in "ab"])
    assert np.isnan(both.gauge("running")).tolist() == np.isnan(both.totals["ended"]).tolist() == [False, True, False]
    assert both.increase("ended") == 4.0


@pytest.mark.parametrize("away", [slice(40, SAMPLES), slice(0, 30), slice(20, 45)])
def test_slots_are_taken_though_an_engine_goes_or_comes(away: slice) -> None:
    """Four wait at each of two engines that run sixteen; the limit is not told."""
    rows = [[4.0] * SAMPLES, [4.0] * SAMPLES]
    rows[1][away] = [GONE] * len(rows[1][away])
    workers = tuple(worker(name, [16.0 + 0.0 * one for one in row], row) for name, row in zip("ab", rows, strict=True))
    both = joined(workers)
    made = facts({name: both.gauges[name].tolist() for name in both.gauges}, spreads=QUEUED, workers=workers)
    waited = study(replace(made, settings=Settings())).waited
    assert waited is not None
    assert (waited.limit, waited.slots) == (32, 1.0)
