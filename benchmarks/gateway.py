"""What the gateway itself costs: requests a second, added delay, CPU per chunk, with every feature on.

Two instant upstreams of its own, an API key, tenant limits, lanes and routing. wrk where it is installed, else a raw
client of our own. Each round measures direct and proxied in turn. Peers beside it, by the folder of their environment:
    python -m benchmarks.gateway --litellm ~/peers/litellm --vllm-router ~/peers/vllm-router
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.sides.hammer import MESSAGES
from headway.gateway.tenancy import KeyFile

TARGET_RPS, TARGET_MS = 6_000, 0.4
TARGET_LATE_MS, TARGET_CHUNK_US = 3.0, 45.0
TENANT = "acme"
TICKS = os.sysconf("SC_CLK_TCK")


def upstream(*flags: str) -> servers.Server:
    port = servers.free_port()
    return servers.Server([sys.executable, "-m", "benchmarks.sides.instant", str(port), *flags], port)


@contextlib.contextmanager
def headway(urls: list[str], folder: Path) -> Iterator[tuple[servers.Server, str]]:
    """A gateway with every feature on, and a key to it."""
    file = KeyFile(folder / "keys.jsonl")
    file.path.unlink(missing_ok=True)
    _, key = file.create(TENANT, time.time())
    config = folder / "gateway.toml"
    workers = "".join(f'[[worker]]\nurl = "{url}"\nid = "w{n}"\nkind = "openai"\n' for n, url in enumerate(urls))
    config.write_text(
        f'api-keys = "{file.path}"\nlog-level = "warning"\nslo-ttft = 5.0\n{workers}'
        f'[[tenant]]\nname = "{TENANT}"\nmax-concurrency = 10000\nrequests-per-minute = 100000000\n'
        f"tokens-per-minute = 100000000000\nmax-input-tokens = 100000\nmax-output-tokens = 100000\n"
    )
    port = servers.free_port()
    command = [sys.executable, "-m", "headway", "serve", "--config", str(config), "--port", str(port)]
    with servers.Server(command, port) as server:
        yield server, key


@contextlib.contextmanager
def litellm(place: Path, urls: list[str], folder: Path) -> Iterator[servers.Server]:
    config = folder / "litellm.yaml"
    models = "".join(
        f"  - model_name: bench\n    litellm_params: {{model: openai/bench, api_base: {url}/v1, api_key: x}}\n"
        for url in urls
    )
    open_to_all = "general_settings:\n  dangerously_permit_weak_or_unset_master_key: true\n"
    config.write_text(f"model_list:\n{models}{open_to_all}")
    port = servers.free_port()
    with servers.Server([str(place / "bin" / "litellm"), "--config", str(config), "--port", str(port)], port) as server:
        yield server


@contextlib.contextmanager
def vllm_router(place: Path, urls: list[str]) -> Iterator[servers.Server]:
    port = servers.free_port()
    command = [str(place / "bin" / "vllm-router"), "--worker-urls", *urls, "--port", str(port)]
    with servers.Server([*command, "--policy", "round_robin"], port) as server:
        yield server


def ask(url: str, key: str, connections: int, seconds: float) -> dict[str, Any]:
    """Requests a second and their times, by wrk if there is one."""
    if shutil.which("wrk"):
        return _wrk(url, key, connections, seconds)
    return hammer("requests", url, key, "--connections", str(connections), "--seconds", str(seconds))


def hammer(what: str, url: str, key: str, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.sides.hammer", what, url, "--key", key, *flags]
    said: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if said["failed"]:
        raise SystemExit(f"{said['failed']} of {what} failed at {url}: {said.get('failure', '')}")
    return said


def _wrk(url: str, key: str, connections: int, seconds: float) -> dict[str, Any]:
    body = json.dumps({"model": "bench", "messages": MESSAGES, "max_tokens": 16})
    lines = [
        'wrk.method = "POST"',
        'wrk.headers["Content-Type"] = "application/json"',
        f'wrk.headers["Authorization"] = "Bearer {key}"',
        f"wrk.body = [[{body}]]",
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write("\n".join(lines))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}", "--latency", "-s", script.name]
        said = subprocess.run(
            [*command, f"{url}/v1/chat/completions"], check=True, capture_output=True, text=True
        ).stdout
    if "Non-2xx" in said:
        raise SystemExit(f"wrk was refused:\n{said}")
    p50, p99 = (_ms(re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", said)) for share in ("50", "99"))
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert rate is not None
    return {"requests_per_s": float(rate[1]), "p50_ms": p50, "p99_ms": p99}


def _ms(found: re.Match[str] | None) -> float:
    assert found is not None
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]


def cpu_s(server: servers.Server) -> float:
    """Of the process that was started: user and system."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


