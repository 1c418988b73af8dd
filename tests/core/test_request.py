"""The lifecycle is a table: these tests hold whatever the table says, and are generated from it."""

import itertools

import pytest

from headway.core.request import MOVES, IllegalMove, State, move

PAIRS = list(itertools.product(State, State))


@pytest.mark.parametrize(("current", "to"), PAIRS, ids=[f"{a.value}-{b.value}" for a, b in PAIRS])
def test_a_move_is_legal_exactly_when_the_table_holds_it(current: State, to: State):
    if to in MOVES[current]:
        assert move(current, to) is to
    else:
        with pytest.raises(IllegalMove, match=f"{current.value} -> {to.value}"):
            move(current, to)


def test_every_state_is_in_the_table_and_reachable_and_can_reach_an_end():
    assert set(MOVES) == set(State)
    reachable = {State.WAITING}
    while (wider := reachable.union(*(MOVES[state] for state in reachable))) != reachable:
        reachable = wider
    assert reachable == set(State)
    ends = {state for state in State if state.terminal}
    for state in set(State) - ends:
        assert MOVES[state] & ends, f"{state} has no way out"


def test_whatever_holds_a_slot_can_be_cancelled_and_can_fail():
    for state in (State.WAITING, State.PREFILL, State.DECODE, State.PREEMPTED):
        assert {State.CANCELLED, State.FAILED} <= MOVES[state]
