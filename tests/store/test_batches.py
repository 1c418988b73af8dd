from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Batch

from headway.store import (
    AlreadyExists,
    BadValue,
    BatchError,
    BatchState,
    DuplicateItem,
    IllegalMove,
    InputChanged,
    ItemResult,
    ItemState,
    NewItem,
    NotFound,
)
from tests.store.places import START_S, open_store, temporary

NOW_S = START_S


def create(store, id="b", tenant="alice", **more):
    given = {"input_file_id": "file-in", "endpoint": "/v1/chat/completions", "now_s": NOW_S, **more}
    return store.batches.create(id, tenant, **given)


def lines(numbers):
    return (NewItem(number, f"request-{number}", b"hash of %d" % number) for number in numbers)


def done(line, **more):
    return ItemResult(line=line, state=ItemState.COMPLETED, **more)


def failed(line, **more):
    return ItemResult(line=line, state=ItemState.FAILED, **more)


def test_a_batch_is_as_openai_shows_it_at_every_stage(store):
    def shown():
        return Batch.model_validate(store.batches.get("b", "alice").as_openai(), strict=True)

    create(store, metadata={"project": "x"}, completion_window="24h")
    new = shown()
    assert (new.status, new.created_at, new.expires_at) == ("validating", int(NOW_S), int(NOW_S) + 86400)
    assert (new.metadata, new.errors, new.output_file_id) == ({"project": "x"}, None, None)
    store.items.add("b", lines(range(1, 4)))
    store.batches.move("b", BatchState.IN_PROGRESS, NOW_S + 1, model="m")
    results = [done(1, input_tokens=10, output_tokens=5, cached_tokens=4), done(2), failed(3, input_tokens=3)]
    store.items.record("b", results, NOW_S + 2)
    store.batches.move("b", BatchState.FINALIZING, NOW_S + 3)
    store.batches.move("b", BatchState.COMPLETED, NOW_S + 4, output_file_id="file-out", error_file_id="file-err")
    end = shown()
    assert (end.status, end.in_progress_at, end.finalizing_at, end.completed_at) == (
        "completed", int(NOW_S) + 1, int(NOW_S) + 3, int(NOW_S) + 4,
    )  # fmt: skip
    assert (end.request_counts.total, end.request_counts.completed, end.request_counts.failed) == (3, 2, 1)
    assert (end.output_file_id, end.error_file_id, end.model) == ("file-out", "file-err", "m")
    assert (end.usage.input_tokens, end.usage.input_tokens_details.cached_tokens) == (13, 4)
    assert (end.usage.output_tokens, end.usage.total_tokens) == (5, 18)


def test_why_a_batch_failed_is_kept_by_line(store):
    create(store)
    why = [BatchError(code="invalid_json_line", message="Line 17 is no JSON.", line=17)]
    store.batches.move("b", BatchState.FAILED, NOW_S, errors=why)
    shown = store.batches.get("b", "alice").as_openai()
    assert shown["errors"] == {
        "object": "list",
        "data": [{"code": "invalid_json_line", "message": "Line 17 is no JSON.", "line": 17, "param": None}],
    }
    assert (shown["status"], shown["failed_at"]) == ("failed", int(NOW_S))


