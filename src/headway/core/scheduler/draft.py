"""`Draft`: a step while it is being filled: its rows so far, and what it may still take in tokens and in time."""

from __future__ import annotations

import math
from collections.abc import Sequence as ReadOnlySequence

from headway.core.pace import Shape, chunk_attention
from headway.core.request import State
from headway.core.scheduler.kv import Scope
from headway.core.scheduler.sequence import Sequence
from headway.core.scheduler.step import Begin, Row, Step


class Draft:
    """Budgets are what is left, not what there was."""

    __slots__ = (
        "attention_tokens",
        "budget_tokens",
        "context_tokens",
        "decode_tokens",
        "itl_ns",
        "now",
        "owed_tokens",
        "preempted",
        "prefill_tokens",
        "promised_blocks",
        "refused",
        "repeat",
        "repeatable",
        "rows",
        "time_ns",
    )

    def __init__(self, now: int, budget_tokens: int) -> None:
        self.now = now
        self.budget_tokens = budget_tokens
        self.time_ns = math.inf  # for prefill, so that those who stream keep their ITL
        self.itl_ns = 0  # the tightest promise among the decode rows; 0: none
        self.owed_tokens = 0  # that prefill gets whatever the time says
        self.promised_blocks = 0  # that prompts already begun will still need
        self.preempted = False
        self.refused: list[tuple[ReadOnlySequence[int], Scope]] = []  # prompts that there was no KV for
        self.repeat = 1
        self.repeatable = True  # nobody who could not start in it could in the next, by eviction alone
        self.rows: list[Row] = []
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.context_tokens = 0
        self.attention_tokens = 0

    @property
    def open(self) -> bool:
        """May another prompt token come in?"""
        return self.budget_tokens > 0 and (self.time_ns > 0 or self.owed_tokens > 0)

    @property
    def shape(self) -> Shape:
        return Shape(self.prefill_tokens, self.decode_tokens, self.context_tokens, self.attention_tokens)

    def add(self, seq: Sequence, tokens: int, *, samples: bool) -> None:
        """Feed the next `tokens` of `seq`, whose blocks already hold them."""
        request = seq.request
        begin = None
        if not seq.known:
            begin = Begin(request.params, request.prompt, request.max_tokens)
            seq.known = True
        start = seq.computed
        self.rows.append(Row(seq.handle, start, seq.tokens[start : start + tokens], seq.table.blocks, samples, begin))
        seq.in_flight = True
        self.budget_tokens -= tokens
        if request.state is State.DECODE:
            self.decode_tokens += tokens
            self.context_tokens += start
            itl_ns = request.slo.itl_ns
            if itl_ns and (not self.itl_ns or itl_ns < self.itl_ns):
                self.itl_ns = itl_ns
        else:
            self.prefill_tokens += tokens
            self.attention_tokens += chunk_attention(start, tokens)
            self.owed_tokens -= min(self.owed_tokens, tokens)

    def add_decode(self, seq: Sequence) -> None:
        """Feed the one token that a decoding `seq` has not fed: `add`, for the many."""
        start = seq.computed
        self.rows.append(Row(seq.handle, start, seq.unfed, seq.table.blocks, True))
        seq.in_flight = True
        self.budget_tokens -= 1
        self.decode_tokens += 1
        self.context_tokens += start
        itl_ns = seq.request.slo.itl_ns
        if itl_ns and (not self.itl_ns or itl_ns < self.itl_ns):
            self.itl_ns = itl_ns

    def step(self, number: int, dropped: list[int]) -> Step:
        return Step(number, self.rows, *self.shape, dropped=dropped, planned_ns=self.now, repeat=self.repeat)
