"""What searches and sweeps share: a folder that knows what was asked, so that one that was broken off goes on in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from headway.loadtest.bench.options import Options, Profile, name_of
from headway.loadtest.bench.outputs import new_folder, write_bytes
from headway.loadtest.bench.tester import OnProgress
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.redact import MASK, Redactor, is_secret_name, kept_text
from headway.loadtest.report.json_file import AGAIN, ReportError
from headway.loadtest.result import Load

VERSION = 3  # changes with the meaning of what is kept: figures of two meanings are not put side by side
# Where nothing about a figure changes, another value may be given when a sweep goes on.
FREE = frozenset({"api_key", "header", "tenant_key", "insecure", "ca"})

_SAID_FIRST = frozenset({"profile", "url", "vary"})

ASKING = "asking the server…"


@dataclass(frozen=True, slots=True)
class Audience:
    """Who sees how a sweep or a search goes on."""

    # Called with what is measured next, in words, and its load; gives what is told of progress meanwhile.
    watch: Callable[[str, Load], AbstractContextManager[OnProgress | None]]
    # Called with what is waited for, and entered for as long as that takes.
    wait: Callable[[str], AbstractContextManager[None]]
    warn: Callable[[str], None]  # called with what is odd and stops nothing
    # Called with what is good to know before it begins: how long it may last, where it is kept.
    tell: Callable[[str], None] = lambda _: None


def unreadable(error: ReportError) -> str:
    """Why a kept result cannot be read, without the advice: it does not end what it is part of."""
    return str(error).removesuffix(AGAIN).rstrip()


class Manifest(msgspec.Struct):
    """What was asked, by names of settings."""

    version: int
    kind: str
    asked: dict[str, str]


class Folder:
    """Raises InvalidPlan when it holds something else than was asked."""

    def __init__(self, path: Path, kind: str, asked: Mapping[str, str]) -> None:
        self.path = path
        new_folder(path)
        manifest = self._manifest = path / f"{kind}.manifest.json"
        self._made = not manifest.exists()
        if not self._made:
            self._check(manifest, kind, asked)
        elif any(path.glob("*.json")):
            raise InvalidPlan(f"{path} holds other results. Give another --output, or an empty folder.")
        else:
            write_bytes(manifest, msgspec.json.format(msgspec.json.encode(Manifest(VERSION, kind, dict(asked)))))

    @classmethod
    def usual(cls, path: Path, kind: str, asked: Mapping[str, str]) -> Folder:
        """Where nobody named one: `path`, or where that holds something else `path`-2, `path`-3, …"""
        for number in count(1):
            mine = path if number == 1 else path.with_name(f"{path.name}-{number}")
            if not mine.exists():
                break
            with suppress(InvalidPlan):
                return cls(mine, kind, asked)
        return cls(mine, kind, asked)

    def leave(self) -> None:
        """Nothing could be measured: what was made here would only be in the way of what is asked next."""
        if self._made:
            with suppress(OSError):
                self._manifest.unlink()
                self.path.rmdir()  # unless something is in it

    def _check(self, manifest: Path, kind: str, asked: Mapping[str, str]) -> None:
        try:
            before = msgspec.json.decode(manifest.read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise InvalidPlan(f"{manifest} cannot be read: {error}. Give another --output.") from None
        if before.version != VERSION:
            raise InvalidPlan(f"{manifest} is of another version of headway. Give another --output.")
        names = sorted(
            (name for name in before.asked.keys() | asked.keys() if before.asked.get(name) != asked.get(name)),
            key=lambda name: (name not in _SAID_FIRST, name),
        )
        if "profile" in names:  # whose settings differ as well, which explains nothing
            names = [name for name in names if name in before.asked and name in asked]
        if names:
            changed = "; ".join(_changed(name, before.asked.get(name), asked.get(name)) for name in names[:5])
            raise InvalidPlan(f"{self.path} is of another {kind}: {changed}. Give another --output, or ask the same.")


def _changed(name: str, was: str | None, now: str | None) -> str:
    given = (was or "not given", now or "not given")
    if any(MASK in value for value in given):
        return f"{name} is another, or a key in it"
    return f"{name} was {given[0]} and is {given[1]}"


def asked_facts(
    url: str, profile: Profile, options: Options, further: Mapping[str, object], redactor: Redactor
) -> dict[str, str]:
    """Everything that decides what is measured, fit to be written to a file. `redactor`: knows the keys in it."""
    facts: dict[str, object] = {"url": url, "profile": name_of(profile)}
    parts = (profile, options.server, options.window, options.promise, options.text, options.client)
    for part in parts:
        facts |= {name: value for name, value in _fields(part).items() if name not in FREE}
    facts |= {f"note {name}": value for name, value in options.noted} | dict(further)
    return {
        name: kept_text(str(value), redactor, secret=is_secret_name(name))
        for name, value in facts.items()
        if value not in (None, (), "")
    }


def _fields(part: Any) -> dict[str, object]:
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
