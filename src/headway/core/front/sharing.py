"""`Sharing`: one gateway's part of limits that several share. It decides what to ask a store of quotas for, what to
give back, and what holds while the store does not answer. The store (`QuotaStore` in workers/) keeps numbers, no rule.

A ledger grants only what this gateway was given. Slots are leased: a gateway that is not heard of for `lease_ns` has
none. Requests and tokens of the minute are handed out for good, a few at a time, and what is not needed goes back. An
`Ask` is applied by the store once or never; one without an answer is not repeated, since nothing in it needs that:

- slots are told as a whole (`held`, which nobody else may have, and `slots`, which are wanted), not as a difference;
- what goes back leaves the ledger before it is told, and what is given enters it after: lost on the way is never twice;
- `owed` alone must arrive once, and is told again, under the number of the ask that told it first, until it has.

While the store is lost an ask is a mere greeting; once one is answered, all is told that there is to tell, and only
then the store counts again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from headway.core.front.ledger import Amounts, Ledger
from headway.core.front.tenants import TenantLimits

NS_PER_S = 1_000_000_000
# After so much of the lease without an answer the gateway counts itself as cut off: before the others can have its
# slots, with room for clocks that run differently.
CUT_OFF_RATIO = 2 / 3
RENEW_RATIO = 1 / 4  # of the lease, after which it is told again though there is nothing to say
# Of a gateway's even share, what it keeps at hand without a request that needs it: so much others may be refused for
# nothing, and so seldom does a request have to wait for the store.
AT_HAND_RATIO = 1 / 4
ACTIVE_NS = 2 * NS_PER_S  # a tenant without requests for so long needs nothing at hand
FETCHED_NS = (
    NS_PER_S // 10
)  # so long what a request asked for is kept for it: it has been told, and is about to take it
TOLD_AGAIN_NS = 60 * NS_PER_S  # what is held is told at least so often, whatever the store may have forgotten
MAX_WANTS = 64  # tenants in one ask, so that the store is not kept from the others


_NONE = Amounts()


class Loss(Enum):
    """What holds when the store is lost."""

    CLOSED = "closed"  # who has a limit is refused
    SHARE = "share"  # each gateway goes on by itself, with an even share of each limit


class Mode(Enum):
    """By what a gateway grants."""

    STORE = "store"
    SHARE = "share"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Want:
    """What a gateway has of one tenant's limits, and what it would have. `limit` 0 is no limit."""

    tenant: str
    limit: Amounts  # slots; requests and tokens a minute
    held: int  # slots that are or may be taken: they are its own whatever the store thinks
    slots: int  # in all, those included
    more: Amounts  # requests and tokens; negative is given back
    owed: Amounts = _NONE  # requests and tokens that it took without the store, to be charged in any case
    owed_since: int = 0  # the number of the ask that told of it first


@dataclass(frozen=True, slots=True)
class Ask:
    """One round trip. `number` rises, so that the store can tell an ask that comes late; `epoch` as it said last."""

    gateway: str
    number: int
    lease_ns: int
    epoch: str
    wants: tuple[Want, ...] = ()
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Got:
    """Of one `Want`: slots in all, requests and tokens that were given, what is left in the store."""

    tenant: str
    slots: int
    more: Amounts
    left: Amounts
    others_short: bool = False  # another gateway wanted more than there was, within the last second


@dataclass(frozen=True, slots=True)
class Answer:
    """`before` is the number of the last ask of this gateway that was applied, 0 for none that is known.

    `wait_ns`: the store had forgotten everything, and gives nothing out until all gateways can have told what they
    hold.
    """

    epoch: str
    before: int
    gateways: int  # that have a lease, this one included
    got: tuple[Got, ...] = ()
    wait_ns: int = 0


@dataclass(slots=True)
class _Part:
    """What this gateway knows of one tenant."""

    active_ns: int
    need: Amounts = _NONE  # of those who wait for an answer
    fetched: Amounts = _NONE  # of those who have just got theirs
    fetched_ns: int = 0
    owed: Amounts = _NONE
    owed_since: int = 0
    told_ns: int | None = None  # None: the store has to be told
    others_short: bool = False


