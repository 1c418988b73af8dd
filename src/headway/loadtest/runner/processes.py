"""A load made by several processes: its index says whose each request is (see `Prefetch`), one clock when it is due.

The parent makes no load. It tells every process when to start, hears how it goes, and puts the records together.
Messages are pickled tuples over pipes: to a process ("start", zero_ns), ("stop",) and ("quit",); from it ("ready",),
("tick", Tick), ("records", packed), ("part", Part without records), ("end",) or ("failed", kind, message). Records
come as requests end, so that a process that dies, or is left because it does not answer, takes few of them along.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

from headway.loadtest import errors
from headway.loadtest.errors import ClientFailed, InvalidPlan
from headway.loadtest.record import Record
from headway.loadtest.runner.measure import CHECK_S, Measurement, Part
from headway.loadtest.runner.packing import pack, unpack
from headway.loadtest.runner.plan import ClosedLoad, Plan
from headway.loadtest.runner.progress import Tick

PREPARE_S = 120.0
RECORDS_AT_ONCE = 500  # in one message: some 10 ms of packing
END_S = 5.0  # so long a process may take to end

# A terminal or a supervisor sends these to the parent and its processes alike.
_OF_THE_GROUP = (signal.SIGINT, signal.SIGTERM)

NoteTick = Callable[[int, Tick], None]


class Processes:
    """`start`, `prepare`, `run` once; `stop` at any time; `close` on every way out."""

    def __init__(self, plan: Plan) -> None:
        number = plan.processes
        if isinstance(plan.load, ClosedLoad):
            number = min(number, plan.load.concurrency)  # a process without a slot would have nothing to do
        try:
            pickled = pickle.dumps(plan)
        except Exception as error:
            raise InvalidPlan(
                f"The plan cannot be sent to client processes ({error}). Arrivals, items and prompts must pickle: "
                "give functions of a module instead of generators and lambdas, or make the load in this process."
            ) from None
        self.number = number
        self._stops = 0
        self._leaving: asyncio.TimerHandle | None = None
        self._children = [_Child(pickled, share, number) for share in range(number)]

    async def prepare(self) -> None:
        """Until every process has its first requests made. Raises what is wrong with the plan or the server."""
        await asyncio.gather(*(child.expect("ready", PREPARE_S) for child in self._children))

    async def run(self, zero_ns: int, note_tick: NoteTick) -> list[Part]:
        """A process that dies loses what had not ended of its requests, which its part says."""
        for child in self._children:
            child.tell("start", zero_ns)
        return await asyncio.gather(*(child.part(note_tick) for child in self._children))

    def stop(self) -> None:
        """A process that is not listening yet hears of it when it does. One that does not end after the second time is
        left: it may be stopped, or stuck.
        """
        self._stops += 1
        for child in self._children:
            child.tell("stop")
        if self._stops == 2:
            self._leaving = asyncio.get_running_loop().call_later(END_S, self._leave)

    def _leave(self) -> None:
        for child in self._children:
            child.leave()

    async def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        for child in self._children:
            child.tell("quit")
        await asyncio.to_thread(self._await_ends, monotonic() + END_S)

    def _await_ends(self, until_s: float) -> None:
        for child in self._children:
            child.close(until_s)


class _Child:
    """One process, seen from the parent."""

    def __init__(self, pickled: bytes, share: int, of: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._share = share
        self._pipe, end = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=serve, args=(end, pickled, share, of), name=f"headway-client-{share}", daemon=True
        )
        resource_tracker.ensure_running()  # it would take the mask away again when it is started on the way
        _mask(signal.SIG_BLOCK)  # which a process inherits: it cannot be hit before it ignores them
        try:
            self._process.start()
        finally:
            _mask(signal.SIG_UNBLOCK)
        end.close()
        self._ended = self._left = False  # it has told all; it was not waited for
        self._heard: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._thread = _listen(self._pipe, asyncio.get_running_loop(), self._heard.put_nowait)

    def tell(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone, which is heard
            self._pipe.send(message)

    async def expect(self, kind: str, limit_s: float) -> tuple[Any, ...]:
        try:
            message = await asyncio.wait_for(self._heard.get(), limit_s)
        except TimeoutError:
            raise ClientFailed(f"Client process {self._share} was not ready within {limit_s:g} s.") from None
        if message[0] == "failed":
            raise _error(message)
        if self._left:
            raise ClientFailed(f"Client process {self._share} was not ready yet when the run was interrupted.")
        if message[0] == "gone":
            raise ClientFailed(f"Client process {self._share} ended before it began{await self._exit_words()}.")
        assert message[0] == kind, message
        return message

    async def part(self, note_tick: NoteTick) -> Part:
        part, packed, tick = Part([]), deque[bytes](), Tick()  # unpacking would cost CPU while the load is made
        while True:
            kind, *rest = await self._heard.get()
            if kind == "tick":
                tick = rest[0]
                note_tick(self._share, tick)
            elif kind == "records":
                packed.append(rest[0])
            elif kind == "part":
                part = rest[0]
            elif kind == "failed":
                raise _error((kind, *rest))
            else:  # "end" or "gone"
                self._ended = True
                while packed:
                    part.records += unpack(packed.popleft())
                if kind != "end":
                    part.client_failed = True
                    part.ended_early = await self._lost(tick.sent - len(part.records))
                return part

    async def _lost(self, lost: int) -> str:
        """In words. `lost`: of the requests that it told of."""
        how = "did not end when it was told to" if self._left else f"died{await self._exit_words()}"
        number = f" (at least {lost:,})" if lost > 0 else ""
        return f"client process {self._share} {how}: what had not ended of its requests is lost{number}"

    def leave(self) -> None:
        """End it unless it has told all."""
        if not self._ended and self._process.is_alive():
            self._left = True
            self._process.kill()

    async def _exit_words(self) -> str:
        await asyncio.to_thread(self._process.join, 1.0)
        code = self._process.exitcode
        if code is None:
            return ""
        return f" by signal {-code}" if code < 0 else f" with exit status {code}"

    def close(self, until_s: float) -> None:
        """Until then it may end by itself."""
        self._process.join(max(0.0, until_s - monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._thread.join()  # it has heard the end
        self._pipe.close()


GONE = ("gone",)  # the other end is


def _listen(
    pipe: Connection, loop: asyncio.AbstractEventLoop, hear: Callable[[tuple[Any, ...]], None]
) -> threading.Thread:
    """Hand what comes over a pipe to the loop, up to `GONE`. In a thread: loops make the pipes they watch non-blocking,
    and a large message does not fit into one of those.
    """

    def read() -> None:
        message: tuple[Any, ...] = ()
        while message != GONE:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                message = GONE
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(hear, message)

    thread = threading.Thread(target=read, name="headway-listen", daemon=True)
    thread.start()
    return thread


def _mask(how: int) -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(how, _OF_THE_GROUP)


def _error(message: tuple[Any, ...]) -> Exception:
    """What a process could not do, as it was raised there."""
    _, kind, words = message
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.LoadTestError):
        return known(words)
    return ClientFailed(f"{kind}: {words}")


# -- the other end -----------------------------------------------------------------------------------------------------


def serve(pipe: Connection, pickled: bytes, share: int, of: int) -> None:
    """The main function of a client process."""
    for number in _OF_THE_GROUP:
        signal.signal(number, signal.SIG_IGN)  # the parent decides
    _mask(signal.SIG_UNBLOCK)  # what came meanwhile is forgotten
    try:
        _run(_Served(pipe, pickle.loads(pickled), share, of).serve())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody wants the result
    except Exception as error:
        with contextlib.suppress(OSError):
            pipe.send(("failed", type(error).__name__, str(error)))


def _run(main: Any) -> None:
    if sys.platform == "win32":
        asyncio.run(main)
    else:
        import uvloop

        uvloop.run(main)


class _Served:
    def __init__(self, pipe: Connection, plan: Plan, share: int, of: int) -> None:
        self._pipe = pipe
        self._measurement = Measurement(plan, share=share, of=of)
        # One thread packs and sends: neither that nor a parent that does not listen holds up the load.
        self._telling = ThreadPoolExecutor(1, "headway-tell")
        self._start: asyncio.Future[int] | None = None

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._start = loop.create_future()
        await self._measurement.prepare()
        _listen(self._pipe, loop, self._hear)
        self._pipe.send(("ready",))
        zero_ns = await self._start
        ticks = loop.create_task(self._tick())
        try:
            part = await self._measurement.run(zero_ns)
        finally:
            ticks.cancel()
            self._telling.shutdown()  # what it was given is sent
        records, part.records = part.records, []
        self._send(self._measurement.tick(), records)
        self._pipe.send(("part", part))
        self._pipe.send(("end",))

    def _hear(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "stop":
            self._measurement.stop()
        elif kind == "start" and self._start is not None:
            self._start.set_result(rest[0])
        else:
            os._exit(0)  # nobody wants more, or the parent is gone

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            tick, records = self._measurement.tick(), self._measurement.take()
            sent = asyncio.get_running_loop().run_in_executor(self._telling, self._send, tick, records)
            await asyncio.shield(sent)  # nobody else has them

    def _send(self, tick: Tick, records: list[Record]) -> None:
        """How it goes, and what has ended since, piece by piece."""
        self._pipe.send(("tick", tick))
        for at in range(0, len(records), RECORDS_AT_ONCE):
            self._pipe.send(("records", pack(records[at : at + RECORDS_AT_ONCE])))
