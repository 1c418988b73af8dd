"""A real Prometheus scrapes a real server, and its answers are what the server was asked."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.cli.running import Server
from tests.deploy.exported import DEPLOY

REQUESTS, WORDS = 6, 9
START_TIMEOUT_S = 30.0


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[str]:
    """With our own rules, so that those are evaluated as well."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    config = {
        "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(DEPLOY / "prometheus" / "headway.rules.yml")],
        "scrape_configs": [{"job_name": "headway", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address={url}", "--log.level=error"], stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: ready(f"http://{url}/-/ready"))
        yield f"http://{url}"
    finally:
        process.kill()
        process.wait(10)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def until(condition, timeout_s: float = START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


def ask(url: str, query: str) -> dict[tuple[tuple[str, str], ...], float]:
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=5) as answer:
        told = json.load(answer)
    assert told["status"] == "success"
    return {
        tuple(sorted((name, word) for name, word in one["metric"].items() if name != "__name__")): float(
            one["value"][1]
        )
        for one in told["data"]["result"]
    }


def one(url: str, query: str) -> float | None:
    return next(iter(ask(url, query).values()), None)


def complete(url: str) -> None:
    body = {"model": "sim", "prompt": "a b c d", "max_tokens": WORDS, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        json.load(answer)


@pytest.mark.slow
def test_a_real_prometheus_reads_what_was_done(tmp_path: Path):
    with (
        Server("--executor", "simulated", "--served-model-name", "sim", "--metrics-names", "vllm") as server,
        prometheus(server.url.removeprefix("http://"), tmp_path) as url,
    ):
        until(lambda: one(url, 'up{job="headway"}') == 1)
        for _ in range(REQUESTS):
            complete(server.url)
        until(lambda: one(url, 'headway_requests_total{outcome="good"}') == REQUESTS)
        assert one(url, "headway_request_output_tokens_sum") == REQUESTS * WORDS
        assert one(url, "headway_request_output_tokens_count") == REQUESTS
        assert one(url, "headway_inter_token_latency_seconds_count") == REQUESTS * (WORDS - 1)
        assert one(url, 'vllm:request_success_total{finished_reason="length"}') == REQUESTS
        assert one(url, "vllm:time_to_first_token_seconds_count") == REQUESTS
        assert (one(url, "histogram_quantile(0.5, headway_inter_token_latency_seconds_bucket)") or 0) > 0
        assert one(url, 'headway_model_output_tokens_total{model="sim"}') == REQUESTS * WORDS
        assert ask(url, "headway_engine_ready")
        # Every query of the dashboard, and every rule, is one that it answers.
        dashboard = json.loads((DEPLOY / "grafana" / "headway.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "5s")
                ask(url, query.replace("$job", ".*").replace("$instance", ".*"))
        until(lambda: one(url, "headway:goodput:rate5m") is not None)
        assert one(url, "headway:slo_attainment:ratio_rate5m") in {None, 1.0}