class Sharing:
    """Feeds `ledger`. Give `ask` to the store, its answer to `answered`, or say `failed`: one ask at a time."""

    def __init__(
        self,
        gateway: str,
        ledger: Ledger,
        limits: Callable[[str], TenantLimits],
        *,
        lease_ns: int,
        loss: Loss = Loss.CLOSED,
    ) -> None:
        self.gateway = gateway
        self.loss = loss
        self.mode = Mode.CLOSED  # until the store has answered
        self.gateways = 0  # as last known; 0 before the store has ever answered
        self.losses = 0
        self.failures = 0  # since the last answer
        self._ledger = ledger
        self._limits = limits
        self._lease_ns = lease_ns
        self._parts: dict[str, _Part] = {}
        self._epoch = ""
        self._number = 0
        self._sent_ns = 0  # of the last ask
        self._cut_off_ns = 0  # when it counts as cut off
        self._renew_ns = 0
        self._greeted = False  # while the store is lost: it has answered again
        self.behind = False  # one ask was not enough for what there is to tell
        ledger.refill_ratio, ledger.closed = 0.0, True

    # -- what a request meets ------------------------------------------------------------------------------------------

    def short(self, tenant: str, amounts: Amounts, now: int) -> bool:
        """Before a request takes `amounts`: would it be refused, and can an ask that begins now help?"""
        limits = self._limits(tenant)
        if not (limits.max_concurrency or limits.requests_per_minute or limits.tokens_per_minute):
            return False
        self.look(now)
        part = self._parts.get(tenant)
        if part is None:
            part = self._parts[tenant] = _Part(now)
        part.active_ns = now
        ledger = self._ledger
        if self.mode is not Mode.STORE or ledger.unanswered or not ledger.missing(tenant, amounts, now):
            return False
        if amounts.tokens > limits.tokens_per_minute > 0 or amounts.slots > limits.max_concurrency > 0:
            return False  # it can never be
        part.need += amounts
        return True

    def look(self, now: int) -> None:
        """Count as cut off when it is time to. The others may have its slots soon, so this comes before any grant."""
        if self.mode is Mode.STORE and now >= self._cut_off_ns:
            self._lose(now)

    def _lose(self, now: int) -> None:
        # Whoever has never heard of the others cannot know what an even share is.
        share = self.loss is Loss.SHARE and self.gateways > 0
        self.mode = Mode.SHARE if share else Mode.CLOSED
        self.losses += 1
        self._greeted = False
        self._ledger.set_refill_ratio(1 / self.gateways if share else 0.0, now)
        self._ledger.closed = not share
        self._ledger.unanswered = False
        self._tell_all()

    # -- asking --------------------------------------------------------------------------------------------------------

    def due(self, now: int) -> bool:
        """Is there something to ask, to give back or to renew?"""
        if self.mode is not Mode.STORE or now >= self._renew_ns:
            return True
        return any(self._off(tenant, part, now) for tenant, part in self._parts.items())

    def ask(self, now: int) -> Ask:
        """The next ask. What it gives back is out of the ledger when this returns."""
        self.look(now)
        self._number += 1
        self._sent_ns = now
        parts, wants = self._parts, list[Want]()
        if self.mode is Mode.STORE:
            for tenant in sorted(parts, key=lambda one: not parts[one].need):
                part = parts[tenant]
                if part.need or (len(wants) < MAX_WANTS and self._off(tenant, part, now)):
                    wants.append(self._want(tenant, part, now))
        elif self._greeted:
            untold = (one for one in parts.items() if one[1].told_ns is None)
            wants += (self._want_again(tenant, part) for tenant, part in islice(untold, MAX_WANTS))
        self.behind = len(wants) >= MAX_WANTS
        return Ask(self.gateway, self._number, self._lease_ns, self._epoch, tuple(wants))

    def leave(self, now: int) -> Ask:
        """The last ask of a gateway that stops: it gives back all it has. Nothing may be granted after it."""
        self._number += 1
        wants = []
        if self.mode is Mode.STORE:
            for tenant in self._parts:
                free = self._ledger.free(tenant, now)
                back = self._ledger.allow(tenant, Amounts(0, -max(0, free.requests), -max(0, free.tokens)), now)
                wants.append(Want(tenant, _limit(self._limits(tenant)), 0, 0, back))
        self.mode, self._ledger.closed = Mode.CLOSED, True
        return Ask(self.gateway, self._number, self._lease_ns, self._epoch, tuple(wants), leaves=True)

    def _off(self, tenant: str, part: _Part, now: int) -> bool:
        if part.need or part.owed or part.told_ns is None or now - part.told_ns > TOLD_AGAIN_NS:
            return True
        return bool(self._change(tenant, part, now))

    def _change(self, tenant: str, part: _Part, now: int) -> Amounts:
        """How much more, or less, should be at hand. Nothing while what is there is neither little nor much."""
        free, limit = self._ledger.free(tenant, now), _limit(self._limits(tenant))
        active = now - part.active_ns < ACTIVE_NS and not part.others_short

        fetched = part.fetched if now - part.fetched_ns < FETCHED_NS else Amounts()

        def change(free: int, need: int, fetched: int, limit: int) -> int:
            if not limit:
                return -max(0, free)
            at_hand = int(limit / max(1, self.gateways) * AT_HAND_RATIO) if active else 0
            if free < need or free < at_hand / 2:
                return need + at_hand - free
            return min(0, need + fetched + at_hand - free) if free > need + at_hand * 1.5 else 0

        return Amounts(
            change(free.slots, part.need.slots, fetched.slots, limit.slots),
            change(free.requests, part.need.requests, fetched.requests, limit.requests),
            change(free.tokens, part.need.tokens, fetched.tokens, limit.tokens),
        )

    def _want(self, tenant: str, part: _Part, now: int) -> Want:
        ledger, limit, change = self._ledger, _limit(self._limits(tenant)), self._change(tenant, part, now)
        back = ledger.allow(tenant, Amounts(min(0, change.slots), min(0, change.requests), min(0, change.tokens)), now)
        more = Amounts(
            0,
            change.requests if change.requests > 0 else back.requests,
            change.tokens if change.tokens > 0 else back.tokens,
        )
        allowed = ledger.allowed_slots(tenant)
        held = max(allowed, ledger.held(tenant)) if limit.slots else 0
        slots = max(held, allowed + change.slots) if limit.slots else 0
        part.fetched, part.fetched_ns, part.need = part.need, now, Amounts()
        self._owe(tenant, part, limit)
        return Want(tenant, limit, held, slots, more, part.owed, part.owed_since)

    def _want_again(self, tenant: str, part: _Part) -> Want:
        """After the store was lost: slots are as many as may be taken until it answers."""
        limit, ledger = _limit(self._limits(tenant)), self._ledger
        held = 0
        if limit.slots:
            held = ledger.held(tenant)
            held += max(0, ledger.free(tenant, self._sent_ns).slots) if self.mode is Mode.SHARE else 0
        self._owe(tenant, part, limit)
        return Want(tenant, limit, held, held, Amounts(), part.owed, part.owed_since)

    def _owe(self, tenant: str, part: _Part, limit: Amounts) -> None:
        """What was taken without the store is told to it; what comes on top before it has answered, after that."""
        if part.owed:
            return
        gained = self._ledger.gained(tenant)
        # However long it was lost: a minute's worth is all that there could be in the store now.
        ratio = self._ledger.refill_ratio or 1.0
        most = Amounts(0, int(limit.requests * ratio), int(limit.tokens * ratio))
        part.owed = Amounts(0, min(gained.requests, most.requests), min(gained.tokens, most.tokens))
        part.owed_since = self._number if part.owed else 0

    # -- answers -------------------------------------------------------------------------------------------------------

    def answered(self, answer: Answer, now: int) -> None:
        """Take what was given."""
        forgot = answer.epoch != self._epoch
        if forgot or answer.before != self._number - 1:
            self._tell_all()  # it has not had all that it was told
        if forgot and self._epoch:
            self._forgive()
        # While it waits it has not heard of all of them yet.
        self.gateways = max(1, answer.gateways, self.gateways if answer.wait_ns else 0)
        self._epoch, self.failures = answer.epoch, 0
        self._renew_ns = self._sent_ns + int(self._lease_ns * RENEW_RATIO)
        for got in answer.got:
            self._take(got, now)
        if self.mode is not Mode.STORE:
            # Until all is told, and the store gives something, what holds without it goes on.
            untold = not self._greeted or any(part.told_ns is None for part in self._parts.values())
            self._greeted = True
            if answer.wait_ns or (self._parts and untold):
                return
            self._find_again(now)
        self._ledger.unanswered = answer.wait_ns > 0
        self._cut_off_ns = self._sent_ns + int(self._lease_ns * CUT_OFF_RATIO)

    def _find_again(self, now: int) -> None:
        """From here on only what the store gives counts."""
        if self.mode is Mode.SHARE:
            self._ledger.set_refill_ratio(0.0, now)
        self.mode, self._ledger.closed, self._greeted = Mode.STORE, False, False
        self._tell_all()

    def _forgive(self) -> None:
        """A store that has forgotten begins with an empty minute: what was taken before that is no debt."""
        for tenant, part in self._parts.items():
            self._ledger.gained(tenant)
            part.owed, part.owed_since = _NONE, 0

    def _take(self, got: Got, now: int) -> None:
        part, ledger = self._parts[got.tenant], self._ledger
        slots = got.slots - ledger.allowed_slots(got.tenant)
        ledger.allow(got.tenant, Amounts(slots, max(0, got.more.requests), max(0, got.more.tokens)), now)
        ledger.left_elsewhere(got.tenant, got.left, now)
        part.others_short = got.others_short
        more_owed = part.owed and self.mode is Mode.STORE  # maybe: from between the ask and its answer
        part.told_ns = None if more_owed else self._sent_ns
        part.owed, part.owed_since = _NONE, 0
        if self.mode is not Mode.STORE:
            return
        idle = now - part.active_ns > ACTIVE_NS and not part.need and part.told_ns is not None
        if idle and not got.slots and not ledger.free(got.tenant, now):
            del self._parts[got.tenant]

    def failed(self, now: int) -> None:
        """No answer came, or none that could be used. Whether the ask was applied is not known, and need not be."""
        self.failures += 1
        self._greeted = False
        self._ledger.unanswered = self.mode is Mode.STORE
        self._tell_all()
        self.look(now)

    def _tell_all(self) -> None:
        for part in self._parts.values():
            part.told_ns = None


def _limit(limits: TenantLimits) -> Amounts:
    return Amounts(limits.max_concurrency, limits.requests_per_minute, limits.tokens_per_minute)
