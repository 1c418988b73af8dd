"""What quiet tenants get from one overloaded vLLM server: asked directly, behind LiteLLM, and behind Headway.

Three quiet tenants ask for a third of what the server can do, between them; a noisy one for 7/6 of it: 1.5 times the
capacity in all. Capacity is measured first, in a closed loop on the server itself, and so is the gap between tokens
there. A request is good if its first token comes within `--slo-ttft` of its scheduled send, and the p99 of its gaps is
at most twice that mean. Sides take turns, with the same arrivals, prompts and lengths each time.

    python -m benchmarks.front_of_vllm --peer-python ~/peers/vllm/bin/python --litellm ~/peers/litellm

With `--upstream simulated` a server of ours with vLLM's way of scheduling stands in for vLLM: quick, and no evidence.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import client, servers
from benchmarks.client import Planned, Sample, percentile
from headway.gateway.tenancy import KeyFile

QUIET = ("ann", "ben", "cleo")
NOISY = "noisy"
QUIET_LOAD, NOISY_LOAD = 1 / 3, 7 / 6  # of the capacity, all quiet ones together
WORDS, OUTPUT_TOKENS = (20, 80), (16, 48)
SLOTS = 16  # that the server is started with: with many more, a CPU gives each next to nothing
SLOWER = 2.0  # than in the closed loop, of the gaps between tokens
TARGETS = {"direct": 2.0, "litellm": 1.5}
TARGET_TOKENS = 0.95


def schedule(capacity: float, duration_s: float, seed: int, ttft_s: float, itl_s: float) -> list[Planned]:
    """Poisson for each tenant. `kind` is the tenant's name."""
    planned: list[Planned] = []
    for number, (tenant, share) in enumerate(
        [*((name, QUIET_LOAD / len(QUIET)) for name in QUIET), (NOISY, NOISY_LOAD)]
    ):
        draw = random.Random(seed * 100 + number)
        at_s = draw.expovariate(capacity * share)
        while at_s < duration_s:
            planned.append(request(draw, at_s, ttft_s, itl_s, tenant))
            at_s += draw.expovariate(capacity * share)
    return sorted(planned, key=lambda one: one.at_s)


def request(draw: random.Random, at_s: float, ttft_s: float, itl_s: float, tenant: str) -> Planned:
    prompt = client.text(draw, draw.randint(*WORDS))
    return Planned(at_s, prompt, draw.randint(*OUTPUT_TOKENS), ttft_s, itl_s, tenant)


@dataclass(frozen=True)
class Capacity:
    req_s: float
    gap_s: float  # mean
    ttft_p50_s: float


async def capacity(url: str, seconds: float) -> Capacity:
    """A closed loop with all slots taken; its first quarter is not counted."""
    draw, zero = random.Random(7), time.perf_counter()
    samples: list[Sample] = []

    async def user() -> None:
        while (at_s := time.perf_counter() - zero) < seconds:
            sample = Sample(request(draw, at_s, 1e3, 1e3, "load"))
            await client.stream(session, url, servers.NAME, sample, zero)
            samples.append(sample)

    async with client.new_session() as session:
        await asyncio.gather(*(user() for _ in range(SLOTS)))
    counted = [one for one in samples if not one.error and seconds / 4 <= one.ended_s < seconds]
    if len(counted) < 10:
        raise SystemExit(f"only {len(counted)} requests ended in {seconds:g} s: {samples[0].error or 'use --seconds'}")
    gaps = [gap for one in counted for gap in one.gaps_s]
    firsts = [one.ttft_s for one in counted if one.ttft_s is not None]
    return Capacity(len(counted) / (seconds * 3 / 4), statistics.mean(gaps), statistics.median(firsts))


