"""The lives are tables: these tests hold whatever the tables say, and are generated from them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headway.store import (
    BATCH_MOVES,
    ITEM_MOVES,
    JOB_MOVES,
    BadValue,
    BatchState,
    IllegalMove,
    ItemResult,
    ItemState,
    JobState,
    LeaseLost,
    NewItem,
)
from headway.store.lifecycle import check_move

TABLES = (JOB_MOVES, BATCH_MOVES, ITEM_MOVES)
NOW_S = 1000.0
FIRST = {JobState: JobState.QUEUED, BatchState: BatchState.VALIDATING, ItemState: ItemState.PENDING}


def named(pairs):
    return [pytest.param(*pair, id="-".join(state.value for state in pair)) for pair in pairs]


def ways_to(moves, first):
    """State -> the states on a shortest way to it."""
    ways: dict[Any, tuple[Any, ...]] = {first: ()}
    for state in ways_growing(ways):
        for following in moves[state]:
            ways.setdefault(following, (*ways[state], following))
    return ways


def ways_growing(ways):
    seen = []
    while unseen := [state for state in ways if state not in seen]:
        seen.append(unseen[0])
        yield unseen[0]


@pytest.mark.parametrize("moves", TABLES, ids=["jobs", "batches", "items"])
def test_every_state_is_in_the_table_and_reachable_and_can_reach_an_end(moves):
    states: Any = type(next(iter(moves)))
    assert set(moves) == set(states)
    assert set(ways_to(moves, FIRST[states])) == set(states)
    for state in states:
        assert state.final or any(end.final for end in ways_to(moves, state))


@pytest.mark.parametrize("moves", TABLES, ids=["jobs", "batches", "items"])
def test_the_check_allows_exactly_what_the_table_holds(moves):
    for current, to in itertools.product(moves, moves):
        if to in moves[current]:
            check_move(moves, current, to, "It")
        else:
            with pytest.raises(IllegalMove, match=f"It is {current.value} and cannot become {to.value}"):
                check_move(moves, current, to, "It")


@pytest.mark.parametrize(("current", "to"), named(itertools.product(BatchState, BatchState)))
def test_a_batch_moves_exactly_as_its_table_says(store, current, to):
    store.batches.create("b", "t", input_file_id="f", endpoint="/v1/chat/completions", now_s=NOW_S)
    for at_s, state in enumerate(ways_to(BATCH_MOVES, BatchState.VALIDATING)[current]):
        store.batches.move("b", state, NOW_S + at_s)
    before = store.batches.find("b")
    assert before.state is current
    if to in BATCH_MOVES[current]:
        after = store.batches.move("b", to, NOW_S + 10)
        assert after.state is to
        assert getattr(after, f"{to.value}_at_s") == NOW_S + 10
        assert (after in store.batches.unfinished()) is not to.final
    else:
        with pytest.raises(IllegalMove, match="batch b"):
            store.batches.move("b", to, NOW_S + 10)
        assert store.batches.find("b") == before


@pytest.mark.parametrize(("current", "to"), named(itertools.product(JobState, JobState)))
def test_a_job_moves_exactly_as_its_table_says(store, current, to):
    claims: list[Any] = []
    jobs = store.jobs

    def attempt(state):
        claim = claims[-1] if claims else None
        match state:
            case JobState.QUEUED:
                return jobs.give_back(claim, NOW_S)
            case JobState.RUNNING:
                claims.append(jobs.claim_next("w", NOW_S, lease_s=60))
                return claims[-1]
            case JobState.COMPLETED:
                return jobs.complete(claim, b"", NOW_S)
            case JobState.FAILED:
                return jobs.fail(claim, b"", NOW_S, http_status=500)
            case JobState.CANCELLED:
                return jobs.cancel("j", "t", NOW_S)

    jobs.create("j", "t", b"{}", kind="background", endpoint="/v1/completions", now_s=NOW_S)
    for state in ways_to(JOB_MOVES, JobState.QUEUED)[current]:
        attempt(state)
    before = jobs.find("j")
    assert before.state is current
    if to in JOB_MOVES[current]:
        attempt(to)
        assert jobs.find("j").state is to
        return
    if to is JobState.RUNNING or to is JobState.CANCELLED:  # nothing to claim; cancelling an end changes nothing
        attempt(to)
    elif claims:
        with pytest.raises(LeaseLost):
            attempt(to)
    assert jobs.find("j") == before


@pytest.mark.parametrize(("current", "to"), named(itertools.product(ItemState, ItemState)))
def test_an_item_moves_exactly_as_its_table_says(store, current, to):
    def attempt(state):
        match state:
            case ItemState.PENDING:
                store.items.reopen("b")
            case ItemState.COMPLETED | ItemState.FAILED:
                store.items.record("b", [ItemResult(line=1, state=state)], NOW_S)
            case ItemState.EXPIRED | ItemState.CANCELLED:
                store.items.close("b", state, NOW_S)

    store.batches.create("b", "t", input_file_id="f", endpoint="/v1/completions", now_s=NOW_S)
    store.batches.move("b", BatchState.IN_PROGRESS, NOW_S)
    store.items.add("b", [NewItem(1, "one", b"h")])
    if current is not ItemState.PENDING:
        attempt(current)
    attempt(to)
    [item] = store.items.each("b")
    assert item.state is (to if to in ITEM_MOVES[current] else current)
    batch = store.batches.find("b")
    assert (batch.completed, batch.failed) == (
        int(item.state is ItemState.COMPLETED),
        int(item.state.final and item.state is not ItemState.COMPLETED),
    )


def test_items_are_not_closed_as_anything_else(store):
    for state in (ItemState.PENDING, ItemState.COMPLETED, ItemState.FAILED):
        with pytest.raises(BadValue, match=state.value):
            store.items.close("b", state, NOW_S)
