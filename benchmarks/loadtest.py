"""The load tester's own errors, against an instant upstream on the same cores, beside AIPerf and `vllm bench serve`.

An instant server has no latency worth speaking of: what a client reports against it is the client's own delay.

- rate: an open loop at 500 and 1,000 req/s, 16-token streams. Delivered rate, schedule lag, reported TTFT, verdict.
- gaps: 64 streams at 20 ms whose chunks carry their send time. Measured minus true gap; CPU per chunk.
- stall: all streams freeze for 2 s, once. p99 TTFT of an open loop, from the schedule, beside a closed loop's.
- memory: 100,000 requests; the most memory that any process of the load tester held.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks import servers
from headway.loadtest.client.address import parse_url
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.result import Load, Slo
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad, Plan
from headway.loadtest.runner.run import Measured, run
from headway.loadtest.summary import client_figures, summarise
from headway.loadtest.table import tabulate
from headway.loadtest.verdict import judge
from headway.workload.item import Arrival, Item

PARTS = ("memory", "rate", "gaps", "stall")
TOKENS = 16
ITEM = Item(input_tokens=16, output_tokens=TOKENS)
# Targets.
MISSED, LAG_P99_S, TTFT_P99_S = 0.01, 0.002, 0.005
GAP_ERROR_P99_S, CHUNK_CPU_S = 0.001, 40e-6
MEMORY_BYTES = 300 * 10**6
STREAMS, GAP_S, STREAM_TOKENS = 64, 0.02, 500
STALL_S, STALL_RATE, STALL_RUN_S = 2.0, 50, 12.0
SIDES = Path(__file__).parent / "sides"
Row = dict[str, Any]


def prompt(_: Item, index: int) -> str:
    return f"Tell me about the number {index}, in some detail, please."


def poisson(rate: float, duration_s: float, seed: int) -> Iterator[Arrival]:
    draw = random.Random(seed)
    at_s = draw.expovariate(rate)
    while at_s < duration_s:
        yield Arrival(int(at_s * 1e9), ITEM)
        at_s += draw.expovariate(rate)


def upstream(*flags: str) -> servers.Server:
    port = servers.free_port()
    return servers.Server([sys.executable, "-m", "benchmarks.upstream", str(port), *flags], port)


def measure(url: str, load: OpenLoad | ClosedLoad, processes: int, **more: Any) -> Measured:
    address, _ = parse_url(url)
    plan = Plan(
        RequestTemplate(address, servers.NAME), load, prompt, processes=processes, scrape_interval_s=None, **more
    )
    return uvloop.run(run(plan))


def percentile(values: Any, share: float) -> float:
    return float(np.percentile(np.asarray(list(values), np.float64), share)) if len(values) else float("nan")


def peak_rss_bytes() -> int:
    """Of this process and of every child that has ended, whichever held most."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


# -- parts -------------------------------------------------------------------------------------------------------------


def rate_row(url: str, rate: float, given: argparse.Namespace) -> Row:
    """Ours, as `headway bench` judges it."""
    arrivals = functools.partial(poisson, rate, given.seconds, given.seed)
    measured = measure(url, OpenLoad(arrivals), given.processes)
    table = tabulate(measured.records)
    load = Load(profile="rate", loop="open", description="", rate=rate, duration_s=given.seconds, seed=given.seed)
    summary = summarise(table, load, Slo())
    client = client_figures(
        table,
        load,
        summary.window_s,
        processes=measured.processes,
        cpu_ratio=measured.cpu_ratio,
        loop_lags_s=measured.loop_lags_s(summary.window_s),
        freezes=measured.freezes,
    )
    times = table.timings
    return {
        "side": f"headway, {measured.processes} process{'es' if measured.processes > 1 else ''}",
        "rate": rate,
        "delivered": client.sent_rate / (client.offered_rate or float("nan")),
        "lag_p99_s": percentile((times.sent_ns - times.scheduled_ns) / 1e9, 99),
        "ttft_p50_s": percentile((times.first_ns - times.scheduled_ns)[times.ok] / 1e9, 50),
        "ttft_p99_s": percentile((times.first_ns - times.scheduled_ns)[times.ok] / 1e9, 99),
        "cpu_ratio": measured.cpu_ratio,
        "says": judge(table, summary, client, load).name,
    }


