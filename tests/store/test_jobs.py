from __future__ import annotations

from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.store import AlreadyExists, BadValue, Conflict, JobState, LeaseLost, NotFound
from tests.store.places import open_store, temporary

NOW_S = 1_750_000_000.0


def create(store, id, tenant="alice", *, now_s=NOW_S, **more):
    return store.jobs.create(
        id, tenant, b"body of " + id.encode(), kind="background", endpoint="/v1/chat/completions", now_s=now_s, **more
    )


def claim(store, now_s=NOW_S, **more):
    return store.jobs.claim_next("worker", now_s, lease_s=60, **more)


def test_a_job_is_kept_claimed_and_answered(store):
    made = create(store, "job_1", meta={"x-request-id": "7"})
    assert (made.state, made.tries, made.meta) == (JobState.QUEUED, 0, {"x-request-id": "7"})
    held = claim(store, NOW_S + 1)
    assert held.request == b"body of job_1"
    assert (held.job.owner, held.job.lease_until_s, held.job.started_at_s) == ("worker", NOW_S + 61, NOW_S + 1)
    assert store.jobs.response("job_1") is None
    assert store.jobs.running() == 1
    store.jobs.progress(held, NOW_S + 2, lease_s=60, tokens=12)
    done = store.jobs.complete(held, b"answer", NOW_S + 3)
    assert (done.state, done.http_status, done.finished_at_s, done.progress_tokens) == (
        JobState.COMPLETED, 200, NOW_S + 3, 12,
    )  # fmt: skip
    assert (done.owner, done.lease_until_s) == (None, None)
    assert store.jobs.response("job_1") == b"answer"
    assert claim(store, NOW_S + 1000) is None


def test_a_failed_job_keeps_the_body_to_answer_with(store):
    create(store, "job_1")
    store.jobs.fail(claim(store), b'{"error": {}}', NOW_S, http_status=400)
    job = store.jobs.get("job_1", "alice")
    assert (job.state, job.http_status, store.jobs.response("job_1")) == (JobState.FAILED, 400, b'{"error": {}}')


def test_another_tenants_job_is_not_found(store):
    create(store, "job_1", "alice")
    for call in (store.jobs.get, partial(store.jobs.cancel, now_s=NOW_S), partial(store.jobs.delete, now_s=NOW_S)):
        with pytest.raises(NotFound) as theirs:
            call("job_1", "bob")
        with pytest.raises(NotFound) as nobodys:
            call("job_2", "bob")
        assert theirs.value.message.replace("job_1", "job_2") == nobodys.value.message
    assert store.jobs.list("bob").items == []
    with pytest.raises(NotFound):
        store.jobs.list("bob", after="job_1")
    assert store.jobs.get("job_1", "alice").state is JobState.QUEUED


def test_an_id_is_taken_once(store):
    create(store, "job_1")
    with pytest.raises(AlreadyExists):
        create(store, "job_1", "bob")
    assert len(store.jobs.list("alice").items) == 1


def test_jobs_are_claimed_in_the_order_they_came(store):
    for number in range(5):
        create(store, f"job_{number}", now_s=NOW_S - number)  # whatever the clock said
    assert [claim(store).job.id for _ in range(5)] == [f"job_{number}" for number in range(5)]


def test_a_job_waits_for_its_time_and_blocks_nobody(store):
    create(store, "later", not_before_s=NOW_S + 10)
    create(store, "now")
    assert claim(store).job.id == "now"
    assert claim(store, NOW_S + 9.9) is None
    assert claim(store, NOW_S + 10).job.id == "later"


def test_the_caller_chooses_whose_turn_it_is(store):
    for number in range(3):
        create(store, f"a{number}", "alice")
    create(store, "b0", "bob")
    assert store.jobs.backlog() == {"alice": 3, "bob": 1}
    assert claim(store, tenant="bob").job.id == "b0"
    assert claim(store, tenant="bob") is None
    assert claim(store, kind="another") is None
    assert store.jobs.backlog() == {"alice": 3}


def test_a_lost_lease_is_taken_up_and_the_late_owner_learns_of_it(store):
    create(store, "job_1")
    first = claim(store)
    assert claim(store, NOW_S + 59.9) is None
    second = claim(store, NOW_S + 60)
    assert (second.job.id, second.job.tries) == ("job_1", 2)
    for late in (
        lambda: store.jobs.progress(first, NOW_S + 61, lease_s=60),
        lambda: store.jobs.complete(first, b"from the first", NOW_S + 61),
        lambda: store.jobs.fail(first, b"from the first", NOW_S + 61, http_status=500),
        lambda: store.jobs.give_back(first, NOW_S + 61),
    ):
        with pytest.raises(LeaseLost, match="worker no longer holds"):
            late()
    store.jobs.complete(second, b"from the second", NOW_S + 62)
    assert store.jobs.response("job_1") == b"from the second"


