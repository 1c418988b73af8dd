"""The server of a sweep's point: changed while it runs (`/admin/reconfigure`), or started and stopped by a command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import string
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headway.loadtest.client.address import Tls
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import InvalidPlan, LoadTestError, Rejected, TlsFailed, Unreachable
from headway.loadtest.side.aside import aside
from headway.loadtest.side.channel import asked, refusal
from headway.loadtest.side.reach import reach

READY_S = 600.0
STOP_S = 30.0
LOOK_EVERY_S = 0.25
ATTEMPT_S = 2.0


# -- one that runs -----------------------------------------------------------------------------------------------------


class Live:
    """Settings of a headway server, changed while it serves, and put back at the end."""

    def __init__(self, template: RequestTemplate, tls: Tls) -> None:
        self._template = template
        self._tls = tls
        self._before: dict[str, Any] = {}

    def check(self, names: Sequence[str]) -> None:
        """Raises InvalidPlan for a setting that the server does not have. Blocks."""
        known = self._call("config")
        for name in names:
            if name.replace("-", "_") not in known:
                nearest = get_close_matches(name.replace("-", "_"), known, 1)
                meant = f" Did you mean {nearest[0]}?" if nearest else " GET /admin/config lists those that it has."
                raise InvalidPlan(f"--setting {name}: the server has no such setting.{meant}")

    def change(self, settings: Mapping[str, str]) -> None:
        """Raises `Rejected` when the server does not take one of them. Blocks."""
        wanted = {name.replace("-", "_"): _number(value) for name, value in settings.items()}
        if not self._before:
            body = self._call("config")
            self._before = {name: body[name] for name in wanted if name in body}
        self._call("reconfigure", wanted)

    def restore(self) -> None:
        if self._before:
            self._call("reconfigure", self._before)

    def _call(self, route: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        path = f"{self._template.address.root}/admin/{route}"
        answer = asked(self._template, self._tls, path, settings)
        if answer.status == 200 and isinstance(told := answer.json, dict):
            return told
        raise Rejected(
            f"The server does not take these settings while it runs: {refusal(answer)} Only headway has {path}; "
            "for others use --server-command."
        )


def _number(text: str) -> Any:
    """A value as JSON would have it, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


# -- one that is started -----------------------------------------------------------------------------------------------


def check_command(
    template: str,
    names: Sequence[str],
    flag: str = "--server-command",
    what: str = "which no --setting gives values",
) -> None:
    """Raises InvalidPlan unless the command has a place for each setting, and no other; `what` is said of that."""
    try:
        places = {place for _, place, _, _ in string.Formatter().parse(template) if place is not None}
        shlex.split(template)
    except ValueError as error:
        raise InvalidPlan(f"{flag} cannot be read: {error}.") from None
    if missing := [name for name in names if name not in places]:
        raise InvalidPlan(f"{flag} has no place for {', '.join(missing)}: write {{{missing[0]}}} into it.")
    if unknown := sorted(places - set(names)):
        raise InvalidPlan(f"{flag} has {{{unknown[0]}}}, {what}.")


def _private(log: Path) -> BinaryIO:
    """What a server prints is its own, keys included: for nobody else to read."""
    log.touch(mode=0o600)
    return log.open("ab")


def command(template: str, settings: Mapping[str, object]) -> list[str]:
    """The words of the command. A value stays one word, whatever is in it."""
    return [word.format(**settings) for word in shlex.split(template)]


@contextlib.asynccontextmanager
async def started(
    words: Sequence[str], template: RequestTemplate, tls: Tls, log: Path, ready_s: float = READY_S
) -> AsyncIterator[None]:
    """Runs the command until it answers at the address, and ends it with all its children afterwards.

    Raises InvalidPlan when it cannot be run, Unreachable when it ends or does not answer in time.
    """
    if await _answers(template, tls):
        raise InvalidPlan(
            f"{template.address.authority} answers already, before --server-command was run. Stop that server, or "
            "leave the command out."
        )
    with _private(log) as out:
        try:
            # A session of its own: Ctrl-C ends the load first, and the server after it.
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        except OSError as error:
            raise InvalidPlan(f"--server-command: {words[0]} cannot be run: {error.strerror or error}.") from None
    try:
        give_up_s = time.monotonic() + ready_s
        while not await _answers(template, tls):
            if process.returncode is not None:
                raise Unreachable(f"The server's command ended with status {process.returncode}; see {log}.")
            if time.monotonic() > give_up_s:
                raise Unreachable(f"The server did not answer within {ready_s:g} s of its start; see {log}.")
            await asyncio.sleep(LOOK_EVERY_S)
        yield
    finally:
        await _end(process)


async def _answers(template: RequestTemplate, tls: Tls) -> bool:
    """Whether it lists its models: a server that loads one may listen long before."""
    try:
        await reach(template.address, tls.context_for(template.address), ATTEMPT_S)
        answer = await aside(lambda: asked(template, tls, template.address.path("/models")))
        return answer.status not in {404, 502, 503}
    except TlsFailed:
        raise
    except LoadTestError:
        return False


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children that outlived their parent