def aiperf_row(url: str, rate: float, given: argparse.Namespace, folder: Path) -> Row:
    tokenizer = folder / "hf"  # a relative path, without HF_HUB_OFFLINE: else it looks into its cache only
    if not tokenizer.exists():
        tokenizer.symlink_to(given.hf_model.resolve())
    artifacts = folder / f"aiperf-{rate:g}"
    command = [given.aiperf, "profile", "-m", servers.NAME, "--url", url, "--endpoint-type", "chat", "--streaming"]
    command += ["--tokenizer", "hf", "--request-rate", f"{rate:g}", "--arrival-pattern", "poisson"]
    command += ["--request-count", str(round(rate * given.seconds)), "--isl", "16", "--osl", str(TOKENS)]
    command += ["--artifact-dir", str(artifacts), "--random-seed", str(given.seed), "--ui", "none"]
    told = _json_of(command, folder, artifacts, "profile_export_aiperf.json")
    return {
        "side": "AIPerf",
        "rate": rate,
        "delivered": told["request_throughput"]["avg"] / rate,
        "ttft_p50_s": told["time_to_first_token"]["p50"] / 1e3,
        "ttft_p99_s": told["time_to_first_token"]["p99"] / 1e3,
        "says": "nothing",
    }


def vllm_row(url: str, rate: float, given: argparse.Namespace, folder: Path) -> Row:
    command = [given.vllm_python, str(SIDES / "peer_vllm_bench.py"), "--backend", "openai-chat"]
    command += ["--endpoint", "/v1/chat/completions", "--base-url", url, "--model", servers.NAME, "--dataset-name"]
    command += ["random", "--random-input-len", "16", "--random-output-len", str(TOKENS), "--request-rate", f"{rate:g}"]
    command += ["--num-prompts", str(round(rate * given.seconds)), "--tokenizer", str(given.hf_model.resolve())]
    command += ["--percentile-metrics", "ttft", "--metric-percentiles", "50,99", "--seed", str(given.seed)]
    command += [
        "--disable-tqdm",
        "--save-result",
        "--result-dir",
        str(folder),
        "--result-filename",
        f"vllm-{rate:g}.json",
    ]
    told = _json_of(command, folder, folder, f"vllm-{rate:g}.json")
    return {
        "side": "vllm bench serve",
        "rate": rate,
        "delivered": told["request_throughput"] / rate,
        "ttft_p50_s": told["p50_ttft_ms"] / 1e3,
        "ttft_p99_s": told["p99_ttft_ms"] / 1e3,
        "says": "nothing",
    }


