"""Servers whose truth is known: simulated, written down as a real one would, and handed to the fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from headway.executors.simulated import StepCost
from headway.simulate.fit import Demand, Served, Server, serve

TRUTH = StepCost(18_000_000, 80_000, 90_000, 160, 5, 12_000_000)
SERVER = Server(
    max_num_seqs=24, max_num_batched_tokens=512, num_blocks=1_200, plans_ahead=True, whole_prompt_kv=True
)  # fmt: skip


def demand(count: int = 120, rate: float = 16.0, seed: int = 0) -> Demand:
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1e9 / rate, count)).astype(np.int64)
    prompts = np.minimum(1_500, 20 + draw.lognormal(5.2, 0.9, count)).astype(np.int64)
    outputs = draw.integers(20, 120, count)
    return Demand(arrivals - arrivals[0], prompts, outputs.astype(np.int64))


def served(asked: Demand, server: Server = SERVER, truth: StepCost = TRUTH) -> Served:
    return serve(asked, server, truth)


def write_requests(path: Path, run: Served, *, arrivals: bool = True) -> None:
    """As a server with event stamps would: wall-clock arrivals, monotonic stamps."""
    lines = []
    for number in range(len(run.demand)):
        line = {
            "request_id": f"r{number}",
            "input_toks": int(run.demand.prompt_tokens[number]),
            "output_toks": int(run.demand.output_tokens[number]),
            "queued_ts": 500.0 + run.queued_ns[number] / 1e9,
            "scheduled_ts": 500.0 + run.scheduled_ns[number] / 1e9,
            "first_token_ts": 500.0 + run.first_ns[number] / 1e9,
            "last_token_ts": 500.0 + run.last_ns[number] / 1e9,
        }
        if arrivals:
            line["arrival_time"] = 1_700_000_000.0 + run.demand.arrival_ns[number] / 1e9
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")


def write_series(path: Path, run: Served, server: Server = SERVER, every_s: float = 0.5) -> None:
    """Running, waiting and KV use, at a steady beat."""
    rows = ["t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct"]
    for at_s in np.arange(every_s, run.last_ns.max() / 1e9, every_s):
        at = at_s * 1e9
        running = (run.scheduled_ns <= at) & (run.last_ns > at)
        waiting = (run.queued_ns <= at) & (run.scheduled_ns > at)
        progress = np.clip((at - run.first_ns) / np.maximum(1, run.last_ns - run.first_ns), 0, 1)
        tokens = (run.demand.prompt_tokens + progress * run.demand.output_tokens)[running]
        blocks = np.ceil(tokens / server.block_size).sum()
        full = 100 * blocks / server.num_blocks if server.num_blocks else 0.0
        rows.append(f"{at_s},0,0,{int(running.sum())},{int(waiting.sum())},{full:.2f}")
    path.write_text("\n".join(rows) + "\n")


def write_step_log(path: Path, count: int = 600, truth: StepCost = TRUTH, noise: float = 0.02, seed: int = 0) -> None:
    """Steps of every kind, each a little longer or shorter than the truth, with a hiccup now and then."""
    draw = np.random.default_rng(seed)
    header = {
        "kind": "header",
        "log": "step",
        "version": 1,
        "model": "m",
        "config": {"policy": "headway", "max_num_seqs": 48, "max_num_batched_tokens": 640, "device": "CPU"},
        "executor": {"num_blocks": 900, "block_size": 32, "chunk_multiple_tokens": 1},
    }
    lines, now = [json.dumps(header)], 1_000_000
    for number in range(count):
        prefill = int(draw.integers(16, 512)) if draw.random() < 0.3 else 0
        decode = int(draw.integers(0 if prefill else 1, 48))
        context = decode * int(draw.integers(50, 1_000))
        attention = prefill * int(draw.integers(0, 1_000)) + prefill * prefill // 2
        cost = (
            truth.step_ns + truth.prefill_token_ns * prefill + truth.decode_sequence_ns * decode
            + truth.context_token_ns * context + truth.prefill_attention_ns * attention
            + (truth.prefill_step_ns if prefill else 0)
        )  # fmt: skip
        took = int(cost * (1 + noise * draw.standard_normal()) * (8 if draw.random() < 0.02 else 1))
        line = {
            "kind": "step", "step": number, "planned_ns": now, "committed_ns": now + took, "real_s": took / 1e9,
            "prefill_tokens": prefill, "decode_tokens": decode, "pad_tokens": 0, "context_tokens": context,
            "attention_tokens": attention, "running": decode, "waiting": 0,
        }  # fmt: skip
        lines.append(json.dumps(line))
        now += took
    path.write_text("\n".join(lines) + "\n")