def test_another_tenants_batch_is_not_found(store):
    create(store)
    for call in (
        lambda: store.batches.get("b", "bob"),
        lambda: store.batches.cancel("b", "bob", NOW_S),
        lambda: store.batches.list("bob", after="b"),
    ):
        with pytest.raises(NotFound):
            call()
    assert store.batches.list("bob").items == []
    with pytest.raises(AlreadyExists):
        create(store, tenant="bob")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"completion_window": "a day"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"input_file_id": "../x"}, "input_file_id"),
        ({"endpoint": ""}, "endpoint"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": "text"}, "metadata"),
        ({"model": ""}, "model"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(store, wrong, field):
    with pytest.raises(BadValue) as refusal:
        create(store, **wrong)
    assert refusal.value.param == field


@given(st.dictionaries(st.text(min_size=1, max_size=64), st.text(max_size=512), max_size=16))
@settings(max_examples=40, deadline=None)
def test_metadata_comes_back_as_it_was_or_is_refused(metadata):
    with temporary() as directory, open_store(directory) as store:
        try:
            create(store, metadata=metadata)
        except BadValue:
            assert any("\0" in text for pair in metadata.items() for text in pair)
        else:
            assert store.batches.get("b", "alice").metadata == metadata


def test_windows_have_units(store):
    for window, window_s in (("24h", 86400), ("7d", 7 * 86400), ("30m", 1800), ("45s", 45)):
        batch = create(store, f"b{window}", completion_window=window)
        assert batch.expires_at_s - batch.created_at_s == window_s


def test_cancelling_ends_what_is_missing_and_keeps_what_is_finished(store):
    create(store)
    store.items.add("b", lines(range(1, 6)))
    store.batches.move("b", BatchState.IN_PROGRESS, NOW_S)
    store.items.record("b", [done(2)], NOW_S)
    assert store.batches.cancel("b", "alice", NOW_S + 1).state is BatchState.CANCELLING
    assert store.batches.cancel("b", "alice", NOW_S + 2).cancelling_at_s == NOW_S + 1
    store.items.record("b", [done(3)], NOW_S)  # it was running when the client cancelled
    with pytest.raises(IllegalMove, match="3 of its 5 items have no end"):
        store.batches.move("b", BatchState.CANCELLED, NOW_S)
    assert store.items.close("b", ItemState.CANCELLED, NOW_S, limit=2) == 2
    assert store.items.close("b", ItemState.CANCELLED, NOW_S, limit=2) == 1
    assert store.items.close("b", ItemState.CANCELLED, NOW_S, limit=2) == 0
    store.batches.move("b", BatchState.CANCELLED, NOW_S)
    assert store.batches.cancel("b", "alice", NOW_S).state is BatchState.CANCELLED
    assert store.items.counts("b") == {ItemState.COMPLETED: 2, ItemState.CANCELLED: 3}
    assert store.items.failures("b") == {"batch_cancelled": 3}


def test_a_finished_batch_is_not_cancelled(store):
    create(store)
    store.batches.move("b", BatchState.IN_PROGRESS, NOW_S)
    store.batches.move("b", BatchState.FINALIZING, NOW_S)
    with pytest.raises(IllegalMove, match="finalizing and cannot become cancelling"):
        store.batches.cancel("b", "alice", NOW_S)
    store.batches.move("b", BatchState.COMPLETED, NOW_S)
    with pytest.raises(IllegalMove, match="that is its end"):
        store.batches.cancel("b", "alice", NOW_S)


def test_a_batch_past_its_window_is_overdue_until_it_ends(store):
    create(store, "short", completion_window="1h")
    create(store, "long", completion_window="2h")
    assert store.batches.overdue(NOW_S + 3599) == []
    assert [batch.id for batch in store.batches.overdue(NOW_S + 3600)] == ["short"]
    store.items.add("short", lines([1]))
    store.items.close("short", ItemState.EXPIRED, NOW_S + 3600)
    store.batches.move("short", BatchState.EXPIRED, NOW_S + 3600, error_file_id="file-err")
    assert [batch.id for batch in store.batches.overdue(NOW_S + 9999)] == ["long"]
    assert store.items.failures("short") == {"batch_expired": 1}


def test_an_old_batch_goes_with_its_items(store):
    for name in ("old", "running"):
        create(store, name)
        store.items.add(name, lines(range(1, 31)))
    store.batches.move("old", BatchState.FAILED, NOW_S)
    assert store.batches.sweep(NOW_S + 9, keep_s=10).deleted == 0
    swept = store.batches.sweep(NOW_S + 10, keep_s=10, max_items=12)
    assert (swept.deleted, swept.more) == (1, True)
    assert [batch.id for batch in store.batches.list("alice").items] == ["running"]
    create(store, "old")  # the id is free at once, and has none of the other's items
    assert list(store.items.each("old")) == []
    calls = 1
    while store.batches.sweep(NOW_S + 10, keep_s=10, max_items=12).more:
        calls += 1
    assert calls == 2
    assert store._database.value("SELECT count(*) FROM items") == 30
    assert sum(1 for _ in store.items.missing("running")) == 30
    with pytest.raises(NotFound):
        store.items.page("other")
    store.check()


def test_items_are_added_once_however_often_they_are_given(store):
    create(store)
    assert store.items.add("b", lines(range(1, 11)), per_transaction=3) == 10
    assert store.items.add("b", lines(range(1, 13)), per_transaction=4) == 2
    assert store.batches.find("b").total == 12
    assert [item.line for item in store.items.each("b", page_items=5)] == list(range(1, 13))


def test_a_duplicate_id_names_both_lines_and_its_piece_is_not_kept(store):
    create(store)
    store.items.add("b", lines([1, 2]))
    with pytest.raises(DuplicateItem, match=r"Line 5 has the custom_id 'request-2' of line 2") as refusal:
        store.items.add("b", [NewItem(4, "request-4", b"h"), NewItem(5, "request-2", b"h")])
    assert refusal.value.param == "line 5"
    with pytest.raises(DuplicateItem, match=r"Line 8 has the custom_id 'same' of line 7"):
        store.items.add("b", [NewItem(7, "same", b"h"), NewItem(8, "same", b"h")])
    assert store.batches.find("b").total == 2
    create(store, "another")
    assert store.items.add("another", lines([1, 2])) == 2


def test_a_changed_input_is_refused_and_says_which_line(store):
    create(store)
    store.items.add("b", lines(range(1, 6)))
    with pytest.raises(InputChanged, match=r"Line 3, custom_id 'request-3', has another body"):
        store.items.add("b", [NewItem(3, "request-3", b"another hash")])
    with pytest.raises(InputChanged, match=r"Line 3, .* another custom_id \(it was 'request-3'\)"):
        store.items.add("b", [NewItem(3, "request-300", b"hash of 3")])


@pytest.mark.parametrize(
    "item", [NewItem(0, "a", b""), NewItem(1, "", b""), NewItem(1, "\ud800", b""), NewItem(1, "x" * 513, b"")]
)
def test_an_item_that_cannot_be_is_refused(store, item):
    create(store)
    with pytest.raises(BadValue, match=r"line must be|custom_id \(line 1\)"):
        store.items.add("b", [item])


def test_the_first_end_of_an_item_counts(store):
    create(store)
    store.items.add("b", lines(range(1, 4)))
    first = store.items.record("b", [done(1, output_tokens=7, response_ref="output:0:10")], NOW_S)
    assert (first.written, first.ignored) == (1, [])
    again = store.items.record("b", [done(1, output_tokens=9), failed(2, error_class="timeout")], NOW_S)
    assert (again.written, again.ignored) == (1, [1])
    assert store.items.page("b")[0].response_ref == "output:0:10"
    batch = store.batches.find("b")
    assert (batch.completed, batch.failed, batch.output_tokens) == (1, 1, 7)


def test_a_line_that_is_not_there_records_nothing_of_the_call(store):
    create(store)
    store.items.add("b", lines([1]))
    with pytest.raises(NotFound, match="no line 2"), store.transaction():
        store.items.record("b", [done(1), done(2)], NOW_S)
    with store.transaction(), pytest.raises(NotFound):  # and neither when the caller goes on
        store.items.record("b", [done(1), done(2)], NOW_S)
    assert store.items.counts("b") == {ItemState.PENDING: 1}
    assert store.batches.find("b").completed == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": ItemState.PENDING},
        {"tries": -1},
        {"input_tokens": 1.5},
        {"output_tokens": -1},
        {"wall_s": float("nan")},
        {"queue_s": -0.1},
    ],
    ids=str,
)
def test_a_result_that_cannot_be_is_refused(store, wrong):
    create(store)
    store.items.add("b", lines([1]))
    with pytest.raises(BadValue, match=next(iter(wrong)) if "state" not in wrong else "has not ended"):
        store.items.record("b", [ItemResult(**{"line": 1, "state": ItemState.COMPLETED, **wrong})], NOW_S)


