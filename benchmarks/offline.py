"""Offline batches: tokens a second beside others, what durability costs and grouping gains, chat beside a batch, kills,
and a million lines.

See benchmarks/README.md. Every run is a process of its own; rounds go through all sides one after the other, so that
what a shared machine does to one it does to all; the figure to quote is a ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import offline_job as work
from benchmarks.offline_beside import beside
from benchmarks.offline_virtual import grouping
from benchmarks.servers import gguf_of

HERE = Path(__file__).parent
RUN_TIMEOUT_S = 3600
MILLION = 1_000_000


@dataclass(frozen=True)
class Side:
    name: str
    python: str
    script: str
    flags: tuple[str, ...]

    def run(self) -> dict[str, float]:
        """Figures of one run. Raises SystemExit with the side's last words when it fails."""
        command = [self.python, str(HERE / "sides" / self.script), *self.flags]
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise SystemExit(
                f"{self.name} failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
            )
        # Not simply the last line: a peer may log its shutdown to stdout.
        result: dict[str, float] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
        return result


def _environment() -> dict[str, str]:
    own = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(own)}


def ours(name: str, arguments: argparse.Namespace, *flags: str, **settings: Any) -> Side:
    common = {"model": arguments.model, "kv_cache_gib": arguments.kv_cache_gib}
    common |= {"dtype": arguments.dtype, "kv_cache_dtype": arguments.kv_cache_dtype or arguments.dtype}
    common |= {"executor": arguments.executor or "openvino"}
    told = json.dumps({**common, **settings})
    return Side(name, sys.executable, "offline_headway.py", ("--items", _items(arguments), "--settings", told, *flags))


def _items(arguments: argparse.Namespace) -> str:
    return str(max(1, round(work.ITEMS * arguments.scale)))


def sides(arguments: argparse.Namespace) -> list[Side]:
    """Ours in every way, and the peers for which an interpreter was given."""
    known = [
        ours("headway", arguments),
        ours("headway-input-order", arguments, order="input"),
        ours("headway-no-prefix-cache", arguments, order="input", prefix_cache_scope="off"),
        ours("static", arguments, batching="static", prefix_cache_scope="off"),
        ours("static-no-buckets", arguments, batching="static", order="input", prefix_cache_scope="off"),
        ours("static-prefix-cache", arguments, batching="static"),
        ours("headway-no-journal", arguments, "--no-journal"),
    ]
    for name, python in (pair.split("=", 1) for pair in arguments.peer_python):
        if name != "openvino-genai":
            raise SystemExit(f"no side is written for the peer {name!r}; there is openvino-genai")
        flags = ("--gguf", str(gguf_of(arguments.model)), "--items", _items(arguments))
        kv_dtype = arguments.kv_cache_dtype or arguments.dtype
        kv = ("--kv-cache-gib", str(arguments.kv_cache_gib), "--dtype", arguments.dtype, "--kv-cache-dtype", kv_dtype)
        known.append(Side(name, python, "offline_openvino_genai.py", (*flags, *kv)))
    chosen = arguments.side or [side.name for side in known]
    unknown = set(chosen) - {side.name for side in known}
    if unknown:
        raise SystemExit(f"no side {', '.join(sorted(unknown))}; with these flags there are {[s.name for s in known]}")
    return [side for side in known if side.name in chosen]


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    taking_turns = sides(arguments)
    runs: dict[str, list[dict[str, float]]] = {side.name: [] for side in taking_turns}
    for number in range(arguments.rounds):
        for side in taking_turns:
            result = side.run()
            runs[side.name].append(result)
            print(f"round {number + 1}: {side.name} {json.dumps(result)}", file=sys.stderr, flush=True)
    medians = {name: statistics.median(run["total_tok_s"] for run in done) for name, done in runs.items()}
    base = "headway" if "headway" in medians else next(iter(medians))
    print(f"{'side':<24} {'total tok/s':>11} {'min':>7} {'max':>7} {base + ' is':>13} {'padding':>8}")
    for name, done in runs.items():
        totals = [run["total_tok_s"] for run in done]
        padding = f"{done[0]['padding_ratio']:>8.1%}" if "padding_ratio" in done[0] else ""
        times = f"{medians[base] / medians[name]:>12.3f}x"
        print(f"{name:<24} {medians[name]:>11.0f} {min(totals):>7.0f} {max(totals):>7.0f} {times} {padding}")
    return {"runs": runs, "medians": medians}


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def kill(arguments: argparse.Namespace) -> dict[str, Any]:
    """Kill one job again and again at random moments, and compare its end with an undisturbed run."""
    executor = arguments.executor or "simulated"
    job = work.make_job(int(_items(arguments)), ids=work.ids_of(executor))
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source, output, once = (Path(folder) / name for name in ("in.jsonl", "out.jsonl", "once.jsonl"))
        work.write(job, source)
        engine = (
            "--model",
            arguments.model,
            "--max-num-seqs",
            str(work.MAX_NUM_SEQS),
            "--executor",
            executor,
        )
        began = time.monotonic()
        _batch("run", source, "-o", once, *engine).wait()
        print(f"undisturbed: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        killed = 0
        while killed < arguments.kills:
            before = _whole_lines(output)
            share = (len(job.prompts) - before) / (arguments.kills - killed + 1)
            enough = before + chance.randrange(1, max(2, round(2 * share)))
            begun = output.with_name("out.job.json").exists()
            child = _batch(*(("resume", output) if begun else ("run", source, "-o", output, *engine)))
            while _whole_lines(output) < enough and child.poll() is None:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.2))
            if child.poll() is not None:
                raise SystemExit(f"it ended after {killed} kills, before the next: take a larger --scale")
            child.kill()
            child.wait()
            killed += 1
            print(f"kill {killed}: {_whole_lines(output)} answers", file=sys.stderr, flush=True)
        if (status := _batch("resume", output).wait()) != 0:
            raise SystemExit(f"the last run ended with status {status}")
        same = _answers(output) == _answers(once)
        ids = Counter(json.loads(line)["custom_id"] for line in output.open())
    result = {"kills": killed, "items": len(ids), "doubled": sum(n > 1 for n in ids.values()),
              "missing": len(job.prompts) - len(ids), "answers_same": same}  # fmt: skip
    print(f"{killed} kills: {result['missing']} missing, {result['doubled']} doubled, answers the same: {same}")
    return result


