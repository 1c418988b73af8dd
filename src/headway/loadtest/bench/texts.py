"""What is asked: items by the options, and the text that each is sent with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Literal

from headway.loadtest.bench.options import TextOptions
from headway.loadtest.bench.rulers import Local
from headway.loadtest.client.address import Endpoint
from headway.loadtest.client.request import PromptContent
from headway.loadtest.errors import InvalidPlan
from headway.workload.datasets import Dataset, read_conversations, read_prompts
from headway.workload.draws import stream
from headway.workload.errors import WorkloadError
from headway.workload.item import Item
from headway.workload.lengths import Independent, parse_lengths
from headway.workload.mix import Given, ItemSource, Mix, Share, SharedPrefix, parse_tenants
from headway.workload.prompts import AsGiven, PromptSource, Synthetic
from headway.workload.schedule import items
from headway.workload.tokens import Counted, Measure

CONVERSATIONS = 5000  # that are read of a file, unless more requests are asked for
LOOKED_AT = 1000  # items whose lengths are compared with the server's context


def _none_off() -> dict[int, int]:
    return {}


@dataclass(frozen=True)
class Texts:
    """Call it with an item and its index: the prompt that is sent. Made anew in every process."""

    measure: Measure
    seed: int
    text: Literal["words", "sample", "given"]
    endpoint: Endpoint
    unique_prefix: bool = False
    _source: Local = field(default_factory=Local, repr=False, compare=False)
    _off_by: Local = field(default_factory=Local, repr=False, compare=False)

    @property
    def off_by(self) -> Mapping[int, int]:
        """Of prompts made here whose length could not be made: index -> tokens too many or too few."""
        return self._off_by.get(_none_off)

    def __call__(self, item: Item, index: int) -> PromptContent:
        prompt = self._source.get(self._make).make(item, index)
        if prompt.off_by:
            self._off_by.get(_none_off)[index] = prompt.off_by
        if self.endpoint == "chat":
            return prompt.messages
        if prompt.text is None:
            raise WorkloadError(f"request {index} holds more than text: use the endpoint chat", field="messages")
        return prompt.text

    @property
    def description(self) -> str:
        """One line for people. Does not ask a tokenizer, as the prompts themselves do."""
        if self.text == "given":
            return "given prompts"
        what = "random words" if self.text == "words" else "slices of the sample text"
        lengths = "exact lengths" if isinstance(self.measure, Counted) else "lengths estimated by words"
        return f"{what}, {lengths}{', unique first words' if self.unique_prefix else ''}"

    def _make(self) -> PromptSource:
        if self.text == "given":
            return AsGiven()
        return Synthetic(self.measure, seed=self.seed, text=self.text, unique_prefix=self.unique_prefix)


@dataclass(frozen=True, slots=True)
class Asked:
    """`description` says of given prompts what was left out of their file."""

    source: ItemSource
    description: str
    tenants: frozenset[str]  # that requests may be of; "" is nobody


def kind_of(prompts: str) -> Literal["words", "sample", "given"]:
    """What the setting `prompts` means."""
    form, colon, path = prompts.partition(":")
    if form in {"words", "sample"} and not colon:
        return "words" if form == "words" else "sample"
    if form in {"sharegpt", "jsonl"} and path:
        return "given"
    raise InvalidPlan(f"--prompts must be words, sample, sharegpt:FILE or jsonl:FILE, not {prompts!r}.")


def asked(options: TextOptions, measure: Measure, shares: tuple[Share, ...], requests: int | None) -> Asked:
    """Items by the options: `shares` by chance, or those of a file. Raises InvalidPlan and WorkloadError."""
    tenants = parse_tenants(options.tenants) if options.tenants else None
    if kind_of(options.prompts) == "given":
        _check_nothing_shared(options)
        found = _read(options, measure, requests)
        return Asked(Given(found.items, tenants=tenants), found.description, tenants_of(found.items, options))
    source = Mix(shares, tenants, _shared_prefix(options))
    whole = _nothing_of_their_own(source)
    return Asked(source, "; ".join(filter(None, (source.description, whole))), tenants_of((), options))


def tenants_of(items: Iterable[Item], options: TextOptions) -> frozenset[str]:
    """Their own, and those that are given to items of nobody."""
    own = frozenset(item.tenant for item in items)
    return own | frozenset(parse_tenants(options.tenants).known if options.tenants else ())


def _shared_prefix(options: TextOptions) -> SharedPrefix | None:
    usual = TextOptions()
    if not options.shared_prefix_tokens:
        for name in ("shared_prefix_groups", "shared_prefix_share"):
            if getattr(options, name) != getattr(usual, name):
                flag = name.replace("_", "-")
                raise InvalidPlan(f"--{flag} says how beginnings are shared: give --shared-prefix-tokens as well.")
        return None
    if options.unique_prefix:
        raise InvalidPlan("--unique-prefix and --shared-prefix-tokens exclude each other.")
    if not options.shared_prefix_share:
        raise InvalidPlan("With --shared-prefix-share 0 nothing is shared: leave --shared-prefix-tokens out.")
    return SharedPrefix(options.shared_prefix_tokens, options.shared_prefix_groups, options.shared_prefix_share)


def _nothing_of_their_own(source: Mix) -> str:
    """How many of the prompts that share a beginning end before it does, in words: they are the same text over again.

    Raises InvalidPlan when all of them do.
    """
    if source.prefix is None:
        return ""
    first = islice(source.items(stream(0, "items")), LOOKED_AT)
    sharing = [item.input_tokens for item in first if item.prefix_blocks]
    whole = sum(tokens <= source.prefix.tokens for tokens in sharing)
    if whole and whole == len(sharing):
        raise InvalidPlan(
            f"--shared-prefix-tokens {source.prefix.tokens:,} leaves no prompt anything of its own: the longest has "
            f"{max(sharing):,} tokens, so that all of a group would be the same text. Share fewer tokens, or ask for "
            "longer prompts."
        )
    return f"{whole / len(sharing):.2g} of these end before it does, and are the same text" if whole else ""


def shares_of(options: TextOptions, input_len: str, output_len: str) -> tuple[Share, ...]:
    """One kind of request, of the lengths that were asked for or else of these."""
    inputs = parse_lengths(options.input_len or input_len, "--input-len")
    outputs = parse_lengths(options.output_len or output_len, "--output-len")
    return (Share("", 1.0, Independent(inputs, outputs)),)


def _check_nothing_shared(options: TextOptions) -> None:
    if options.input_len:
        raise InvalidPlan("--input-len means nothing for given prompts: they are as long as they are.")
    if _shared_prefix(options) or options.unique_prefix:
        raise InvalidPlan("Given prompts are sent as they are: no --shared-prefix-tokens and no --unique-prefix.")


def _read(options: TextOptions, measure: Measure, requests: int | None) -> Dataset:
    form, _, path = options.prompts.partition(":")
    output_tokens = _one_length(options.output_len)
    if form == "jsonl":
        return read_prompts(path, measure, output_tokens=output_tokens)
    limit = max(CONVERSATIONS, requests or 0)
    return read_conversations(path, measure, output_tokens=output_tokens, limit=limit)


def _one_length(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise InvalidPlan(f"--output-len of given prompts must be one number, not {text!r}.")
    return int(text)


def source_items(source: ItemSource, seed: int) -> partial[Iterator[Item]]:
    """Items as a plan wants them: something that each process can call."""
    return partial(items, source, seed)