@dataclass(frozen=True)
class Window:
    """One side, once. Shares are of what was sent in the window."""

    side: str
    number: int
    quiet_good_s: float
    quiet_good: float
    noisy_good: float
    noisy_refused: float
    quiet_ttft_p50_s: float
    quiet_ttft_p99_s: float
    tokens_s: float  # that came in the window, of everybody

    @classmethod
    def of(cls, side: str, number: int, seconds: float, samples: Sequence[Sample]) -> Window:
        quiet = [one for one in samples if one.planned.kind in QUIET]
        noisy = [one for one in samples if one.planned.kind == NOISY]
        good = sum(one.verdict == "good" for one in quiet)
        waited = [one.ttft_s if one.ttft_s is not None else one.ended_s - one.planned.at_s for one in quiet]
        return cls(
            side,
            number,
            good / seconds,
            good / len(quiet),
            sum(one.verdict == "good" for one in noisy) / len(noisy),
            sum(one.error.startswith("http") for one in noisy) / len(noisy),
            percentile(waited, 0.5),
            percentile(waited, 0.99),
            sum(tokens_within(one, seconds) for one in samples) / seconds,
        )

    def line(self) -> str:
        return (
            f"{self.side:<10} {self.number:>2} {self.quiet_good_s:>7.2f} {self.quiet_good:>6.1%} "
            f"{self.quiet_ttft_p50_s:>7.2f} {self.quiet_ttft_p99_s:>7.2f} {self.noisy_good:>7.1%} "
            f"{self.noisy_refused:>8.1%} {self.tokens_s:>9.1f}"
        )


HEADER = (
    f"{'side':<10} {'':>2} {'good/s':>7} {'good':>6} {'ttft50':>7} {'ttft99':>7} {'noisy':>7} {'refused':>8} "
    f"{'tokens/s':>9}"
)


def tokens_within(sample: Sample, seconds: float) -> int:
    if sample.first_s is None:
        return 0
    at_s, came = sample.first_s, 0
    for gap_s in (0.0, *sample.gaps_s):
        at_s += gap_s
        came += at_s < seconds
    return came


@contextlib.contextmanager
def headway(upstream: str, folder: Path, ttft_s: float, itl_s: float) -> Iterator[tuple[str, dict[str, str]]]:
    """A gateway with a key for each tenant; nobody has limits of their own, all have the same weight."""
    file = KeyFile(folder / "keys.jsonl")
    keys = {tenant: file.create(tenant, time.time())[1] for tenant in (*QUIET, NOISY)}
    config = folder / "gateway.toml"
    config.write_text(
        f'api-keys = "{file.path}"\nlog-level = "warning"\nslo-ttft = {ttft_s}\nslo-itl = {itl_s}\n'
        f'[[worker]]\nid = "a"\nurl = "{upstream}"\n'
    )
    port = servers.free_port()
    command = [sys.executable, "-m", "headway", "serve", "--config", str(config), "--port", str(port)]
    with servers.Server(command, port) as server:
        yield server.url, keys


