"""Whatever is done with batches and their items, with crashes in between: the store is what plain dicts would be."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.store import (
    BATCH_MOVES,
    AlreadyExists,
    BatchState,
    DuplicateItem,
    IllegalMove,
    InputChanged,
    ItemResult,
    ItemState,
    NewItem,
    NotFound,
)
from tests.store.places import START_S, crashed, new_directory, open_store

IDS = st.sampled_from(["b0", "b1", "b2"])
LINES = st.integers(1, 8)
ENDS = st.sampled_from([ItemState.COMPLETED, ItemState.FAILED])
TAKES_ITEMS = {BatchState.VALIDATING, BatchState.IN_PROGRESS}
NEEDS_ENDS = {BatchState.FINALIZING, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}


@dataclass
class Line:
    custom_id: str
    body_hash: bytes
    state: ItemState = ItemState.PENDING
    output_tokens: int = 0
    error_class: str = ""


@dataclass
class Known:
    """A batch as it should be."""

    state: BatchState = BatchState.VALIDATING
    ended_at_s: float | None = None
    lines: dict[int, Line] = field(default_factory=dict)

    @property
    def missing(self):
        return [number for number, line in sorted(self.lines.items()) if not line.state.final]


class BatchesAndItems(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.directory = new_directory()
        self.now_s = START_S
        self.store = open_store(self.directory, self.now_s)
        self.known: dict[str, Known] = {}
        self.order: list[str] = []

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    def expect(self, id, states, call):
        """Carry out `call`; True when it should have worked and did."""
        batch: Any = self.known.get(id)
        try:
            call()
        except NotFound:
            assert batch is None
            return False
        except IllegalMove:
            assert batch.state not in states
            return False
        assert batch is not None
        assert batch.state in states
        return True

    @rule(id=IDS)
    def create(self, id):
        try:
            self.store.batches.create(id, "t", input_file_id="f", endpoint="/v1/completions", now_s=self.now_s)
        except AlreadyExists:
            assert id in self.known
        else:
            assert id not in self.known
            self.known[id] = Known()
            self.order.append(id)

    @rule(id=IDS, given=st.lists(st.tuples(LINES, st.sampled_from("aabcdefgh"), st.sampled_from([b"x", b"x", b"y"]))))
    def add_any(self, id, given):
        self.add(id, [NewItem(*item) for item in given])

    @rule(id=IDS, numbers=st.lists(LINES, unique=True))
    def add_good(self, id, numbers):
        self.add(id, [NewItem(number, f"id-{number}", b"x") for number in numbers])

    def add(self, id, items):
        """One transaction: all of it, or nothing."""
        batch: Any = self.known.get(id)
        after, conflict = self.would_be(batch, items) if batch else ({}, False)
        if not items:
            return
        try:
            self.store.items.add(id, items)
        except NotFound:
            assert batch is None
        except IllegalMove:
            assert batch.state not in TAKES_ITEMS
        except (DuplicateItem, InputChanged):
            assert conflict
            assert batch.state in TAKES_ITEMS
        else:
            assert not conflict
            assert batch.state in TAKES_ITEMS
            batch.lines = after

    def would_be(self, batch, items):
        after = dict(batch.lines)
        for item in items:
            there = after.get(item.line)
            if there is not None:
                if (there.custom_id, there.body_hash) != (item.custom_id, item.body_hash):
                    return after, True
            elif any(line.custom_id == item.custom_id for line in after.values()):
                return after, True
            else:
                after[item.line] = Line(item.custom_id, item.body_hash)
        return after, False

    @rule(id=IDS, results=st.lists(st.tuples(LINES, ENDS, st.integers(0, 9), st.sampled_from(["limit", "timeout"]))))
    def record(self, id, results):
        batch: Any = self.known.get(id)
        given = [
            ItemResult(line=line, state=state, output_tokens=tokens, error_class=why)
            for line, state, tokens, why in results
        ]
        strangers = batch is not None and any(result.line not in batch.lines for result in given)
        try:
            recorded = self.store.items.record(id, given, self.now_s)
        except NotFound:
            assert batch is None or strangers
        except IllegalMove:
            assert batch.state is BatchState.FAILED
        else:
            assert not strangers
            late = []
            for result in given:
                line = batch.lines[result.line]
                if line.state.final:
                    late.append(result.line)
                else:
                    line.state, line.output_tokens = result.state, result.output_tokens
                    line.error_class = result.error_class
            assert (recorded.ignored, recorded.written) == (late, len(given) - len(late))

    @rule(id=IDS, state=st.sampled_from([ItemState.EXPIRED, ItemState.CANCELLED]), limit=st.integers(1, 5))
    def close(self, id, state, limit):
        if self.expect(
            id,
            TAKES_ITEMS | {BatchState.CANCELLING},
            lambda: self.store.items.close(id, state, self.now_s, limit=limit),
        ):
            batch = self.known[id]
            for number in batch.missing[:limit]:
                batch.lines[number].state = state
                batch.lines[number].error_class = state.value

    @rule(id=IDS, classes=st.none() | st.sets(st.sampled_from(["limit", "timeout"])))
    def reopen_failed(self, id, classes):
        if self.expect(id, {BatchState.IN_PROGRESS}, lambda: self.store.items.reopen(id, error_classes=classes)):
            for line in self.known[id].lines.values():
                if line.state is ItemState.FAILED and (classes is None or line.error_class in classes):
                    line.state, line.output_tokens = ItemState.PENDING, 0

    @rule(id=IDS, to=st.sampled_from(BatchState))
    def move(self, id, to):
        batch: Any = self.known.get(id)
        legal = batch is not None and to in BATCH_MOVES[batch.state] and not (to in NEEDS_ENDS and batch.missing)
        try:
            self.store.batches.move(id, to, self.now_s)
        except NotFound:
            assert batch is None
        except IllegalMove:
            assert not legal
        else:
            assert legal
            batch.state = to
            batch.ended_at_s = self.now_s if to.final else None

    @rule(keep_s=st.integers(0, 30), limit=st.integers(1, 3), max_items=st.integers(1, 9))
    def sweep(self, keep_s, limit, max_items):
        ended = [
            (batch.ended_at_s, self.order.index(name), name)
            for name, batch in self.known.items()
            if batch.ended_at_s is not None and batch.ended_at_s <= self.now_s - keep_s
        ]
        swept = self.store.batches.sweep(self.now_s, keep_s=keep_s, limit=limit, max_items=max_items)
        assert swept.deleted == min(limit, len(ended))
        for _, _, name in sorted(ended)[:limit]:
            del self.known[name]
            self.order.remove(name)

    @rule(passed_s=st.integers(1, 20))
    def wait(self, passed_s):
        self.now_s += passed_s

    @rule()
    def crash(self):
        """The process dies here: what is on the disk now is all that is left."""
        left = crashed(self.directory)
        self.store.close()
        shutil.rmtree(self.directory)
        self.directory = left
        self.store = open_store(self.directory, self.now_s)

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_store_is_what_the_dicts_are(self):
        assert [batch.id for batch in self.store.batches.list("t", order="asc").items] == self.order
        unfinished = [batch.id for batch in self.store.batches.unfinished()]
        assert unfinished == [name for name in self.order if not self.known[name].state.final]
        for name, known in self.known.items():
            self.compare(name, known)

    def compare(self, id, known):
        batch = self.store.batches.find(id)
        assert batch.state is known.state
        items = list(self.store.items.each(id, page_items=3))
        assert [(item.line, item.custom_id, item.body_hash, item.state) for item in items] == [
            (number, line.custom_id, line.body_hash, line.state) for number, line in sorted(known.lines.items())
        ]
        assert [item.line for item in self.store.items.missing(id)] == known.missing
        # Counters are kept as items change: they equal a recount.
        states = Counter(line.state for line in known.lines.values())
        assert self.store.items.counts(id) == states
        assert batch.total == len(known.lines)
        assert batch.completed == states[ItemState.COMPLETED]
        assert batch.missing == states[ItemState.PENDING]
        assert batch.output_tokens == sum(line.output_tokens for line in known.lines.values())


TestBatchesAndItems = BatchesAndItems.TestCase
TestBatchesAndItems.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
