"""Background requests as a source of work: each a job in the store, claimed, computed, and finished once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headway.core.errors import HeadwayError
from headway.gateway.background.config import BackgroundConfig
from headway.gateway.background.insist import insist
from headway.gateway.background.runner import log
from headway.gateway.background.tenants import tenant_of
from headway.gateway.background.work import Answered, Kept
from headway.store import AsyncStore, Claim, JobState, LeaseLost, Store
from headway.wire.errors import error_body

OWNER = "headway serve"
MAX_OVERDUE = 100  # that are ended in one go


class BackgroundExpired(HeadwayError):
    """A background request was not started in time."""

    status = 504
    code = "background_expired"


class JobWork:
    """One claimed job."""

    def __init__(self, source: JobSource, claim: Claim) -> None:
        job = claim.job
        self.kept = Kept(job.id, tenant_of(job.tenant), job.endpoint, claim.request)
        self.owner = job.tenant
        self.tries = job.tries
        self.last_try = job.tries >= job.max_tries
        self.claim = claim
        self._source = source

    async def completed(self, answered: Answered) -> None:
        await self._ended(lambda store, now_s: store.jobs.complete(self.claim, answered.body, now_s))

    async def failed(self, status: int, body: bytes, code: str) -> None:
        del code
        await self._ended(lambda store, now_s: store.jobs.fail(self.claim, body, now_s, http_status=status))

    async def put_back(self, after_s: float, *, counts: bool) -> None:
        await self._ended(
            lambda store, now_s: store.jobs.give_back(self.claim, now_s, not_before_s=now_s + after_s, counts=counts)
        )

    async def _ended(self, end: Callable[[Store, float], object]) -> None:
        await self._source.end(self, end)


class JobSource:
    def __init__(self, store: AsyncStore, config: BackgroundConfig, clock_s: Callable[[], float]) -> None:
        self._store = store
        self._config = config
        self._clock_s = clock_s
        self._held: dict[str, JobWork] = {}
        self.queued = 0  # as it was last seen
        self._news = 1  # of changes that may have queued something
        self._seen = 0  # those after which nothing was queued: nobody else writes in the store
        self.ended: dict[str, int] = {}  # by how, since the start

    @property
    def held(self) -> int:
        return len(self._held)

    def kept(self) -> None:
        """One more is queued."""
        self.queued += 1
        self._news += 1

    async def owners(self) -> Sequence[str]:
        news = self._news
        if news == self._seen:
            return ()
        backlog = await self._store.run(lambda store: store.jobs.backlog())
        self.queued = sum(backlog.values())
        if not backlog:
            self._seen = news
        return list(backlog)

    async def take(self, owner: str) -> JobWork | None:
        now_s = self._clock_s()
        claim = await self._store.run(
            lambda store: store.jobs.claim_next(OWNER, now_s, lease_s=self._config.lease_s, tenant=owner)
        )
        if claim is None:
            return None
        work = self._held[claim.job.id] = JobWork(self, claim)
        return work

    async def end(self, work: JobWork, end: Callable[[Store, float], object]) -> None:
        try:
            job = await insist(self._store, lambda store: end(store, self._clock_s()))
        finally:
            self._held.pop(work.kept.id, None)
            self._news += 1  # it may have been put back
        state = getattr(job, "state", None)
        if isinstance(state, JobState) and state.final:
            self.count(state)

    def count(self, state: JobState) -> None:
        self.ended[state.value] = self.ended.get(state.value, 0) + 1

    async def keep_house(self) -> None:
        """Renew what is held, and end what has waited too long."""
        now_s = self._clock_s()
        await self.owners()  # what `queued` says is not to be old while there is no room
        for work in list(self._held.values()):
            lease_until_s = work.claim.job.lease_until_s or 0.0
            if lease_until_s - now_s < self._config.lease_s / 2:
                await self._renewed(work, now_s)
        for _ in range(MAX_OVERDUE):
            if not await self._store.run(partial(self._expire_one, now_s=now_s)):
                break
            self.count(JobState.FAILED)

    async def _renewed(self, work: JobWork, now_s: float) -> None:
        try:
            job = await self._store.run(
                lambda store: store.jobs.progress(work.claim, now_s, lease_s=self._config.lease_s)
            )
        except LeaseLost as lost:
            log.warning("%s", lost.message)
            return
        work.claim = Claim(job, work.claim.request)

    def _expire_one(self, store: Store, *, now_s: float) -> bool:
        created_before_s = now_s - self._config.timeout_s
        with store.transaction():
            late = store.jobs.claim_next(OWNER, now_s, lease_s=1.0, created_before_s=created_before_s)
            if late is None:
                return False
            error = BackgroundExpired(
                f"The request could not be started within {self._config.timeout_s:g} s (--background-timeout). "
                "Send it again."
            )
            store.jobs.fail(late, error_body(error), now_s, http_status=error.status)
        return True
