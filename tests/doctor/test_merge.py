"""Two sources of one server: what one of them knows is no gap, though it be nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.doctor.facts import Client, Heard, Settings
from headway.doctor.merge import merged
from headway.doctor.split import split
from tests.doctor.making import facts, spread


def test_false_and_zero_are_known() -> None:
    first = facts(settings=Settings(prefix_cache=False), client=Client(lag_s=0.0))
    other = facts(settings=Settings(prefix_cache=True, max_num_seqs=8), client=Client(lag_s=0.3, network_s=0.02))
    both = merged([first, other])
    assert (both.settings.prefix_cache, both.settings.max_num_seqs) == (False, 8)
    assert (both.client.lag_s, both.client.network_s) == (0.0, 0.02)


def test_probes_come_with_the_round_trip_that_they_measured() -> None:
    both = merged([facts(), facts(client=Client(network_s=0.02, network_probes=5))])
    assert (both.client.network_s, both.client.network_probes) == (0.02, 5)


def test_what_another_counted_is_of_its_own_time() -> None:
    """A quarter of an hour of one who knows nothing of TTFT, and a minute of another: ten wait, two a second start."""
    long = facts({"waiting": 10.0}, spreads={"ttft_s": None, "queue_s": None})
    long = replace(long, service=replace(long.service, times_s=15.0 * long.service.times_s))
    live = facts(spreads={"ttft_s": spread(5.2, count=120), "queue_s": None})
    assert split(merged([long, live])).queue_s == pytest.approx(5.0)


def test_one_that_does_not_answer_is_not_hidden_by_another_source() -> None:
    dead = replace(facts(), heard={"": Heard(20, 8, 8.0)})
    assert merged([facts(), dead]).unseen == merged([dead, facts()]).unseen == "it has not answered for the last 8 s"
