"""Servers of the benchmarks, ours and peers': started, parked while another is measured, stopped.

A parked server is frozen (SIGSTOP, its whole process group), so that it takes nothing from the one that is measured and
need not be loaded again for each turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
DEFAULT_MODEL = "smollm2-135m"
NAME = "bench"  # every server serves its model under this name
START_TIMEOUT_S = 900.0  # vLLM compiles: about 90 s on a quiet machine, minutes on a busy one
STOP_TIMEOUT_S = 40.0


class Server:
    """A process group that answers HTTP at `url`. Use it as a context: it is stopped on every way out."""

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.url = f"http://127.0.0.1:{port}"
        self._environment = os.environ | dict(environment or {})
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - open as long as the process appends to it
        self._process: subprocess.Popen[bytes] | None = None
        self.started_in_s = 0.0

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def __enter__(self) -> Self:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            self.command, env=self._environment, stdout=self._log, stderr=self._log, start_new_session=True
        )
        try:
            self._wait(began)
        except BaseException:
            self.__exit__()
            raise
        self.started_in_s = time.perf_counter() - began
        return self

    def _wait(self, began: float) -> None:
        assert self._process is not None
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            if self._process.poll() is not None:
                raise SystemExit(f"{' '.join(self.command)}\nended with {self._process.returncode}:\n{self.words()}")
            if time.perf_counter() - began > START_TIMEOUT_S:
                raise SystemExit(f"{' '.join(self.command)}\nis not up after {START_TIMEOUT_S:.0f} s:\n{self.words()}")
            time.sleep(0.25)

    def __exit__(self, *_: object) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self.resume()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def park(self) -> None:
        """Freeze it."""
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """As a crash would."""
        self._signal(signal.SIGKILL)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)  # a group of its own: `start_new_session`

    def words(self) -> str:
        """The last it said."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 3000))
        return self._log.read().decode(errors="replace")

    def resident_bytes(self) -> int:
        """RSS of every process of its group together. Pages they share are counted for each."""
        return sum(rss for _, rss in processes(self.pid))


def processes(group: int) -> list[tuple[int, int]]:
    """(pid, RSS in bytes) of each process of a group, from /proc."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The fields after the command's closing bracket: state, parent, group, …
            if int((folder / "stat").read_text().rpartition(")")[2].split()[2]) != group:
                continue
            pages = int((folder / "statm").read_text().split()[1])
        except (OSError, IndexError):
            continue  # it has ended
        found.append((int(folder.name), pages * os.sysconf("SC_PAGESIZE")))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def headway(model: str, *flags: str) -> Server:
    """`headway serve` under this interpreter."""
    port = free_port()
    command = [sys.executable, "-m", "headway", "serve", model, "--port", str(port), "--served-model-name", NAME]
    return Server([*command, "--log-level", "warning", *flags], port)


def vllm(
    python: str, hf_model: Path, *flags: str, all_cores: bool, kv_cache_gib: float, dtype: str = "bfloat16"
) -> Server:
    """The OpenAI server of vLLM on the CPU. Without bf16 instructions the `dtype` to give is float32.

    By its own choice it computes on all cores but one, which it keeps for its scheduler: on two cores that is half of
    the machine. `all_cores` tells it to keep none.
    """
    port = free_port()
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": f"{kv_cache_gib:g}"}
    if all_cores:
        environment["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(hf_model), "--served-model-name"]
    command += [NAME, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096", "--dtype", dtype]
    return Server([*command, *flags], port, environment)


def hf_model(python: str, gguf: Path, folder: Path) -> Path:
    """The GGUF's weights as a Hugging Face folder, for vLLM; written the first time (about a minute)."""
    if not (folder / "config.json").exists():
        command = [python, str(HERE / "sides" / "make_hf_model.py"), str(gguf), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the GGUF could not be converted for vLLM:\n{(done.stdout + done.stderr)[-3000:]}")
    return folder


def gguf_of(model: str) -> Path:
    """The GGUF file behind a model's name: what the peers read."""
    if model.endswith(".gguf"):
        return Path(model)
    from headway.models import cache_folder
    from headway.models.fetch import BUILT_IN, fetch

    if model not in BUILT_IN:
        raise SystemExit(f"the peers need a GGUF, and {model} is none")
    return fetch(BUILT_IN[model], cache_folder())