Side = tuple[str, str, str]  # name, URL, key


def measure_requests(sides: list[Side], given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The median over the rounds of each side's figures."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in sides}
    for name, url, key in sides:
        ask(url, key, 16, min(2.0, given.seconds))  # warm
        del name
    for _ in range(given.rounds):
        for name, url, key in sides:
            many, one = ask(url, key, 16, given.seconds), ask(url, key, 1, given.seconds / 2)
            found[name].append({"rps": many["requests_per_s"], "p50_ms": many["p50_ms"], "one_ms": one["p50_ms"]})
    return {
        name: {figure: statistics.median(run[figure] for run in runs) for figure in ("rps", "p50_ms", "one_ms")}
        for name, runs in found.items()
    }


def measure_streams(direct: Side, proxied: Side, server: servers.Server, rounds: int) -> dict[str, float]:
    late = {}
    for name, url, key in (direct, proxied, direct, proxied):
        before = cpu_s(server)
        said = hammer("streams", url, key, "--rounds", str(rounds))
        late[name] = said
        if name == proxied[0]:
            chunk_us = 1e6 * (cpu_s(server) - before) / said["chunks"]
    return {
        "direct_late_p99_ms": late[direct[0]]["late_p99_ms"],
        "proxied_late_p99_ms": late[proxied[0]]["late_p99_ms"],
        "added_p50_ms": late[proxied[0]]["late_p50_ms"] - late[direct[0]]["late_p50_ms"],
        "added_p99_ms": late[proxied[0]]["late_p99_ms"] - late[direct[0]]["late_p99_ms"],
        "cpu_us_per_chunk": chunk_us,
    }


def shown(requests: dict[str, dict[str, float]], streams: dict[str, float]) -> None:
    direct, ours = requests["direct"], requests["headway"]
    print(f"{'':<14}{'req/s, 16':>12}{'p50 ms, 16':>12}{'p50 ms, 1':>12}")
    for name, figures in requests.items():
        print(f"{name:<14}{figures['rps']:>12,.0f}{figures['p50_ms']:>12.2f}{figures['one_ms']:>12.3f}")
    added_ms = ours["one_ms"] - direct["one_ms"]
    print(f"headway: {ours['rps']:,.0f} req/s (target {TARGET_RPS:,}), adds {added_ms:.3f} ms (target {TARGET_MS})")
    for name in requests.keys() - {"direct", "headway"}:
        print(f"headway / {name}: {ours['rps'] / requests[name]['rps']:.2f} of its req/s")
    print(
        f"streams: adds p50 {streams['added_p50_ms']:.2f} ms, p99 {streams['added_p99_ms']:.2f} ms "
        f"(target {TARGET_LATE_MS}); {streams['cpu_us_per_chunk']:.1f} us of CPU a chunk (target {TARGET_CHUNK_US})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement at 16 connections")
    parser.add_argument("--litellm", type=Path, metavar="DIR", help="environment of LiteLLM's proxy")
    parser.add_argument("--vllm-router", type=Path, metavar="DIR", help="environment of vllm-router")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        instant = [stack.enter_context(upstream()) for _ in range(2)]
        paced = [stack.enter_context(upstream("--tokens", "64", "--gap", "0.02")) for _ in range(2)]
        urls = [one.url for one in instant]
        sides: list[Side] = [("direct", urls[0], "")]
        parked: list[servers.Server] = []
        ours, key = stack.enter_context(headway(urls, folder))
        sides.append(("headway", ours.url, key))
        peers: list[tuple[str, Path | None, Callable[[Path], contextlib.AbstractContextManager[servers.Server]]]] = [
            ("litellm", given.litellm, lambda place: litellm(place, urls, folder)),
            ("vllm-router", given.vllm_router, lambda place: vllm_router(place, urls)),
        ]
        for name, place, start in peers:
            if place is not None:
                peer = stack.enter_context(start(place))
                parked.append(peer)
                sides.append((name, peer.url, ""))
        requests = measure_requests(sides, given)
        with headway([one.url for one in paced], folder) as (server, key):
            direct, proxied = ("direct", paced[0].url, ""), ("headway", server.url, key)
            streams = measure_streams(direct, proxied, server, given.rounds)
    shown(requests, streams)
    if given.json:
        given.json.write_text(json.dumps({"requests": requests, "streams": streams}, indent=2))


if __name__ == "__main__":
    main()
