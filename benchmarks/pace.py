"""What a long prompt does to those who stream: 8 streams decode while a 2,000-token prompt enters, over HTTP.

Paced (`--slo-itl 0.15`): the p99 of the token gaps should stay inside the target, and the prompt's first token should
come not much later than the best that the step-time model, fitted to the run's own step log, says is possible: every
chunk as large as fits a step of exactly the target. Beside it the same with pacing off, at 256 and 2,048 tokens a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import client, servers, steplog
from benchmarks.client import Planned, Sample, percentile

STREAMS = 8
STREAM_WORDS = 60
PROMPT_TOKENS = 2_000
ENTERS_S = 1.0  # after the last of the streams has begun
WAIT_S = 120.0
TARGET_TTFT_RATIO = 1.3
SIDES: dict[str, tuple[str, ...]] = {
    "paced": (),
    "no-pace-256": ("--no-pace", "--max-num-batched-tokens", "256"),
    "no-pace-2048": ("--no-pace", "--max-num-batched-tokens", "2048"),
}


@dataclass(frozen=True)
class Entry:
    """One entry of a long prompt. Gaps are those that ended while it was being fed, of all streams together."""

    side: str
    round: int
    prompt_tokens: int
    gap_p50_s: float
    gap_p99_s: float
    gap_max_s: float
    ttft_s: float
    best_ttft_s: float
    steps: int  # that carried the prompt

    @property
    def ttft_ratio(self) -> float:
        return self.ttft_s / self.best_ttft_s


def best_ttft_s(model: steplog.StepTimes, tokens: int, context_tokens: int, target_s: float) -> float:
    """Seconds of feeding `tokens` beside the streams, whose context grows, no step longer than the target."""
    fed, total_s = 0, 0.0
    while fed < tokens:
        decode_s = model.decode_s(STREAMS, context_tokens)
        chunk = min(tokens - fed, model.chunk_within(fed, target_s - decode_s))
        if chunk <= 0:
            return float("inf")
        total_s += decode_s + model.chunk_s(fed, chunk)
        fed += chunk
        context_tokens += STREAMS
    return total_s


async def sized_prompt(url: str, draw: random.Random, tokens: int) -> str:
    """Words that come to about so many tokens in the model's own counting."""
    words = client.text(draw, tokens).split()
    async with client.new_session() as session:
        low, high = 1, len(words)
        while low < high:
            middle = (low + high + 1) // 2
            async with session.post(f"{url}/tokenize", json={"prompt": " ".join(words[:middle])}) as response:
                response.raise_for_status()
                count = (await response.json())["count"]
            low, high = (middle, high) if count <= tokens else (low, middle - 1)
    return " ".join(words[:low])


async def enter(url: str, prompt: str, draw: random.Random, itl_s: float) -> tuple[list[Sample], Sample]:
    """The streams, which are cut when the prompt is through, and the prompt, which comes when all of them stream."""
    zero = time.perf_counter()
    texts = [client.text(draw, STREAM_WORDS) for _ in range(STREAMS)]
    streams = [Sample(Planned(0.0, text, 3_000, WAIT_S, itl_s)) for text in texts]
    async with client.new_session() as session, asyncio.timeout(WAIT_S):
        tasks = [asyncio.create_task(client.stream(session, url, servers.NAME, one, zero)) for one in streams]
        try:
            while any(one.first_s is None for one in streams):
                if broken := [one.error for one in streams if one.error]:
                    raise SystemExit(f"a stream failed: {broken[0]}")
                await asyncio.sleep(0.01)
            await asyncio.sleep(ENTERS_S)
            long = Sample(Planned(time.perf_counter() - zero, prompt, 1, WAIT_S, itl_s, "long"))
            await client.stream(session, url, servers.NAME, long, zero)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    if broken := [one.error for one in (*streams, long) if one.error]:
        raise SystemExit(f"a request failed: {broken[0]}")
    return streams, long


def entered(
    streams: Sequence[Sample],
    long: Sample,
    steps: Sequence[dict[str, Any]],
    model: steplog.StepTimes,
    *,
    side: str,
    number: int,
    itl_s: float,
) -> Entry:
    """What one entry comes to; `steps` are the log's lines of its time."""
    assert long.first_s is not None, "a request without an error has a first token"
    assert long.ttft_s is not None
    began_s, first_s = long.planned.at_s, long.first_s
    gaps: list[float] = []
    for stream in streams:
        assert stream.first_s is not None
        at_s = stream.first_s
        for gap_s in stream.gaps_s:
            at_s += gap_s
            if began_s < at_s and at_s - gap_s < first_s:
                gaps.append(gap_s)
    # The prompt's steps are the last ones with prefill: nothing else is fed by then.
    carried = [step for step in steps if step["prefill_tokens"]]
    fed, prompt_steps = 0, []
    for step in reversed(carried):
        if step["decode_tokens"] < STREAMS:
            break
        prompt_steps.append(step)
        fed += step["prefill_tokens"]
    context = prompt_steps[-1]["context_tokens"] if prompt_steps else 0
    return Entry(
        side=side,
        round=number,
        prompt_tokens=fed,
        gap_p50_s=percentile(gaps, 0.5),
        gap_p99_s=percentile(gaps, 0.99),
        gap_max_s=max(gaps),
        ttft_s=long.ttft_s,
        best_ttft_s=best_ttft_s(model, fed, context, itl_s),
        steps=len(prompt_steps),
    )