def test_what_a_finished_item_cost_comes_back(store):
    create(store)
    store.items.add("b", lines([1]))
    cost = {
        "tries": 2, "input_tokens": 100, "cached_tokens": 64, "output_tokens": 20, "queue_s": 0.5, "prefill_s": 0.25,
        "decode_s": 1.5, "wall_s": 2.25, "response_ref": "output:0:99", "error_class": None, "error": None,
    }  # fmt: skip
    store.items.record("b", [done(1, **cost)], NOW_S + 5)
    [item] = store.items.each("b")
    assert {name: getattr(item, name) for name in cost} == cost
    assert (item.custom_id, item.body_hash, item.finished_at_s) == ("request-1", b"hash of 1", NOW_S + 5)


def test_a_reason_of_any_length_and_bytes_is_kept_short(store):
    create(store)
    store.items.add("b", lines([1]))
    store.items.record("b", [failed(1, error_class="server", error="\ud800" + "x" * 5000)], NOW_S)
    [item] = store.items.each("b")
    assert item.error == "?" + "x" * 999


def test_failed_items_are_tried_again_alone(store):
    create(store)
    store.items.add("b", lines(range(1, 6)))
    store.batches.move("b", BatchState.IN_PROGRESS, NOW_S)
    results = [done(1), failed(2, error_class="timeout", tries=3, input_tokens=5), failed(3, error_class="bad item")]
    store.items.record("b", results, NOW_S)
    assert store.items.reopen("b", error_classes=["timeout", "server"]) == 1
    assert [item.line for item in store.items.missing("b")] == [2, 4, 5]
    batch = store.batches.find("b")
    assert (batch.completed, batch.failed, batch.input_tokens) == (1, 1, 0)
    store.items.record("b", [done(2, tries=1)], NOW_S)
    assert store.items.page("b")[1].tries == 3
    assert store.items.reopen("b") == 1
    store.items.record("b", [done(line) for line in (3, 4, 5)], NOW_S)
    store.batches.move("b", BatchState.FINALIZING, NOW_S)
    with pytest.raises(IllegalMove, match="finalizing: it tries nothing again"):
        store.items.reopen("b")


