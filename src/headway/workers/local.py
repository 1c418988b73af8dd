"""`LocalWorker`: an engine that is started here, a server of its own, watched and started again.

One that dies is started again after a rest that doubles; one that keeps dying, or was told what it cannot do, stays
down and says why. Stopping lets each finish what runs, then insists.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic, monotonic_ns

from headway import child_process
from headway.core.fleet.worker import WorkerLoad
from headway.workers import lifeline
from headway.workers.kinds import HEADWAY
from headway.workers.remote import RemoteConfig, RemoteWorker
from headway.workers.worker import Answer, Call, Head, Told, Unwatched, Watcher, WorkerFailed

log = logging.getLogger("headway.workers")

FIRST_REST_S, LONGEST_REST_S = 0.5, 30.0
# So many deaths within CRASH_WINDOW_S, or in a row without being up between them, and it stays down.
CRASH_LIMIT = 5
CRASH_WINDOW_S = 120.0
USAGE_ERROR = 2  # its exit status for settings that it cannot take: trying again changes nothing
LAST_LINES = 12
INSIST_S = 5.0  # after a second signal
LAST_WORDS_S = 1.0
LISTENING = "Listening"  # begins the line that tells its URL


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """`arguments` are those of `headway serve`, but for the address. `module` has the `main` that takes them."""

    arguments: Sequence[str]
    module: str = "headway.__main__"
    start_timeout_s: float = 600.0  # a model may have to be fetched and converted
    drain_timeout_s: float = 30.0
    environment: Mapping[str, str] | None = None
    first_rest_s: float = FIRST_REST_S
    crash_limit: int = CRASH_LIMIT


class LocalWorker:
    """A `Worker` that is a child of this process. `down` says why it stays down; empty while it does not."""

    kind = HEADWAY.name

    def __init__(
        self,
        worker_id: str,
        config: LocalConfig,
        *,
        remote: RemoteConfig | None = None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.id = worker_id
        self._config = config
        nowhere = RemoteConfig(id=worker_id, url="http://127.0.0.1:9")  # until it tells where it is
        # Others on this machine could reach its port, and get past whoever stands before it.
        self._secret = secrets.token_urlsafe(32)
        self._remote_config = replace(
            remote or nowhere, id=worker_id, url=nowhere.url, kind=HEADWAY.name, api_key=self._secret
        )
        self._remote = RemoteWorker(self._remote_config, clock=clock)
        self._watcher: Watcher = Unwatched()
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._up = asyncio.Event()
        self._deaths: deque[float] = deque()
        self._deaths_in_a_row = 0
        self._stopping = False
        self.starts = 0
        self.down = ""

    @property
    def models(self) -> frozenset[str]:
        return self._remote.models

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def url(self) -> str:
        return self._remote.address.url

    def load(self) -> WorkerLoad:
        return self._remote.load()

    def stream(self, call: Call) -> Answer:
        if not self._up.is_set():
            return NoAnswer(self.id, self.down or "its process is not up")
        return self._remote.stream(call)

    async def start(self, watcher: Watcher) -> None:
        """Returns when it is up, or stays down."""
        self._watcher = watcher
        self._keeping = asyncio.create_task(self._keep())
        up = asyncio.create_task(self._up.wait())
        await asyncio.wait({up, self._keeping}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._stopping:
            return
        if self.down:
            watcher.checked(self.id, well=False, reason=self.down)
        else:
            await self._remote.start(self)

    async def close(self) -> None:
        """Asks it to finish what runs, and waits for that; then insists."""
        self._stopping = True
        await self._remote.watch.close()  # that it leaves is no news
        process = self._process
        if process is not None and process.returncode is None:
            for wait_s in (self._config.drain_timeout_s, INSIST_S):
                _signal(process, signal.SIGTERM)
                if await _ended(process, wait_s):
                    break
            else:
                _signal(process, signal.SIGKILL)
                await process.wait()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._remote.close()

    # -- Watcher: what is seen of its server goes on, with what is known of its process --------------------------------

    def loaded(self, worker_id: str, load: WorkerLoad) -> None:
        self._watcher.loaded(worker_id, load)

    def checked(self, worker_id: str, *, well: bool, reason: str) -> None:
        if not self._up.is_set():
            well, reason = False, self.down or "its process is not up"
        self._watcher.checked(worker_id, well=well, reason=reason)

    def serves(self, worker_id: str, models: frozenset[str]) -> None:
        self._watcher.serves(worker_id, models)

    # -- keeping it up -------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            died = await self._live()
            self._up.clear()
            if self._stopping:
                return
            log.warning("worker %s: %s", self.id, died.told)
            self.down = self._gives_up(died)
            if self.down:
                log.error("worker %s stays down: %s", self.id, self.down)
                self._watcher.checked(self.id, well=False, reason=self.down)
                return
            rest_s = min(LONGEST_REST_S, self._config.first_rest_s * 2 ** (self._deaths_in_a_row - 1))
            await asyncio.sleep(rest_s)  # being closed cancels it

    def _gives_up(self, died: Death) -> str:
        """Why it is not started again; empty when it is."""
        now = monotonic()
        while self._deaths and now - self._deaths[0] > CRASH_WINDOW_S:
            self._deaths.popleft()
        self._deaths.append(now)
        self._deaths_in_a_row = 1 if died.was_up else self._deaths_in_a_row + 1
        if died.status == USAGE_ERROR and not died.was_up:
            return died.told
        if max(len(self._deaths), self._deaths_in_a_row) >= self._config.crash_limit:
            return f"it died {len(self._deaths)} times within {CRASH_WINDOW_S:.0f} s; the last time {died.told}"
        return ""

    async def _live(self) -> Death:
        """From one start to its end."""
        config = self._config
        command = child_process.command(
            lifeline.__name__, config.module, "serve", *config.arguments, "--host", "127.0.0.1", "--port", "0"
        )
        self._lines.clear()
        self.starts += 1
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**child_process.environment(), **(config.environment or {}), lifeline.SECRET: self._secret},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a terminal is for the parent, which then drains its children
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        timer = asyncio.get_running_loop().call_later(config.start_timeout_s, self._too_slow, process)
        readers = [
            asyncio.create_task(self._listen(process.stdout, timer)),
            asyncio.create_task(self._relay(process.stderr)),
        ]
        try:
            await process.wait()
            await asyncio.wait(readers, timeout=LAST_WORDS_S)  # a process of its own may still hold the pipes
        finally:
            timer.cancel()
            for reader in readers:
                reader.cancel()
            if process.returncode is None:  # the watching is being ended, not the child
                _signal(process, signal.SIGKILL)
                await process.wait()
            if process.stdin is not None:
                process.stdin.close()
        return Death(process.returncode or 0, self._up.is_set(), self._last_words())

    async def _listen(self, stream: asyncio.StreamReader, timer: asyncio.TimerHandle) -> None:
        """Its banner tells where it is."""
        while line := await _line(stream):
            if line.startswith(LISTENING) and not self._up.is_set():
                timer.cancel()
                self._remote.move(line.split()[1])
                self._deaths_in_a_row = 0
                self._up.set()
                log.info("worker %s is up at %s (process %s)", self.id, self.url, self.pid)

    async def _relay(self, stream: asyncio.StreamReader) -> None:
        while line := await _line(stream):
            self._lines.append(line)
            sys.stderr.write(f"[{self.id}] {line}\n")

    def _too_slow(self, process: asyncio.subprocess.Process) -> None:
        self._lines.append(f"it was not up within {self._config.start_timeout_s:g} s")
        _signal(process, signal.SIGKILL)

    def _last_words(self) -> str:
        return next((line for line in reversed(self._lines) if line.strip()), "").removeprefix("headway: ")


@dataclass(frozen=True, slots=True)
class Death:
    status: int
    was_up: bool
    last_words: str

    @property
    def told(self) -> str:
        how = f"was killed by {signal.Signals(-self.status).name}" if self.status < 0 else f"ended with {self.status}"
        return f"its process {how}" + (f", saying: {self.last_words}" if self.last_words else "")


class NoAnswer:
    """Of a worker whose process is not up."""

    def __init__(self, worker_id: str, reason: str) -> None:
        self.told = Told()
        self._failure = WorkerFailed(f"Worker {worker_id}: {reason}.", code="worker_unreachable")

    async def head(self) -> Head:
        raise self._failure

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        raise self._failure

    async def whole(self) -> bytes:
        raise self._failure

    def close(self) -> None: ...


async def _line(stream: asyncio.StreamReader) -> str:
    """The next line with something in it, without its end; empty when there are no more."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the reader holds
            continue
        text = line.decode("utf-8", "replace").rstrip()
        if text or not line:
            return text


async def _ended(process: asyncio.subprocess.Process, within_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        return False
    return True


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