def test_a_claim_is_not_good_for_a_later_job_of_the_same_id(store):
    create(store, "job_1")
    first = claim(store)
    store.jobs.cancel("job_1", "alice", NOW_S)
    store.jobs.delete("job_1", "alice", NOW_S)
    create(store, "job_1")
    second = claim(store)
    assert first.job.claims == second.job.claims
    with pytest.raises(LeaseLost, match="it is deleted"):
        store.jobs.complete(first, b"of the first", NOW_S)
    store.jobs.complete(second, b"of the second", NOW_S)
    assert store.jobs.response("job_1") == b"of the second"


def test_an_owner_that_is_late_but_not_replaced_may_finish(store):
    create(store, "job_1")
    held = claim(store)
    store.jobs.complete(held, b"late", NOW_S + 3600)
    assert store.jobs.get("job_1", "alice").state is JobState.COMPLETED


def test_progress_renews_the_lease(store):
    create(store, "job_1")
    held = claim(store)
    store.jobs.progress(held, NOW_S + 50, lease_s=60, tokens=3)
    store.jobs.progress(held, NOW_S + 50, lease_s=60)  # an older report does not turn it back
    assert store.jobs.get("job_1", "alice").progress_tokens == 3
    assert claim(store, NOW_S + 109) is None
    assert claim(store, NOW_S + 110) is not None


def test_a_job_that_takes_its_owners_with_it_is_given_up(store):
    create(store, "poison", max_tries=3)
    for number in range(3):
        assert claim(store, NOW_S + 60 * number).job.tries == number + 1
    assert claim(store, NOW_S + 180) is None
    job = store.jobs.get("poison", "alice")
    assert (job.state, job.http_status) == (JobState.FAILED, 500)
    assert msgspec.json.decode(store.jobs.response("poison"))["error"]["code"] == "job_lost"


def test_giving_back_costs_a_try_only_when_it_should(store):
    create(store, "job_1", max_tries=2)
    for _ in range(5):
        store.jobs.give_back(claim(store), NOW_S)
    assert store.jobs.give_back(claim(store), NOW_S, counts=True).tries == 1
    assert store.jobs.give_back(claim(store), NOW_S, counts=True).state is JobState.FAILED


def test_a_given_back_job_keeps_its_place(store):
    for number in range(3):
        create(store, f"job_{number}")
    store.jobs.give_back(claim(store), NOW_S)
    assert claim(store).job.id == "job_0"


def test_a_running_job_is_cancelled_at_once(store):
    create(store, "job_1")
    held = claim(store)
    assert store.jobs.cancel("job_1", "alice", NOW_S + 1).state is JobState.CANCELLED
    with pytest.raises(LeaseLost, match="is cancelled"):
        store.jobs.complete(held, b"too late", NOW_S + 2)
    assert store.jobs.response("job_1") is None
    assert store.jobs.cancel("job_1", "alice", NOW_S + 3).finished_at_s == NOW_S + 1


def test_cancelling_what_is_done_leaves_it(store):
    create(store, "job_1")
    store.jobs.complete(claim(store), b"answer", NOW_S)
    assert store.jobs.cancel("job_1", "alice", NOW_S).state is JobState.COMPLETED
    assert store.jobs.response("job_1") == b"answer"


def test_only_what_has_ended_is_deleted(store):
    create(store, "job_1")
    with pytest.raises(Conflict, match=r"queued\. Cancel it"):
        store.jobs.delete("job_1", "alice", NOW_S)
    held = claim(store)
    with pytest.raises(Conflict, match="in_progress"):
        store.jobs.delete("job_1", "alice", NOW_S)
    store.jobs.complete(held, b"answer", NOW_S)
    store.jobs.delete("job_1", "alice", NOW_S)
    with pytest.raises(NotFound):
        store.jobs.get("job_1", "alice")
    assert store.jobs.response("job_1") is None


def test_the_old_are_swept_and_the_young_and_the_living_stay(store):
    for name in ("old", "young", "running", "queued"):
        create(store, name)
    for name, at_s in (("old", 0), ("young", 100)):
        held = claim(store)
        assert held.job.id == name
        store.jobs.complete(held, b"answer", NOW_S + at_s)
    claim(store)
    assert store.jobs.sweep(NOW_S + 100, keep_s=100).deleted == 1
    assert {job.id for job in store.jobs.list("alice").items} == {"young", "running", "queued"}
    assert store.jobs.sweep(NOW_S + 10_000, keep_s=100).deleted == 1
    assert {job.id for job in store.jobs.list("alice").items} == {"running", "queued"}