def run_side(
    side: str, rounds: int, given: argparse.Namespace, model: steplog.StepTimes | None
) -> tuple[list[Entry], steplog.StepTimes]:
    """One server, `rounds` entries; each is seen through the lines that it added to the step log.

    Without a `model`, one is fitted to the whole log. The sides without pacing are given that of the paced side: their
    own few steps, of one size, could not tell what a chunk costs.
    """
    entries = []
    itl_s = given.itl_ms / 1e3
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        flags = ("--slo-itl", f"{itl_s:g}", "--step-log", str(log), *SIDES[side], *given.headway_flags.split())
        with servers.headway(given.model, "--kv-cache-gib", "1", *flags) as server:
            runs = []
            for number in range(rounds + 1):
                draw = random.Random(1_000 * given.seed + number)
                prompt = asyncio.run(sized_prompt(server.url, draw, PROMPT_TOKENS))
                began_ns = time.monotonic_ns()
                streams, long = asyncio.run(enter(server.url, prompt, draw, itl_s))
                runs.append((began_ns, time.monotonic_ns(), streams, long))
        steps = steplog.read(log)
        model = model or steplog.fit(steps)
        # The first entry warms up. The log's clock is this machine's monotonic one.
        for number, (began_ns, ended_ns, streams, long) in enumerate(runs[1:], 1):
            own = [step for step in steps if began_ns <= step["planned_ns"] <= ended_ns]
            entry = entered(streams, long, own, model, side=side, number=number, itl_s=itl_s)
            print(line(entry), file=sys.stderr, flush=True)
            entries.append(entry)
    return entries, model


def line(entry: Entry) -> str:
    return (
        f"round {entry.round} {entry.side}: gap p99 {entry.gap_p99_s * 1e3:.0f} ms, TTFT {entry.ttft_s:.2f} s of best "
        f"{entry.best_ttft_s:.2f} s in {entry.steps} steps"
    )


def summary(entries: Sequence[Entry], itl_s: float) -> str:
    headings = (
        "side",
        "runs",
        "gap p50",
        "gap p99",
        "min",
        "max",
        "/ target",
        "TTFT s",
        "best s",
        "/ best",
        "min",
        "max",
    )
    lines = ["".join(f"{heading:<14}" if not place else f"{heading:>9}" for place, heading in enumerate(headings))]
    median = statistics.median
    for side in dict.fromkeys(entry.side for entry in entries):
        own = [entry for entry in entries if entry.side == side]
        p99_ms = [entry.gap_p99_s * 1e3 for entry in own]
        ratios = [entry.ttft_ratio for entry in own]
        cells = [
            f"{len(own)}",
            f"{median(entry.gap_p50_s * 1e3 for entry in own):.0f}",
            *(f"{value:.0f}" for value in (median(p99_ms), min(p99_ms), max(p99_ms))),
            f"{median(p99_ms) / itl_s / 1e3:.2f}x",
            f"{median(entry.ttft_s for entry in own):.2f}",
            f"{median(entry.best_ttft_s for entry in own):.2f}",
            *(f"{value:.2f}x" for value in (median(ratios), min(ratios), max(ratios))),
        ]
        lines.append(f"{side:<14}" + "".join(f"{cell:>9}" for cell in cells))
    targets = f"gap p99 at most 1.00x of {itl_s * 1e3:g} ms; TTFT at most {TARGET_TTFT_RATIO}x of best"
    return "\n".join([*lines, f"targets, paced: {targets}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default=",".join(SIDES), help="separated by commas (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of the sides (default 3)")
    parser.add_argument("--entries", type=int, default=2, help="entries of a long prompt in each turn (default 2)")
    parser.add_argument("--itl-ms", type=float, default=150.0, help="the promise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default=servers.DEFAULT_MODEL, help="what `headway serve` would take")
    parser.add_argument("--headway-flags", default="", help="more flags for every side, in one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every entry to FILE")
    given = parser.parse_args()

    entries: list[Entry] = []
    for _ in range(given.repeats):
        model = None
        for side in given.sides.split(","):
            more, model = run_side(side, given.entries, given, model)
            entries += more
    print(summary(entries, given.itl_ms / 1e3))
    if given.json:
        rows = [asdict(entry) | {"ttft_ratio": entry.ttft_ratio} for entry in entries]
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
