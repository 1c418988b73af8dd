"""Where the time to a first token goes: the parts are those that are told, and add up to no more than there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.doctor.facts import Client
from headway.doctor.split import PARTS, split
from tests.doctor.making import facts, spread

SECONDS = st.floats(0.001, 30.0)


@given(SECONDS, SECONDS, SECONDS)
def test_parts_are_never_negative_and_add_up(queue_s: float, prefill_s: float, tokenise_s: float) -> None:
    told = {
        "queue_s": spread(queue_s), "prefill_s": spread(prefill_s), "tokenise_s": spread(tokenise_s),
        "ttft_s": spread(queue_s + prefill_s + tokenise_s),
    }  # fmt: skip
    found = split(facts(spreads=told, client=Client(network_s=0.02)))
    parts = [getattr(found, name) for name in PARTS]
    assert all(part is not None and part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(found.total_s)


def test_little_knows_sooner_than_histograms() -> None:
    """120 first tokens in 60 s and 10 that wait: a wait of 5 s, whatever those who have ended have waited."""
    made = facts({"waiting": 10.0}, spreads={"ttft_s": spread(0.1, count=120), "queue_s": spread(0.02)})
    assert split(made).queue_s == pytest.approx(5.0)


def test_a_server_without_queue_times_is_split_by_littles_law() -> None:
    made = facts({"waiting": 2.0}, spreads={"ttft_s": spread(1.2, count=120), "queue_s": None, "prefill_s": None})
    found = split(made)
    assert found.queue_s == pytest.approx(1.0)
    assert found.prefill_s == pytest.approx(0.2)


def test_the_network_is_the_clients_view_less_the_servers() -> None:
    client = Client(network_s=0.001, ttft_s=spread(0.5), server_ttft_s=spread(0.1))
    assert split(facts(client=client)).network_s == pytest.approx(0.4)


def test_without_a_model_own_work_and_interference_are_not_told_apart() -> None:
    made = replace(facts(totals={"prompt_tokens": None}), step_time=None)
    found = split(made)
    assert found.prefill_s is not None
    assert found.interference_s is None