def _batch(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headway", "batch", *map(str, arguments), "--quiet"]
    return subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL)


def _whole_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _answers(path: Path) -> dict[str, str]:
    lines = (json.loads(line) for line in path.open())
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}


# -- a million lines ---------------------------------------------------------------------------------------------------


def million(arguments: argparse.Namespace) -> dict[str, Any]:
    """A million short items, answered at once by a worker that computes nothing: what the rest costs."""
    count = max(1, round(MILLION * arguments.scale))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source = Path(folder) / "in.jsonl"
        with source.open("w") as file:
            for number in range(count):
                body = {"prompt": f"Say something about the number {number}, and be brief. " * 4, "max_tokens": 50}
                line = {"custom_id": f"item-{number:07}", "method": "POST", "url": "/v1/completions", "body": body}
                file.write(json.dumps(line) + "\n")
        flags = ("--input", str(source), "--instant", "--folder", folder)
        result = Side("million", sys.executable, "offline_headway.py", flags).run()
    print(
        f"{count:,} lines: first item after {result['first_start_s']:.2f} s, peak {result['peak_bytes'] / 1e6:.0f} MB, "
        f"{result['done'] / result['wall_s']:,.0f} items/s"
    )
    return result


MODES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "throughput": throughput,
    "grouping": lambda arguments: grouping(int(_items(arguments))),
    "beside": beside,
    "kill": kill,
    "million": million,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", default="throughput", choices=sorted(MODES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the 2,000 items, or of the million lines")
    parser.add_argument("--rounds", type=int, default=3, help="how often the sides take turns (default 3)")
    parser.add_argument("--side", action="append", help="run only this side; may be repeated")
    parser.add_argument("--model", default="smollm2-135m", help="what `headway serve` would take")
    parser.add_argument("--kv-cache-gib", type=float, default=2.0, help="for every side (default 2)")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f32"), help="f32 where the CPU has no bf16")
    parser.add_argument("--kv-cache-dtype", choices=("bf16", "u8", "f32"), help="for every side (default: as --dtype)")
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH", help="a peer's interpreter")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--executor",
        choices=("simulated", "openvino"),
        help="of ours (default: openvino; for `kill` and `beside` simulated)",
    )
    parser.add_argument("--duration", type=float, default=240.0, help="of `beside`, in seconds (default 240)")
    parser.add_argument("--itl", type=float, default=0.06, help="promised to the chats of `beside`, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of `kill`, and of the chats")
    parser.add_argument("--folder", type=Path, help="where files are written; must be on a disk to tell of durability")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    arguments = parser.parse_args()
    result = MODES[arguments.mode](arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
