"""Several gateways that share limits through a store that keeps what it is told, on a clock that is just a number.

What is said between them may get lost on the way there, on the way back, or come late, and gateways are killed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from headway.core.errors import Refused
from headway.core.front.ledger import NS_PER_MINUTE, Amounts, Lease, Ledger
from headway.core.front.sharing import Ask, Loss, Mode, Sharing
from headway.core.front.tenants import TenantLimits
from headway.workers.quota_store import MemoryStore, QuotaStoreFault

S = 1_000_000_000
LEASE_NS = 5 * S
TENANT = "t"


@dataclass
class Gateway:
    ledger: Ledger
    sharing: Sharing
    leases: list[Lease] = field(default_factory=list)
    outlived: set[Lease] = field(default_factory=set)  # taken before the gateway was cut off, or while it was
    cut_off_ns: int = 0  # for how long it was, in all


@dataclass
class Gateways:
    limits: TenantLimits
    loss: Loss = Loss.CLOSED
    count: int = 3
    now: int = S
    used_tokens: int = 0  # by requests that ended, and by those that died with their gateway
    used_requests: int = 0
    late: list[Ask] = field(default_factory=list)
    born: int = 0
    died_cut_off_ns: int = 0

    def __post_init__(self) -> None:
        self.store = MemoryStore(lambda: self.now // 1000)
        self.all = [self.begin() for _ in range(self.count)]
        for one in self.all * 2:  # so that each knows of all
            self.tick(one)

    def begin(self) -> Gateway:
        self.born += 1
        ledger = Ledger(lambda _: self.limits)
        name = f"g{self.born}"
        return Gateway(ledger, Sharing(name, ledger, lambda _: self.limits, lease_ns=LEASE_NS, loss=self.loss))

    # -- what happens --------------------------------------------------------------------------------------------------

    def tick(self, one: Gateway, fate: str = "well") -> None:
        """One ask. `lost`: it never arrives; `unanswered`: it does; `late`: it does, but after others."""
        self.see(one)
        ask = one.sharing.ask(self.now)
        if fate == "late":
            self.late.append(ask)
        if fate in ("lost", "late"):
            one.sharing.failed(self.now)
            return
        answer = self.store.apply(ask)
        if fate == "unanswered":
            one.sharing.failed(self.now)
        else:
            one.sharing.answered(answer, self.now)

    def arrive_late(self) -> None:
        with suppress(QuotaStoreFault):
            self.store.apply(self.late.pop(0))

    def request(self, one: Gateway, tokens: int, fate: str = "well") -> bool:
        amounts = Amounts(1, 1, tokens)
        self.see(one)
        if one.sharing.short(TENANT, amounts, self.now):
            self.tick(one, fate)
        try:
            (lease,) = one.ledger.take(TENANT, [amounts], self.now)
        except Refused:
            return False
        one.leases.append(lease)
        if one.sharing.mode is Mode.SHARE:
            one.outlived.add(lease)
        return True

    def settle(self, one: Gateway, tokens: int) -> None:
        if one.leases:
            lease = one.leases.pop(0)
            one.outlived.discard(lease)
            used = min(tokens, lease.amounts.tokens)
            one.ledger.settle(lease, used, self.now)
            self.used_tokens += used
            self.used_requests += 1

    def wait(self, ns: int) -> None:
        for one in self.all:
            if one.sharing.mode is not Mode.STORE:
                one.cut_off_ns += ns
        self.now += ns

    def kill(self, place: int) -> None:
        """Its requests end with it; nobody gives anything back."""
        one = self.all[place]
        self.used_tokens += sum(lease.amounts.tokens for lease in one.leases)
        self.used_requests += len(one.leases)
        self.died_cut_off_ns += one.cut_off_ns
        self.all[place] = self.begin()

    def leave(self, place: int) -> None:
        one = self.all[place]
        while one.leases:
            self.settle(one, 0)
        self.store.apply(one.sharing.leave(self.now))
        self.died_cut_off_ns += one.cut_off_ns
        self.all[place] = self.begin()

    def see(self, one: Gateway) -> None:
        """What its requests hold when it is cut off may be given to others, and goes on running."""
        one.sharing.look(self.now)
        if one.sharing.mode is not Mode.STORE:
            one.outlived.update(one.leases)

    def all_well(self) -> None:
        """No more faults: everybody speaks with the store until nothing is left to say, and all requests end."""
        self.late.clear()
        for _ in range(3):
            for one in self.all:
                self.tick(one)
        for one in self.all:
            while one.leases:
                self.settle(one, 0)
        for _ in range(70):
            self.wait(S)
            for one in self.all:
                self.tick(one)

    # -- what is counted -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Those that nobody but the store allowed."""
        return sum(len(set(one.leases) - one.outlived) for one in self.all)

    def out(self) -> tuple[int, int]:
        """Requests and tokens that were used, may still be by those who run, or are at hand somewhere."""
        requests, tokens = self.used_requests, self.used_tokens
        for one in self.all:
            # Asked like this, what is to come of itself is not added.
            free = one.ledger.allow(TENANT, Amounts(0, -(10**12), -(10**12)), self.now)
            one.ledger.allow(TENANT, Amounts(0, -free.requests, -free.tokens), self.now)
            requests += len(one.leases) - free.requests
            tokens += sum(lease.amounts.tokens for lease in one.leases) - free.tokens
        return requests, tokens

    def most(self, per_minute: int, minutes: int = 1) -> int:
        """What a bucket of one minute's worth has given by now, at most."""
        return minutes * per_minute + per_minute * self.now // NS_PER_MINUTE
