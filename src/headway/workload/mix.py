"""What is asked, one `Item` after another: shares of kinds, tenants, shared beginnings, and given items over again.

A share is written NAME=WEIGHT/INPUT/OUTPUT, e.g. short=92%/40:160/32:96; lengths as in `lengths`. Weights are relative:
92% and 8% are the same as 23 and 2. Tenants are written as their number, `3`, or with weights, `a=3,b=1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from headway.workload.draws import below, cumulative, fork, pick, shuffled
from headway.workload.errors import MAX_TOKENS, WorkloadError, check_number, check_whole, shown
from headway.workload.item import Item
from headway.workload.lengths import Independent, Pairs, Uniform, parse_lengths

MAX_TENANTS = 10_000
MAX_GROUPS = 1_000_000
_NAME = re.compile(r"[\w.+-]{1,64}")


class ItemSource(Protocol):
    """Makes items, one after another."""

    @property
    def description(self) -> str:
        """One line for people."""
        ...

    def items(self, random: Random) -> Iterator[Item]:
        """The items, in order; endless unless the source says otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """One kind of request. `weight` is relative to the weights of the others."""

    kind: str
    weight: float
    lengths: Pairs

    def __post_init__(self) -> None:
        if self.kind:  # a load of one kind needs no name for it
            _check_name("kind", self.kind)
        _check_weight(f"weight of {self.kind!r}", self.weight)


@dataclass(frozen=True, slots=True)
class Tenants:
    """Who asks: names and how often, relative to each other."""

    weights: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        check_whole("number of tenants", len(self.weights), 1, MAX_TENANTS)
        for name, weight in self.weights:
            _check_name("tenant", name)
            _check_weight(f"weight of tenant {name!r}", weight)
        _check_unique("tenant", [name for name, _ in self.weights])

    @property
    def description(self) -> str:
        if len({weight for _, weight in self.weights}) == 1:
            return f"{len(self.weights)} equal tenants" if len(self.weights) > 1 else f"tenant {self.weights[0][0]}"
        shown_names = ", ".join(f"{name} {weight:g}" for name, weight in self.weights[:8])
        more = len(self.weights) - 8
        return f"tenants {shown_names}" + (f" and {more} more" if more > 0 else "")

    @property
    def known(self) -> frozenset[str]:
        """All their names."""
        return frozenset(name for name, _ in self.weights)

    def names(self, random: Random) -> Iterator[str]:
        """A tenant for each request."""
        bounds = cumulative(weight for _, weight in self.weights)
        while True:
            yield self.weights[pick(random, bounds)][0]


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prompts that begin alike, to try a prefix cache with: `share` of all requests belong to one of `groups` groups,
    and the first `tokens` tokens of a group's prompts are the same. They are part of the input length; a prompt that is
    shorter is a beginning of them.
    """

    tokens: int
    groups: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        check_whole("shared_prefix_tokens", self.tokens, 1, MAX_TOKENS, "tokens")
        check_whole("prefix_groups", self.groups, 1, MAX_GROUPS)
        check_number("shared_prefix_share", self.share, 0, 1)

    @property
    def description(self) -> str:
        groups = f"in {self.groups:,} groups" if self.groups > 1 else "all the same"
        prompts = "all prompts" if self.share == 1 else f"{self.share:.4g} of prompts"
        return f"{prompts} begin with {self.tokens:,} shared tokens, {groups}"

    def blocks(self, random: Random) -> Iterator[tuple[int, ...]]:
        """The prefix block of each request; none for those that share nothing."""
        while True:
            member, group = random.random() < self.share, below(random, self.groups)
            yield (group,) if member else ()


@dataclass(frozen=True, slots=True)
class Mix:
    """Items by chance: each is of one of the `shares`. Endless.

    Kinds, lengths, tenants and prefixes are drawn from generators of their own: more tenants do not change lengths.
    """

    shares: tuple[Share, ...]
    tenants: Tenants | None = None
    prefix: SharedPrefix | None = None

    def __post_init__(self) -> None:
        if not self.shares:
            raise WorkloadError("shares must hold at least one kind of request", field="shares")
        _check_unique("kind", [share.kind for share in self.shares])

    @property
    def description(self) -> str:
        total = sum(share.weight for share in self.shares)
        if len(self.shares) == 1:
            parts = [f"{self.shares[0].lengths.description} tokens"]
        else:
            parts = [
                f"{share.kind} {share.weight / total:.3g}: {share.lengths.description} tokens" for share in self.shares
            ]
        parts += [part.description for part in (self.tenants, self.prefix) if part is not None]
        return "; ".join(parts)

    def items(self, random: Random) -> Iterator[Item]:
        kinds, tenants, prefixes = fork(random), fork(random), fork(random)
        lengths = [fork(random) for _ in self.shares]
        bounds = cumulative(share.weight for share in self.shares)
        names = _names(self.tenants, tenants)
        blocks = self.prefix.blocks(prefixes) if self.prefix else None
        while True:
            place = pick(kinds, bounds)
            share = self.shares[place]
            input_len, output_len = share.lengths.draw(lengths[place])
            block = next(blocks) if blocks else ()
            size = self.prefix.tokens if self.prefix and block else 0
            yield Item(input_len, output_len, share.kind, next(names), block, size)


@dataclass(frozen=True, slots=True)
class Given:
    """Items as they are, pass after pass; with `shuffle`, every pass in another order. Endless.

    `tenants` names those items that have none. From the second pass on a prefix cache has seen every prompt.
    """

    given: Sequence[Item]
    shuffle: bool = False
    tenants: Tenants | None = None

    def __post_init__(self) -> None:
        if not self.given:
            raise WorkloadError("there must be at least one item to give", field="given")

    @property
    def description(self) -> str:
        order = "shuffled" if self.shuffle else "in their order"
        tenants = f"; {self.tenants.description}" if self.tenants else ""
        return f"{len(self.given):,} given requests, {order}{tenants}"

    def items(self, random: Random) -> Iterator[Item]:
        order, tenants = fork(random), fork(random)
        names = _names(self.tenants, tenants)
        while True:
            for item in shuffled(order, self.given) if self.shuffle else self.given:
                name = next(names)
                yield item if item.tenant or not name else replace(item, tenant=name)


def short_and_long(long_share: float = 0.08) -> tuple[Share, Share]:
    """Chat with some long documents among it: the mix that makes a prefill get in a decode's way."""
    check_number("long_share", long_share, 0.001, 0.999)
    short = Independent(Uniform(40, 160), Uniform(32, 96))
    long = Independent(Uniform(1500, 4000), Uniform(64, 256))
    return Share("short", 1 - long_share, short), Share("long", long_share, long)


