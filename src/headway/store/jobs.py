"""Background jobs: requests whose answer is fetched later. `Jobs` keeps them; who computes them, and when, is not here.

A job is computed by whoever claims it, under a lease: an owner that neither reports nor finishes in time has lost it,
and the next one takes it up. Each claim has a number, and only the last claim can report and finish; so however late a
lost owner comes back, nothing is finished twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from headway.store.database import Database, Row
from headway.store.errors import AlreadyExists, Conflict, LeaseLost, NotFound
from headway.store.lifecycle import JOB_MOVES, JobState, check_move
from headway.store.paging import Listing, Order, Page, Swept, bury, page
from headway.store.values import identifier, pairs, seconds, text, whole

MAX_TRIES = 5


class Job(Struct, frozen=True, kw_only=True):
    """Without its bodies, which `Jobs.request` and `Jobs.response` give."""

    seq: int  # never used again, unlike an id: it tells a deleted job from a later one of the same id
    id: str
    tenant: str
    kind: str  # why it is here, in the gateway's words
    endpoint: str  # the path it was sent to
    state: JobState
    created_at_s: float
    not_before_s: float
    started_at_s: float | None  # of the last try
    finished_at_s: float | None
    tries: int
    max_tries: int
    claims: int
    owner: str | None
    lease_until_s: float | None
    progress_tokens: int
    http_status: int | None  # of the answer: what the client would have got had it waited
    meta: dict[str, str]


class Claim(Struct, frozen=True):
    """The right to compute a job until `job.lease_until_s`, and what to compute."""

    job: Job
    request: bytes


_COLUMNS = ", ".join(Job.__struct_fields__)
_EMPTY_LEASE = "owner = NULL, lease_until_s = NULL"
_LOST = {
    "error": {
        "message": "The server was lost each time it worked on this request. Send it again, or a shorter one.",
        "type": "server_error",
        "param": None,
        "code": "job_lost",
    }
}


def _job(row: Row) -> Job:
    values = dict(zip(Job.__struct_fields__, row, strict=True))
    values["state"] = JobState(values["state"])
    values["meta"] = msgspec.json.decode(values["meta"])
    return Job(**values)


class Jobs:
    """Every method is one transaction, durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        id: str,
        tenant: str,
        request: bytes,
        *,
        kind: str,
        endpoint: str,
        now_s: float,
        not_before_s: float = 0.0,
        max_tries: int = MAX_TRIES,
        meta: Mapping[str, str] | None = None,
    ) -> Job:
        """Raises `AlreadyExists` when the id is taken: so a repeated call never makes two of one."""
        row = (
            identifier(id), text(tenant, "tenant"), text(kind, "kind"), text(endpoint, "endpoint"),
            JobState.QUEUED.value, seconds(now_s, "now_s"), seconds(not_before_s, "not_before_s"),
            whole(max_tries, "max_tries", least=1),
            msgspec.json.encode(pairs(meta, "meta", most=64, longest=8192)).decode(),
        )  # fmt: skip
        with self._database.transaction():
            if self._database.row("SELECT 1 FROM jobs WHERE id = ?", (id,)):
                raise AlreadyExists(f"There is a job {id} already.", param="id")
            self._database.write(
                "INSERT INTO jobs (id, tenant, kind, endpoint, state, created_at_s, not_before_s, max_tries, meta, "
                "tries, claims, progress_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)",
                row,
            )
            job = self.find(id)
            self._put_body(job, "request", request)
            return job

    def claim_next(
        self,
        owner: str,
        now_s: float,
        *,
        lease_s: float,
        kind: str | None = None,
        tenant: str | None = None,
        created_before_s: float | None = None,
    ) -> Claim | None:
        """The oldest job that may start, or None. Lost leases are taken back first.

        With `created_before_s`, the oldest of those that have waited so long, whether it may start or not.

        Whose turn it is, when tenants differ, is decided by the caller: see `backlog`, and name the `tenant`.
        """
        text(owner, "owner")
        until_s = seconds(now_s, "now_s") + seconds(lease_s, "lease_s", least=0.001)
        chosen = {column: value for column, value in (("kind", kind), ("tenant", tenant)) if value is not None}
        conditions = "".join(f" AND {column} = ?" for column in chosen)
        column, value = ("not_before_s", now_s) if created_before_s is None else ("created_at_s", created_before_s)
        with self._database.transaction():
            self.take_back(now_s)
            found = self._database.value(
                f"SELECT id FROM jobs WHERE state = 'queued' AND {column} <= ?{conditions} ORDER BY seq LIMIT 1",
                (value, *chosen.values()),
            )
            if found is None:
                return None
            self._database.write(
                "UPDATE jobs SET state = ?, owner = ?, lease_until_s = ?, started_at_s = ?, tries = tries + 1, "
                "claims = claims + 1, progress_tokens = 0 WHERE id = ?",
                (JobState.RUNNING.value, owner, until_s, now_s, found),
            )
            return Claim(self.find(found), self.request(found))

    def progress(self, claim: Claim, now_s: float, *, lease_s: float, tokens: int = 0) -> Job:
        """Says that the owner lives: renews the lease. Raises `LeaseLost`: stop computing."""
        whole(tokens, "tokens")
        until_s = seconds(now_s, "now_s") + seconds(lease_s, "lease_s", least=0.001)
        with self._database.transaction():
            job = self._held(claim)
            self._database.write(
                "UPDATE jobs SET lease_until_s = ?, progress_tokens = max(progress_tokens, ?) WHERE id = ?",
                (until_s, tokens, job.id),
            )
            return self.find(job.id)

    def complete(self, claim: Claim, response: bytes, now_s: float, *, http_status: int = 200) -> Job:
        """Raises `LeaseLost` when it is no longer this claim's to finish; the response is then thrown away."""
        return self._finish(claim, JobState.COMPLETED, response, now_s, http_status)

    def fail(self, claim: Claim, error: bytes, now_s: float, *, http_status: int) -> Job:
        """`error` is the body to answer with. Raises as `complete`."""
        return self._finish(claim, JobState.FAILED, error, now_s, http_status)

    def give_back(self, claim: Claim, now_s: float, *, not_before_s: float = 0.0, counts: bool = False) -> Job:
        """To the queue, at its old place: the server stops, or a worker had no room.

        A try counts where the job itself may be to blame; with its tries used up it fails.
        """
        seconds(now_s, "now_s")
        with self._database.transaction():
            job = self._held(claim)
            if counts and job.tries >= job.max_tries:
                return self._end_lost(job, now_s)
            self._database.write(
                f"UPDATE jobs SET state = ?, not_before_s = ?, tries = tries - ?, {_EMPTY_LEASE} WHERE id = ?",
                (JobState.QUEUED.value, seconds(not_before_s, "not_before_s"), 0 if counts else 1, job.id),
            )
            return self.find(job.id)

    def take_back(self, now_s: float, *, every: bool = False) -> int:
        """Jobs whose lease has run out go back to the queue, or fail when they have used up their tries.

        `every`: all that run, when their owners are known to be gone. Gives the number.
        """
        with self._database.transaction():
            lost = self._database.rows(
                f"SELECT {_COLUMNS} FROM jobs WHERE state = 'in_progress' AND (? OR lease_until_s <= ?)",
                (every, seconds(now_s, "now_s")),
            )
            for row in lost:
                job = _job(row)
                if job.tries >= job.max_tries:
                    self._end_lost(job, now_s)
                else:
                    self._database.write(
                        f"UPDATE jobs SET state = ?, {_EMPTY_LEASE} WHERE id = ?", (JobState.QUEUED.value, job.id)
                    )
            return len(lost)

    def cancel(self, id: str, tenant: str, now_s: float) -> Job:
        """At once, also when it is running. What has ended stays as it is: cancelling twice is no error."""
        with self._database.transaction():
            job = self.get(id, tenant)
            if not job.state.final:
                self._end(job, JobState.CANCELLED, now_s, http_status=None)
            return self.find(id)

    def get(self, id: str, tenant: str) -> Job:
        """Raises `NotFound`, for another tenant's as well."""
        job = self._select(id)
        if job is None or job.tenant != tenant:
            raise NotFound(f"There is no background request {id!r}.", param="id")
        return job

    def find(self, id: str) -> Job:
        """Whoever's it is: for those who compute, not for those who ask."""
        job = self._select(id)
        if job is None:
            raise NotFound(f"There is no background request {id!r}.", param="id")
        return job

    def request(self, id: str) -> bytes:
        body = self._body(id, "request")
        if body is None:
            raise NotFound(f"There is no background request {id!r}.", param="id")
        return body

    def response(self, id: str) -> bytes | None:
        """What it ended with, an error's body included; None while it has not, or was cancelled."""
        return self._body(id, "response")

    def list(self, tenant: str, *, after: str | None = None, limit: int = 20, order: Order = "desc") -> Page[Job]:
        return page(self._database, Listing("jobs", _COLUMNS, tenant, after, limit, order), _job)

    def backlog(self) -> dict[str, int]:
        """Number of queued jobs by tenant."""
        return dict(self._database.rows("SELECT tenant, count(*) FROM jobs WHERE state = 'queued' GROUP BY tenant"))

    def running(self) -> int:
        return int(self._database.value("SELECT count(*) FROM jobs WHERE state = 'in_progress'"))

    def delete(self, id: str, tenant: str, now_s: float) -> None:
        """Raises `Conflict` unless it has ended."""
        with self._database.transaction():
            job = self.get(id, tenant)
            if not job.state.final:
                raise Conflict(f"The background request {id} is {job.state.value}. Cancel it before deleting it.")
            bury(self._database, "jobs", job.seq, seconds(now_s, "now_s"))

    def sweep(self, now_s: float, *, keep_s: float, limit: int = 500) -> Swept:
        """Delete what ended at least `keep_s` ago, `limit` at most."""
        with self._database.transaction():
            old = self._database.rows(
                "SELECT seq FROM jobs WHERE finished_at_s <= ? ORDER BY finished_at_s LIMIT ?", (now_s - keep_s, limit)
            )
            for (seq,) in old:
                bury(self._database, "jobs", seq, now_s)
        return Swept(len(old), more=len(old) == limit)

    def _held(self, claim: Claim) -> Job:
        """The job as it is now, if the claim is still the last one and the job still runs."""
        job = self._select(claim.job.id)
        if job is None or job.seq != claim.job.seq:
            now = "is deleted"
        elif job.state is JobState.RUNNING and job.claims == claim.job.claims:
            return job
        else:
            now = f"is {job.state.value}, claimed {job.claims} times"
        raise LeaseLost(
            f"{claim.job.owner} no longer holds the background request {claim.job.id} (its claim was number "
            f"{claim.job.claims}): it {now}. Stop working on it."
        )

    def _finish(self, claim: Claim, state: JobState, body: bytes, now_s: float, http_status: int) -> Job:
        whole(http_status, "http_status", least=100, greatest=599)
        with self._database.transaction():
            job = self._held(claim)
            self._put_body(job, "response", body)
            self._end(job, state, now_s, http_status)
            return self.find(job.id)

    def _end_lost(self, job: Job, now_s: float) -> Job:
        self._put_body(job, "response", msgspec.json.encode(_LOST))
        self._end(job, JobState.FAILED, now_s, http_status=500)
        return self.find(job.id)

    def _end(self, job: Job, state: JobState, now_s: float, http_status: int | None) -> None:
        check_move(JOB_MOVES, job.state, state, f"The background request {job.id}")
        self._database.write(
            f"UPDATE jobs SET state = ?, finished_at_s = ?, http_status = ?, {_EMPTY_LEASE} WHERE id = ?",
            (state.value, seconds(now_s, "now_s"), http_status, job.id),
        )

    def _select(self, id: str) -> Job | None:
        row = self._database.row(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (id,))
        return None if row is None else _job(row)

    def _put_body(self, job: Job, part: str, body: bytes) -> None:
        self._database.write("INSERT INTO job_bodies (job, part, body) VALUES (?, ?, ?)", (job.seq, part, body))

    def _body(self, id: str, part: str) -> bytes | None:
        found: bytes | None = self._database.value(
            "SELECT body FROM job_bodies JOIN jobs ON jobs.seq = job WHERE id = ? AND part = ?", (id, part)
        )
        return found
