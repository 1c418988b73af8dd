"""Sides `headway-http` and `headway-http-stream`: the same work through the server's API, from a client process."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys

import aiohttp

from benchmarks import job


def start_server(model: str, kv_cache_dtype: str) -> tuple[subprocess.Popen[str], str]:
    """The server and its URL, which it prints once it answers."""
    command = [sys.executable, "-m", "headway", "serve", model, "--port", "0", "--kv-cache-dtype", kv_cache_dtype]
    command += ["--kv-cache-gib", str(job.KV_CACHE_GIB), "--max-num-seqs", str(job.MAX_NUM_SEQS)]
    command += ["--max-num-batched-tokens", str(job.MAX_NUM_BATCHED_TOKENS)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("Listening"):
            return server, line.split()[1]
    raise SystemExit(f"the server ended with status {server.wait()} before it listened")


async def complete(session: aiohttp.ClientSession, url: str, prompt: list[int], tokens: int, stream: bool) -> int:
    """Output tokens of one completion, as its usage says."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    usage: dict[str, int] = {}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        if not stream:
            usage = (await response.json())["usage"]
        else:
            async for line in response.content:
                if line.startswith(b"data: {") and b'"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
    return usage["completion_tokens"]


async def run_all(url: str, work: job.Job, stream: bool) -> int:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        pairs = zip(work.prompts, work.outputs, strict=True)
        return sum(await asyncio.gather(*(complete(session, url, prompt, n, stream) for prompt, n in pairs)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv-cache-dtype", required=True)
    parser.add_argument("--stream", action="store_true")
    arguments = parser.parse_args()
    server, url = start_server(arguments.model, arguments.kv_cache_dtype)
    try:
        job.measure(lambda work: asyncio.run(run_all(url, work, arguments.stream)))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


if __name__ == "__main__":
    main()
