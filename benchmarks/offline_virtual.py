"""Offline batches on virtual time: what grouping gains and could gain at most, and what chat leaves to a batch."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import offline_job as work
from headway.core.batch.lookahead import Lookahead, Order, Place
from headway.core.front.front import FrontLimits
from headway.core.front.spare import BATCH_PRIORITY
from headway.core.request import BATCH, NO_SLO, Request, Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.engine.assembly import lanes
from headway.engine.config import EngineConfig
from headway.executors.simulated import StepCost
from headway.offline.items import Item, sketch
from headway.simulate import Record, VirtualRequest, VirtualSettings, VirtualWorker
from headway.simulate.drive import Pulling

S = 1_000_000_000
BLOCK_TOKENS = 32
LOOKAHEAD = 4096
ROOMY_BLOCKS = 2912  # 2 GiB of KV in bf16
COST = StepCost()

# (system prompts, blocks of KV): room for all, just enough for the slots, and too little for many prompts.
GROUPINGS = [
    *((4, blocks) for blocks in (ROOMY_BLOCKS, 300, 100, 64)),
    *((systems, blocks) for systems in (64, 1000) for blocks in (ROOMY_BLOCKS, 300)),
]


class Beside(Pulling):
    """An engine's own front, where what runs in the background is in the lane `batch`, as work from its store is."""

    def admit(self, asked: VirtualRequest, request: Request, record: Record) -> None:
        if asked.background:
            request.pool, request.priority, request.slo = BATCH, BATCH_PRIORITY, NO_SLO
        super().admit(asked, request, record)


def _in_order(job: work.Job, order: Order) -> Iterator[int]:
    """The items as a batch would begin them."""
    window = Lookahead(order, LOOKAHEAD)
    unread = deque(enumerate(map(json.loads, work.lines(job))))
    while unread or len(window):
        while unread and not window.full:
            number, line = unread.popleft()
            item = Item(number, line["custom_id"], line["url"], json.dumps(line["body"]).encode(), 0, 0)
            window.add(Place(number, sketch(item).group, len(job.prompts[number]), job.outputs[number]))
        place = window.take()
        assert place is not None
        yield place.number


def _run(job: work.Job, order: Order, blocks: int) -> float:
    """Seconds of a batch that keeps a quarter more in flight than there are slots, as `headway batch` does."""
    numbers = _in_order(job, order)

    def following(now: int) -> VirtualRequest | None:
        number = next(numbers, None)
        if number is None:
            return None
        output = job.outputs[number]
        return VirtualRequest(f"item-{number}", now, job.prompts[number], output, output)

    limits = SchedulerLimits(work.MAX_NUM_SEQS, work.MAX_NUM_BATCHED_TOKENS)
    worker = VirtualWorker(limits=limits, num_blocks=blocks, block_size=BLOCK_TOKENS, cost=COST)
    first = [following(0) for _ in range(work.MAX_NUM_SEQS + work.MAX_NUM_SEQS // 4)]
    body = Pulling([one for one in first if one], VirtualSettings(workers=(worker,), front=FrontLimits(age_bound_ns=0)))
    body.follow = lambda _, now: following(now + 1)
    run = body.run()
    assert sum(record.finished for record in run.records) == len(job.prompts)
    return run.ended_ns / S


def least_s(job: work.Job) -> float:
    """No order is faster: every beginning is computed once, every token costs what it costs, and all slots are taken
    in every step.
    """
    seen: set[tuple[int, ...]] = set()
    total_ns = COST.step_ns * -(-sum(job.outputs) // work.MAX_NUM_SEQS)
    for prompt, output in zip(job.prompts, job.outputs, strict=True):
        shared = 0
        for end in range(BLOCK_TOKENS, len(prompt), BLOCK_TOKENS):
            start = tuple(prompt[:end])
            if start not in seen:
                seen.add(start)
                break
            shared = end
        seen.update(tuple(prompt[:end]) for end in range(shared + BLOCK_TOKENS, len(prompt), BLOCK_TOKENS))
        computed, decoded = len(prompt) - shared, output - 1
        total_ns += COST.prefill_token_ns * computed + COST.decode_sequence_ns * decoded
        total_ns += int(COST.prefill_attention_ns * computed * (shared + computed / 2))
        total_ns += COST.context_token_ns * decoded * (len(prompt) + output // 2)
    return total_ns / S


def grouping(items: int) -> list[dict[str, float]]:
    """Grouped against the order of the input, the prefix cache on in both."""
    rows = []
    print(f"{'system prompts':>14} {'KV blocks':>9} {'grouped':>8} {'input':>8} {'gain':>7} {'at most':>8}")
    for systems, blocks in GROUPINGS:
        job = work.make_job(items, systems=systems)
        grouped_s, input_s = (_run(job, order, blocks) for order in ("grouped", "input"))
        gain, most = input_s / grouped_s, input_s / least_s(job)
        rate = job.tokens / grouped_s
        print(f"{systems:>14} {blocks:>9} {rate:>8.0f} {job.tokens / input_s:>8.0f} {gain:>6.3f}x {most:>7.3f}x")
        rows.append({"systems": systems, "blocks": blocks, "tok_s": rate, "gain": gain, "most": most})
    return rows


@dataclass(frozen=True)
class Left:
    """What the simulator says: batch tokens a second, and the share of chats that kept both promises."""

    batch_tok_s: float
    good_ratio: float


def left_beside(chats: Sequence[VirtualRequest], job: work.Job, duration_s: float, cost: StepCost) -> Left:
    """Chats, as `headway serve` would take them, and a batch in its store, until `duration_s` is over."""
    config = EngineConfig()
    slots, numbers = config.max_num_seqs, iter(range(len(job.prompts)))

    def following(now: int) -> VirtualRequest | None:
        number = next(numbers, None) if now < duration_s * S else None
        if number is None:
            return None
        output = job.outputs[number]
        return VirtualRequest(f"item-{number}", now, job.prompts[number], output, output, background=True)

    limits = SchedulerLimits(slots, config.max_num_batched_tokens)
    settings = VirtualSettings(
        workers=(VirtualWorker(limits=limits, num_blocks=ROOMY_BLOCKS, block_size=BLOCK_TOKENS, cost=cost),),
        front=FrontLimits(age_bound_ns=int(config.age_bound * S), lanes=lanes(config, slots)),
        log_tokens=True,
    )
    first = [following(0) for _ in range(slots // 2)]
    body = Beside([*chats, *(one for one in first if one)], settings)
    body.follow = lambda record, now: following(now + 1) if record.lane == BATCH else None
    run = body.run()
    items = [record for record in run.records if record.lane == BATCH and record.ended_ns <= duration_s * S]
    assert len(items) < len(job.prompts), "the batch ended before the chats did: more items"
    found = {record.id: record for record in run.records}
    good = [_kept(found[chat.id], chat.slo) for chat in chats]
    tokens = sum(record.prompt_tokens + record.output_tokens for record in items)
    return Left(tokens / duration_s, sum(good) / max(1, len(good)))


def _kept(record: Record, slo: Slo) -> bool:
    assert record.token_ns is not None
    assert record.ttft_ns is not None
    gaps = np.diff(np.array(record.token_ns, np.float64))
    return record.ttft_ns <= (slo.ttft_ns or 0) and bool(np.percentile(gaps, 99) <= (slo.itl_ns or 0))