@given(st.lists(st.sampled_from(["alice", "bob"]), max_size=12), st.integers(1, 5), st.sampled_from(["asc", "desc"]))
@settings(max_examples=40, deadline=None)
def test_pages_together_are_the_list(tenants, limit, order):
    with temporary() as directory, open_store(directory) as store:
        for number, tenant in enumerate(tenants):
            create(store, f"job_{number}", tenant)
        seen, after = [], None
        while True:
            page = store.jobs.list("alice", after=after, limit=limit, order=order)
            seen += [job.id for job in page.items]
            assert len(page.items) <= limit
            if not page.has_more:
                break
            after = page.items[-1].id
        expected = [f"job_{number}" for number, tenant in enumerate(tenants) if tenant == "alice"]
        assert seen == (expected if order == "asc" else expected[::-1])


def test_paging_goes_on_after_one_that_was_deleted_meanwhile(store):
    for number in range(6):
        create(store, f"job_{number}")
        store.jobs.cancel(f"job_{number}", "alice", NOW_S)
    seen, after, more = [], None, True
    while more:
        page = store.jobs.list("alice", after=after, limit=2, order="asc")
        for job in page.items:
            seen.append(job.id)
            store.jobs.delete(job.id, "alice", NOW_S)
        after, more = page.items[-1].id, page.has_more
    assert seen == [f"job_{number}" for number in range(6)]
    with pytest.raises(NotFound):
        store.jobs.list("bob", after=seen[-1])
    store.sweep(NOW_S + 2 * 24 * 3600, keep_jobs_s=0, keep_batches_s=0)
    with pytest.raises(NotFound, match="List from the start"):
        store.jobs.list("alice", after=seen[-1])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"id": "../../etc/passwd"}, "id"),
        ({"id": ""}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"id": 7}, "id"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "\ud800"}, "tenant"),
        ({"endpoint": "a\0b"}, "endpoint"),
        ({"kind": None}, "kind"),
        ({"now_s": float("nan")}, "now_s"),
        ({"now_s": "soon"}, "now_s"),
        ({"not_before_s": float("inf")}, "not_before_s"),
        ({"max_tries": 0}, "max_tries"),
        ({"max_tries": True}, "max_tries"),
        ({"meta": {"key": 1}}, "meta.key"),
        ({"meta": ["key"]}, "meta"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(store, wrong, field):
    right = {"id": "job_1", "tenant": "alice", "request": b"", "kind": "background", "endpoint": "/v1", "now_s": NOW_S}
    with pytest.raises(BadValue) as refusal:
        store.jobs.create(**{**right, **wrong})
    assert refusal.value.param == field
    assert field.partition(".")[0] in refusal.value.message
    assert store.jobs.list("alice").items == []


def test_a_limit_or_an_order_that_is_none_is_refused(store):
    for limit in (0, -1, 10_001, 2.5):
        with pytest.raises(BadValue, match="limit must be"):
            store.jobs.list("alice", limit=limit)
    with pytest.raises(BadValue, match="order must be"):
        store.jobs.list("alice", order="seq; DROP TABLE jobs")


def test_a_restart_takes_running_jobs_back_at_once(directory):
    with open_store(directory) as store:
        for number in range(3):
            create(store, f"job_{number}")
        before = claim(store)
        store.jobs.complete(claim(store), b"answer", NOW_S)
    with open_store(directory) as store:
        assert store.taken_back == 1
        with pytest.raises(LeaseLost):
            store.jobs.complete(before, b"from before", NOW_S)
        assert [claim(store).job.id for _ in range(2)] == ["job_0", "job_2"]
        assert store.jobs.response("job_1") == b"answer"


def test_what_has_waited_too_long_can_be_claimed_to_end_it(store):
    for number, not_before_s in enumerate((0.0, NOW_S + 1000.0)):
        store.jobs.create(
            f"job_{number}", "t", b"{}", kind="k", endpoint="e", now_s=NOW_S + number, not_before_s=not_before_s
        )
    late = [
        store.jobs.claim_next("w", NOW_S + 20, lease_s=1, created_before_s=NOW_S + before_s)
        for before_s in (-1, 0, 0, 1)  # also one that may not start yet
    ]
    assert [None if one is None else one.job.id for one in late] == [None, "job_0", None, "job_1"]


def test_what_it_takes_grows_with_what_it_holds_and_shrinks_with_what_it_forgets(store):
    empty = store.used_bytes()
    store.jobs.create("job_1", "t", b"x" * 500_000, kind="k", endpoint="e", now_s=NOW_S)
    full = store.used_bytes()
    assert full - empty > 490_000  # pages that were there already had room for a little
    store.jobs.cancel("job_1", "t", NOW_S)
    store.jobs.delete("job_1", "t", NOW_S)
    assert store.used_bytes() - empty < 100_000
