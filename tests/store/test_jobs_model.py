"""Whatever is done with jobs, in whatever order, with crashes in between: the store is what a plain dict would be."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from headway.store import AlreadyExists, Conflict, JobState, LeaseLost, NotFound
from tests.store.places import START_S, crashed, new_directory, open_store

TENANTS = st.sampled_from(["alice", "bob"])
IDS = st.sampled_from([f"job_{number}" for number in range(6)])
LEASE_S = 30.0


@dataclass
class Known:
    """A job as it should be."""

    tenant: str
    seq: int
    max_tries: int
    request: bytes
    not_before_s: float
    state: JobState = JobState.QUEUED
    tries: int = 0
    claims: int = 0
    lease_until_s: float | None = None
    finished_at_s: float | None = None
    response: Any = None  # `...` is what the store itself answers with for a lost job
    finishes: int = field(default=0)  # law: at most one, whoever comes late


class Jobs(RuleBasedStateMachine):
    claims = Bundle("claims")

    @initialize()
    def begin(self):
        self.directory = new_directory()
        self.now_s = START_S
        self.store = open_store(self.directory, self.now_s)
        self.known: dict[str, Known] = {}
        self.last_seq = 0

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    @rule(id=IDS, tenant=TENANTS, body=st.binary(max_size=20), max_tries=st.integers(1, 3), delay_s=st.integers(0, 20))
    def create(self, id, tenant, body, max_tries, delay_s):
        start_s = self.now_s + delay_s
        try:
            job = self.store.jobs.create(
                id, tenant, body, kind="background", endpoint="/v1/completions", now_s=self.now_s, max_tries=max_tries,
                not_before_s=start_s,
            )  # fmt: skip
        except AlreadyExists:
            assert id in self.known
        else:
            assert id not in self.known
            assert job.seq > self.last_seq
            self.last_seq = job.seq
            self.known[id] = Known(tenant, job.seq, max_tries, body, start_s)

    @rule(target=claims, tenant=st.none() | TENANTS)
    def claim(self, tenant):
        self.lose(lambda job: job.lease_until_s <= self.now_s)
        ready = [
            (job.seq, name)
            for name, job in self.known.items()
            if job.state is JobState.QUEUED and job.not_before_s <= self.now_s and tenant in (None, job.tenant)
        ]
        claim: Any = self.store.jobs.claim_next("worker", self.now_s, lease_s=LEASE_S, tenant=tenant)
        if not ready:
            assert claim is None
            return None
        job = self.known[min(ready)[1]]
        assert (claim.job.id, claim.request) == (min(ready)[1], job.request)
        job.state, job.lease_until_s = JobState.RUNNING, self.now_s + LEASE_S
        job.tries += 1
        job.claims += 1
        return claim

    def lose(self, lost):
        for job in self.known.values():
            if job.state is JobState.RUNNING and lost(job):
                job.lease_until_s = None
                if job.tries >= job.max_tries:
                    self.end(job, JobState.FAILED, ...)
                else:
                    job.state = JobState.QUEUED

    def end(self, job, state, response):
        job.state, job.finished_at_s, job.lease_until_s, job.response = state, self.now_s, None, response
        job.finishes += 1

    def holds(self, claim):
        """The job, if this claim is still good for it. A job of the same id that came later is another one."""
        job = self.known.get(claim.job.id)
        if job is None or job.seq != claim.job.seq:
            return None
        return job if job.state is JobState.RUNNING and job.claims == claim.job.claims else None

    @rule(claim=claims, tokens=st.integers(0, 9))
    def progress(self, claim, tokens):
        if claim is None:
            return
        job = self.holds(claim)
        try:
            self.store.jobs.progress(claim, self.now_s, lease_s=LEASE_S, tokens=tokens)
        except LeaseLost:
            assert job is None
        else:
            job.lease_until_s = self.now_s + LEASE_S

    @rule(claim=consumes(claims) | claims, body=st.binary(max_size=20), good=st.booleans())
    def finish(self, claim, body, good):
        if claim is None:
            return
        job = self.holds(claim)
        try:
            if good:
                self.store.jobs.complete(claim, body, self.now_s)
            else:
                self.store.jobs.fail(claim, body, self.now_s, http_status=500)
        except LeaseLost:
            assert job is None
        else:
            self.end(job, JobState.COMPLETED if good else JobState.FAILED, body)

    @rule(claim=claims, counts=st.booleans())
    def give_back(self, claim, counts):
        if claim is None:
            return
        job = self.holds(claim)
        try:
            self.store.jobs.give_back(claim, self.now_s, counts=counts)
        except LeaseLost:
            assert job is None
            return
        if counts and job.tries >= job.max_tries:
            self.end(job, JobState.FAILED, ...)
        else:
            job.state, job.lease_until_s, job.not_before_s = JobState.QUEUED, None, 0.0
            job.tries -= 0 if counts else 1

    @rule(id=IDS, tenant=TENANTS)
    def cancel(self, id, tenant):
        job: Any = self.known.get(id)
        try:
            self.store.jobs.cancel(id, tenant, self.now_s)
        except NotFound:
            assert job is None or job.tenant != tenant
        else:
            assert job.tenant == tenant
            if not job.state.final:
                self.end(job, JobState.CANCELLED, None)

    @rule(id=IDS, tenant=TENANTS)
    def delete(self, id, tenant):
        job: Any = self.known.get(id)
        try:
            self.store.jobs.delete(id, tenant, self.now_s)
        except NotFound:
            assert job is None or job.tenant != tenant
        except Conflict:
            assert not job.state.final
        else:
            assert job.tenant == tenant
            del self.known[id]

    @rule(keep_s=st.integers(0, 60))
    def sweep(self, keep_s):
        old = [name for name, job in self.known.items() if job.state.final and job.finished_at_s <= self.now_s - keep_s]
        assert self.store.jobs.sweep(self.now_s, keep_s=keep_s).deleted == len(old)
        for name in old:
            del self.known[name]

    @rule(passed_s=st.integers(1, 40))
    def wait(self, passed_s):
        self.now_s += passed_s

    @rule()
    def restart(self):
        self.store.close()
        self.reopen()

    @rule()
    def crash(self):
        """The process dies here: what is on the disk now is all that is left."""
        left = crashed(self.directory)
        self.store.close()
        shutil.rmtree(self.directory)
        self.directory = left
        self.reopen()

    def reopen(self):
        self.store = open_store(self.directory, self.now_s)
        assert self.store.taken_back == sum(job.state is JobState.RUNNING for job in self.known.values())
        self.lose(lambda job: True)

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_store_is_what_the_dict_is(self):
        for tenant in ("alice", "bob"):
            mine = {name: job for name, job in self.known.items() if job.tenant == tenant}
            listed = self.store.jobs.list(tenant, order="asc", limit=100).items
            assert [job.id for job in listed] == sorted(mine, key=lambda name: mine[name].seq)
            for job in listed:
                self.compare(job, mine[job.id])
        queued = [job.tenant for job in self.known.values() if job.state is JobState.QUEUED]
        assert self.store.jobs.backlog() == {tenant: queued.count(tenant) for tenant in set(queued)}
        assert self.store.jobs.running() == sum(job.state is JobState.RUNNING for job in self.known.values())

    def compare(self, job, known):
        assert (job.state, job.tries, job.claims) == (known.state, known.tries, known.claims)
        assert (job.lease_until_s, job.finished_at_s) == (known.lease_until_s, known.finished_at_s)
        assert self.store.jobs.request(job.id) == known.request
        response: Any = self.store.jobs.response(job.id)
        assert b"job_lost" in response if known.response is ... else response == known.response
        assert known.finishes == int(job.state.final)


TestJobs = Jobs.TestCase
TestJobs.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