@contextlib.contextmanager
def litellm(upstream: str, place: Path, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    config = folder / "litellm.yaml"
    params = f"{{model: openai/{servers.NAME}, api_base: {upstream}/v1, api_key: x, timeout: 600}}"
    config.write_text(
        f"model_list:\n  - model_name: {servers.NAME}\n    litellm_params: {params}\n"
        "general_settings:\n  dangerously_permit_weak_or_unset_master_key: true\n"
    )
    port = servers.free_port()
    with servers.Server([str(place / "bin" / "litellm"), "--config", str(config), "--port", str(port)], port) as server:
        yield server.url, {}


def upstream_server(given: argparse.Namespace) -> servers.Server:
    flags = ("--max-num-seqs", str(SLOTS))
    if given.upstream == "simulated":
        return servers.headway(
            given.model, "--executor", "simulated", "--policy", "vllm", "--max-waiting", "100000", *flags
        )
    if given.peer_python is None:
        raise SystemExit("--upstream vllm needs --peer-python PATH, or try --upstream simulated")
    folder = servers.hf_model(given.peer_python, servers.gguf_of(given.model), given.hf_model)
    return servers.vllm(
        given.peer_python, folder, *flags, all_cores=False, kv_cache_gib=given.kv_cache_gib, dtype=given.vllm_dtype
    )


def keyed(planned: Sequence[Planned], keys: dict[str, str]) -> list[Planned]:
    """Everybody with a key of their own, where there are keys."""
    return [replace(one, key=keys.get(one.kind, "")) for one in planned]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--peer-python", metavar="PATH", help="Python of an environment with vLLM")
    parser.add_argument("--vllm-dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--hf-model", type=Path, default=Path("results/hf-model"))
    parser.add_argument("--kv-cache-gib", type=float, default=1.0)
    parser.add_argument("--litellm", type=Path, metavar="DIR", help="environment of LiteLLM's proxy")
    parser.add_argument("--model", default=servers.DEFAULT_MODEL)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each window, and of the capacity's closed loop")
    parser.add_argument("--drain", type=float, default=5.0, help="seconds after a window for what has not ended")
    parser.add_argument("--slo-ttft", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    windows: list[Window] = []
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        upstream = stack.enter_context(upstream_server(given))
        asyncio.run(client.settle(upstream.url, servers.NAME))
        found = asyncio.run(capacity(upstream.url, given.seconds))
        itl_s = SLOWER * found.gap_s
        print(
            f"capacity {found.req_s:.2f} req/s with {SLOTS} at once: mean gap {found.gap_s * 1e3:.0f} ms, "
            f"TTFT p50 {found.ttft_p50_s:.2f} s. Good: TTFT {given.slo_ttft:g} s, gap p99 {itl_s * 1e3:.0f} ms"
        )
        sides: dict[str, tuple[str, dict[str, str]]] = {"direct": (upstream.url, {})}
        if given.litellm:
            sides["litellm"] = stack.enter_context(litellm(upstream.url, given.litellm, folder))
        sides["headway"] = stack.enter_context(headway(upstream.url, folder, given.slo_ttft, itl_s))
        print(HEADER)
        for number in range(1, given.rounds + 1):
            planned = schedule(found.req_s, given.seconds, given.seed + number, given.slo_ttft, itl_s)
            for side, (url, keys) in sides.items():
                asyncio.run(client.settle(upstream.url, servers.NAME))
                samples = asyncio.run(client.run(url, servers.NAME, keyed(planned, keys), given.drain))
                windows.append(Window.of(side, number, given.seconds, samples))
                print(windows[-1].line(), flush=True)
    print("\n".join(summary(windows)))
    if given.json:
        given.json.write_text(
            json.dumps({"capacity": asdict(found), "windows": [asdict(one) for one in windows]}, indent=1)
        )


def summary(windows: Sequence[Window]) -> list[str]:
    """Medians over rounds, and the range of the ratios of each round."""
    sides = list(dict.fromkeys(window.side for window in windows))

    def of(side: str, what: Callable[[Window], float]) -> list[float]:
        return [what(window) for window in windows if window.side == side]

    ours, lines = of("headway", lambda window: window.quiet_good_s), [""]
    for side in [one for one in sides if one != "headway"]:
        theirs = of(side, lambda window: window.quiet_good_s)
        ratios = [mine / other if other else float("inf") for mine, other in zip(ours, theirs, strict=True)]
        lines.append(
            f"good requests/s of the quiet tenants, headway / {side}: {statistics.median(ratios):.2f}x "
            f"({min(ratios):.2f}-{max(ratios):.2f}; target {TARGETS[side]:g}x)"
        )
    tokens = [
        mine / other
        for mine, other in zip(of("headway", lambda w: w.tokens_s), of("direct", lambda w: w.tokens_s), strict=True)
    ]
    lines.append(
        f"tokens/s of everybody, headway / direct: {statistics.median(tokens):.2f}x "
        f"({min(tokens):.2f}-{max(tokens):.2f}; target {TARGET_TOKENS:g}x)"
    )
    return lines


if __name__ == "__main__":
    main()