def _json_of(command: list[str], folder: Path, results: Path, name: str) -> Any:
    environment = {
        "PATH": f"{Path(command[0]).parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = next(iter(results.rglob(name)), None)
    if found is None:
        raise SystemExit(f"{' '.join(command)}\nleft no {name}:\n{(done.stdout + done.stderr)[-3000:]}")
    return json.loads(found.read_text())


def rates(given: argparse.Namespace) -> list[Row]:
    """All sides at every rate, one after the other in each round."""
    rows = []
    with upstream("--tokens", str(TOKENS)) as server, tempfile.TemporaryDirectory() as name:
        for _, rate in itertools.product(range(given.rounds), given.rates):
            rows.append(rate_row(server.url, rate, given))
            if given.aiperf:
                rows.append(aiperf_row(server.url, rate, given, Path(name)))
            if given.vllm_python:
                rows.append(vllm_row(server.url, rate, given, Path(name)))
    head = f"{'offered':>8} {'side':<22} {'delivered':>9} {'lag p99':>9} {'TTFT p50':>9} {'TTFT p99':>9}  verdict"
    print(f"\nopen loop, {TOKENS}-token streams, {given.seconds:g} s; times in ms, as each tool reports them\n{head}")
    for row in sorted(rows, key=lambda row: (row["rate"], row["side"])):
        lag = f"{row['lag_p99_s'] * 1e3:9.2f}" if "lag_p99_s" in row else f"{'not told':>9}"
        print(
            f"{row['rate']:>8g} {row['side']:<22} {row['delivered']:>9.1%} {lag} "
            f"{row['ttft_p50_s'] * 1e3:>9.2f} {row['ttft_p99_s'] * 1e3:>9.2f}  {row['says']}"
        )
    for row in rows:
        if "lag_p99_s" in row:
            print(
                f"at {row['rate']:g}: missed / target {abs(1 - row['delivered']) / MISSED:.2f}x, lag p99 / target "
                f"{row['lag_p99_s'] / LAG_P99_S:.2f}x, TTFT p99 / target {row['ttft_p99_s'] / TTFT_P99_S:.2f}x, "
                f"{row['cpu_ratio']:.0%} of a core"
            )
    return rows


def gaps(_: argparse.Namespace) -> Row:
    """The stamps are the text of the stream: whoever counts its tokens sees them."""
    texts: list[str] = []

    def keep(text: str) -> int:
        texts.append(text)
        return len(texts) - 1

    with upstream("--stamp", "--tokens", str(STREAM_TOKENS), "--gap", str(GAP_S)) as server:
        cpu_s = time.process_time()
        load = ClosedLoad([ITEM] * STREAMS, STREAMS)
        measured = measure(server.url, load, 0, count_tokens=keep)
        cpu_s = time.process_time() - cpu_s
    errors = []
    for record in measured.records:
        true_ns = np.diff(np.array(texts[record.recounted_tokens].split(), np.int64))
        errors.append(np.abs(np.asarray(record.gaps_ns) - true_ns) / 1e9)
    off_s = np.concatenate(errors)
    chunks = sum(record.chunks for record in measured.records)
    row = {
        "gaps": len(off_s),
        "p50_s": percentile(off_s, 50),
        "p99_s": percentile(off_s, 99),
        "max_s": float(off_s.max()),
    }
    row["chunk_cpu_s"] = cpu_s / chunks
    print(f"\n{STREAMS} streams at {GAP_S * 1e3:g} ms: |measured - true gap| over {len(off_s):,} gaps")
    print(f"p50 {row['p50_s'] * 1e3:.3f} ms, p99 {row['p99_s'] * 1e3:.3f} ms, most {row['max_s'] * 1e3:.2f} ms")
    print(f"p99 / target {row['p99_s'] / GAP_ERROR_P99_S:.2f}x")
    print(
        f"CPU {row['chunk_cpu_s'] * 1e6:.1f} µs a chunk, everything included; / target "
        f"{row['chunk_cpu_s'] / CHUNK_CPU_S:.2f}x"
    )
    return row


def stall(given: argparse.Namespace) -> Row:
    flags = ("--tokens", "4", "--stall", f"4:{STALL_S:g}")
    figures = {}
    arrivals = functools.partial(poisson, STALL_RATE, STALL_RUN_S, given.seed)
    loads: dict[str, OpenLoad | ClosedLoad] = {
        "open": OpenLoad(arrivals),
        "closed": ClosedLoad(itertools.repeat(ITEM), 4, duration_s=STALL_RUN_S),
    }
    for name, load in loads.items():
        with upstream(*flags) as server:
            records = measure(server.url, load, 0).records
        figures[name] = percentile([(one.first_ns - one.scheduled_ns) / 1e9 for one in records], 99)
        told = f"TTFT p99 {figures[name] * 1e3:,.1f} ms of {len(records):,}"
        print(f"\n{name} loop over a stall of {STALL_S:g} s: {told}")
    print(f"open / closed: {figures['open'] / figures['closed']:,.0f}x")
    return figures


def memory(given: argparse.Namespace) -> Row:
    """First of all parts: the most memory ever held counts."""
    with upstream("--tokens", str(TOKENS)) as server:
        before = peak_rss_bytes()
        measured = measure(server.url, ClosedLoad([ITEM] * given.requests, 32), 1)
        peak = peak_rss_bytes()
        assert all(record.ok for record in measured.records), "the upstream failed"
    rate = len(measured.records) / measured.elapsed_s
    print(
        f"\n{len(measured.records):,} requests at {rate:,.0f}/s: {peak / 1e6:.0f} MB at most, {before / 1e6:.0f} before"
    )
    print(f"most / target {MEMORY_BYTES / 1e6:.0f} MB: {peak / MEMORY_BYTES:.2f}x")
    return {"requests": len(measured.records), "peak_bytes": peak, "before_bytes": before, "rate": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default all)")
    parser.add_argument("--rates", type=lambda text: [float(rate) for rate in text.split(",")], default=[500.0, 1000.0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each open loop (default 20)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="client processes (default 1)")
    parser.add_argument("--requests", type=int, default=100_000, help="of the part memory (default 100,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aiperf", metavar="PATH", help="the peer's command, in an environment of its own")
    parser.add_argument("--vllm-python", metavar="PATH", help="Python of an environment with vLLM")
    parser.add_argument(
        "--hf-model", type=Path, default=Path("results/hf-model"), help="folder with a tokenizer, for peers"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if (given.aiperf or given.vllm_python) and not (given.hf_model / "tokenizer.json").exists():
        parser.error(f"the peers need a tokenizer, and {given.hf_model} holds no tokenizer.json")
    run_part = {"memory": memory, "rate": rates, "gaps": gaps, "stall": stall}
    figures = {name: run_part[name](given) for name in PARTS if name in parts}
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