def parse_shares(texts: Iterable[str]) -> tuple[Share, ...]:
    """Shares from their short form; see the top of this file.

    Raises:
        WorkloadError: a part is missing or wrong; the message says in which share.
    """
    shares = tuple(parse_share(text) for text in texts)
    _check_unique("kind", [share.kind for share in shares])
    return shares


def parse_share(text: str) -> Share:
    """One share: NAME=WEIGHT/INPUT/OUTPUT."""
    head, *lengths = text.strip().split("/")
    kind, equals, weight = head.partition("=")
    if not equals or len(lengths) != 2:
        raise WorkloadError(
            f"a share is NAME=WEIGHT/INPUT/OUTPUT, e.g. short=92%/40:160/32:96, not {shown(text)}", field="share"
        )
    _check_name("kind", kind.strip())
    input_len, output_len = (
        parse_lengths(part, f"{side} of share {kind!r}")
        for part, side in zip(lengths, ("input", "output"), strict=True)
    )
    return Share(
        kind.strip(),
        _weight(weight.strip().removesuffix("%"), f"weight of {kind!r}"),
        Independent(input_len, output_len),
    )


def parse_tenants(text: str) -> Tenants:
    """`3` (equal ones, named tenant-1 and so on), `a,b` (equal) or `a=3,b=1`.

    Raises:
        WorkloadError: a weight or a name is wrong, or a name comes twice.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        count = check_whole("number of tenants", int(text), 1, MAX_TENANTS)
        return Tenants(tuple((f"tenant-{place}", 1.0) for place in range(1, count + 1)))
    weights = []
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        weights.append((name, _weight(weight, f"weight of tenant {name!r}") if equals else 1.0))
    return Tenants(tuple(weights))


def _names(tenants: Tenants | None, random: Random) -> Iterator[str]:
    if tenants is not None:
        yield from tenants.names(random)
    while True:
        yield ""


def _weight(text: str, field: str) -> float:
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]*)?|\.[0-9]+", text.strip()):
        raise WorkloadError(f"{field} must be a number above 0, not {shown(text)}", field=field)
    return float(text)


def _check_weight(field: str, weight: float) -> None:
    check_number(field, weight, 1e-9, 1e9)


def _check_name(field: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise WorkloadError(
            f"{field} {shown(name)} must be 1 to 64 letters, digits and any of _ . + - : it becomes a label in reports",
            field=field,
        )


def _check_unique(field: str, names: list[str]) -> None:
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if twice:
        raise WorkloadError(f"{field} {min(twice)!r} comes twice; give each its own name", field=field)
