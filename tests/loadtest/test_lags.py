"""Of several client processes the one is judged that was latest in the window, not the one that was before it."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import permutations

import numpy as np

from headway.loadtest.result import Environment, Signals
from headway.loadtest.runner.loop_lag import SAMPLE_NS
from headway.loadtest.runner.run import Measured

MS = 1_000_000
NONE = Measured("", 10.0, [], 0, 0.0, [], 0, Signals(), Environment())


def samples(lags_ms: dict[range, int]) -> array[int]:
    """Of 10 s, with the lags in ranges of ms; 0 where nothing is said."""
    made = array("q", [0] * (10_000 * MS // SAMPLE_NS))
    for moments_ms, lag_ms in lags_ms.items():
        for at_ms in moments_ms[:: SAMPLE_NS // MS]:
            made[at_ms * MS // SAMPLE_NS] = lag_ms * MS
    return made


def test_the_latest_in_the_window_is_judged() -> None:
    stood_still_before = samples({range(3_000): 3000})
    late_all_along = samples({range(10_000): 20})
    on_time = samples({})
    for lags in permutations([stood_still_before, late_all_along, on_time]):
        measured = replace(NONE, processes=3, loop_lags_ns=list(lags))
        assert np.quantile(measured.loop_lags_s((4.0, 10.0)), 0.99) == 0.02
        assert np.quantile(measured.loop_lags_s((0.0, 10.0)), 0.99) == 3.0
        assert {process for _, _, process in measured.freezes} == {lags.index(stood_still_before)}