def test_a_try_is_counted_before_it_is_made(store):
    create(store)
    store.items.add("b", lines([1, 2, 3]))
    store.items.record("b", [done(3)], NOW_S)
    for _ in range(2):
        store.items.begin("b", [1, 3])
    assert [item.tries for item in store.items.each("b")] == [2, 0, 1]


def test_items_are_not_added_to_a_batch_that_ends(store):
    create(store)
    store.batches.move("b", BatchState.IN_PROGRESS, NOW_S)
    store.items.add("b", lines([1]))  # a long input is begun before all of it was read
    store.batches.cancel("b", "alice", NOW_S)
    with pytest.raises(IllegalMove, match="cancelling: it takes no more items"):
        store.items.add("b", lines([2]))


def test_items_finish_while_somebody_goes_through_them(store):
    create(store)
    store.items.add("b", lines(range(1, 101)))
    seen = []
    for item in store.items.missing("b"):
        seen.append(item.line)
        store.items.record("b", [done(item.line)], NOW_S)
    assert seen == list(range(1, 101))
    assert list(store.items.missing("b")) == []


@pytest.mark.slow
def test_a_long_batch_is_gone_through_in_little_memory(store):
    create(store)
    number = 20_000
    tracemalloc.start()
    try:
        store.items.add("b", lines(range(1, number + 1)), per_transaction=500)
        for start in range(1, number // 2, 1000):
            store.items.record("b", [done(line, output_tokens=2) for line in range(start, start + 1000)], NOW_S)
        everything = sum(1 for _ in store.items.each("b", page_items=500))
        missing = sum(1 for _ in store.items.missing("b"))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (everything, missing) == (number, number // 2)
    assert peak_bytes < 2 * 1024**2, "memory must not grow with the batch: all of these at once would be 10 MiB"
    assert store.batches.find("b").output_tokens == number
