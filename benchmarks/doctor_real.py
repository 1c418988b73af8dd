"""The part of `benchmarks.doctor` over real HTTP: servers with the simulated executor, and a delaying proxy."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException

from headway.doctor.diagnose import diagnose
from headway.doctor.live import observe
from headway.wire.asker import Asker

WINDOW_S, INTERVAL_S = 20.0, 0.5
DELAY_S = 0.3


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    cause: str
    flags: tuple[str, ...] = ()
    rate: float = 2.0
    prompt_words: int = 60
    output_tokens: int = 40
    tokenise_s: float = 0.0
    delay_s: float = 0.0


CASES = (
    Case("slow tokenizer, real", "slow-preprocessing", tokenise_s=0.4),
    Case("network delay, real", "network-delay", delay_s=DELAY_S),
    Case("slot limit, real", "slot-limit", flags=("--max-num-seqs", "2"), rate=3.0, output_tokens=80),
    Case("healthy, real", ""),
)


def real(seeds: int) -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    """Name, cause, seed, and what was found."""
    for case in CASES:
        for seed in range(seeds):
            found = _found(case, seed)
            mark = "right" if found[:1] == ((case.cause,) if case.cause else ()) else "WRONG"
            print(f"{mark}  {case.name:26} seed {seed}: {', '.join(found) or 'healthy'}", flush=True)
            yield case.name, case.cause, seed, found


def _found(case: Case, seed: int) -> tuple[str, ...]:
    with _server(case) as port, _delayed(port, case.delay_s) as seen_port:
        load = _Load(f"http://127.0.0.1:{port}", case, seed)
        load.start()
        try:
            time.sleep(3.0)
            facts = observe(Asker(f"http://127.0.0.1:{seen_port}"), WINDOW_S, INTERVAL_S)
        finally:
            load.done.set()
            load.join()
    return tuple(finding.cause for finding in diagnose(facts).findings)


@contextlib.contextmanager
def _server(case: Case) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["serve", "--executor", "simulated", "--port", str(port), *case.flags]
    command = [sys.executable, "-m", "headway", *flags]
    if case.tokenise_s:
        command = [sys.executable, "-m", "benchmarks.slow_tokenizer", str(case.tokenise_s), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1):
                break
            time.sleep(0.25)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


class _Load(threading.Thread):
    """An open loop: each request has a thread of its own."""

    def __init__(self, url: str, case: Case, seed: int) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self._url, self._case, self._draw = url, case, random.Random(seed)

    def run(self) -> None:
        while not self.done.wait(self._draw.expovariate(self._case.rate)):
            threading.Thread(target=self._ask, args=(self._draw.random(),), daemon=True).start()

    def _ask(self, salt: float) -> None:
        body = {
            "model": "simulated",
            "prompt": f"{salt} " + "word " * self._case.prompt_words,
            "max_tokens": self._case.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(body).encode(), headers)
        with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(request, timeout=60) as answer:
            while answer.read(4096):
                pass


@contextlib.contextmanager
def _delayed(port: int, delay_s: float) -> Iterator[int]:
    """The port of a proxy before it that holds back every byte from the client for so long."""
    if not delay_s:
        yield port
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, port, delay_s), daemon=True).start()
        yield listening.getsockname()[1]


def _accept(listening: socket.socket, port: int, delay_s: float) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for one, other, held_s in ((client, server, delay_s), (server, client, 0.0)):
                threading.Thread(target=_pass_on, args=(one, other, held_s), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket, held_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            time.sleep(held_s)
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
