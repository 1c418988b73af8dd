"""The server that is tuned: what it has, and how it is given something else. Everything here blocks.

`Admin`: our own engine, changed while it serves. `Command`: any server, restarted by a command of the user's.
`Fixed`: nothing can be changed; settings are only advised.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from headway.loadtest.bench import server
from headway.loadtest.client.address import Tls
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import InvalidPlan, LoadTestError, Rejected, Unreachable
from headway.loadtest.side.channel import ASK_S, Answer, asked, refusal
from headway.loadtest.side.models import Card, read_models
from headway.tune.settings import Settings

PROBE_S = 3.0
LOOK_EVERY_S = 0.5
# Where the probing load finds our own engine: every kind of step is to be seen, and none made smaller by a promise.
WIDE: Mapping[str, Any] = {
    "max_num_seqs": 64, "max_num_batched_tokens": 1024, "long_prompt_slots": 64, "long_output_slots": 64,
    "slo_ttft": 0.0, "slo_itl": 0.0, "ttft_limit": 0.0,
}  # fmt: skip


class NotRestored(LoadTestError):
    """The server was left with settings that are not its own."""


class Target(Protocol):
    """`kind` names its flags. `changes`: whether it can be given other settings. `config`: all that it told."""

    kind: str
    changes: bool
    current: Settings | None
    config: Mapping[str, Any]

    def widen(self) -> Mapping[str, Any]:
        """Make room for the probing load, where that can be done. Returns the configuration that it meets."""

    def apply(self, settings: Settings) -> None:
        """Serve with these from now on. Raises `LoadTestError`."""

    def restore(self) -> None:
        """Serve as it was found, if anything was changed. Raises `NotRestored`."""

    def answers(self) -> bool:
        """Whether it is still there."""


class Http:
    """Small questions to the server that is tested."""

    def __init__(self, template: RequestTemplate, tls: Tls) -> None:
        self._template, self._tls = template, tls
        self.where = template.address.authority
        self.root = template.address.root

    def call(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = ASK_S) -> Answer:
        """GET, or POST of `body`. Raises `Unreachable`."""
        return asked(self._template, self._tls, path, body, timeout_s)

    def models(self, timeout_s: float = ASK_S) -> tuple[Card, ...]:
        """Those it lists. Raises `Unreachable`."""
        return read_models(self.call(self._template.address.path("/models"), timeout_s=timeout_s).json)

    def answers(self) -> bool:
        """Whether it lists a model."""
        try:
            return bool(self.models(PROBE_S))
        except Unreachable:
            return False


@dataclass(slots=True)
class Admin:
    """An engine of ours. Only what is set here is put back."""

    http: Http
    config: Mapping[str, Any]
    kind: str = "headway"
    changes: bool = True
    current: Settings | None = field(init=False)
    _touched: bool = False

    def __post_init__(self) -> None:
        self.current = Settings.of(self.config)

    def widen(self) -> Mapping[str, Any]:
        """See `Target`."""
        return self._set(WIDE)

    def apply(self, settings: Settings) -> None:
        """See `Target`. Promises are the requests' own from here on, and the server's for those that say nothing."""
        self._set({**self._own, **settings.fields})

    def restore(self) -> None:
        """See `Target`."""
        if not self._touched:
            return
        try:
            told = self._set(self._own)
        except LoadTestError as error:
            raise NotRestored(f"The old settings could not be put back ({self._words}): {error}") from None
        differ = [name for name, value in self._own.items() if told.get(name) != value]
        if differ:
            raise NotRestored(f"The server answers that it has not put {', '.join(differ)} back ({self._words}).")
        self._touched = False

    def answers(self) -> bool:
        """See `Target`."""
        return self.http.answers()

    @property
    def _own(self) -> dict[str, Any]:
        return {name: self.config[name] for name in WIDE if name in self.config}

    @property
    def _words(self) -> str:
        shown = {name: value for name, value in self._own.items() if value is not None}
        return f"POST {msgspec.json.encode(shown).decode()} to {self.http.where}{self.http.root}/admin/reconfigure"

    def _set(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        self._touched = True
        answer = self.http.call(f"{self.http.root}/admin/reconfigure", settings)
        told = answer.json
        if answer.status == 200 and isinstance(told, dict):
            return told
        raise Rejected(f"{self.http.where} does not take these settings: {refusal(answer)}")


@dataclass(slots=True)
class Command:
    """A server that a command restarts. `template` has a place for each limit: {max_num_seqs}."""

    http: Http
    template: str
    current: Settings | None
    kind: str
    ready_s: float
    config: Mapping[str, Any] = field(default_factory=dict)
    changes: bool = True
    _has: Settings | None = None

    def __post_init__(self) -> None:
        self._has = self.current

    def widen(self) -> Mapping[str, Any]:
        """A restart takes minutes of the user's; the probing load takes the server as it is."""
        return _with(self.config, self.current)

    def apply(self, settings: Settings) -> None:
        """See `Target`."""
        if settings == self._has:
            return
        self._has = None
        words = server.command(self.template, settings.given)
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.ready_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise Rejected(
                f"--restart-command ran for {self.ready_s:g} s and had not ended: it is to return once the server is "
                "told to start, as `systemctl restart` does."
            ) from None
        except OSError as error:
            raise InvalidPlan(f"--restart-command: {words[0]} cannot be run: {error.strerror or error}.") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
            raise Rejected(f"--restart-command ended with {done.returncode}: {said or 'it said nothing'}")
        self._wait()
        self._has = settings

    def restore(self) -> None:
        """See `Target`."""
        if self.current is None or self._has == self.current:
            return
        try:
            self.apply(self.current)
        except LoadTestError as error:
            words = shlex.join(server.command(self.template, self.current.given))
            raise NotRestored(f"The old settings could not be put back (run {words}): {error}") from None

    def answers(self) -> bool:
        """See `Target`."""
        return self.http.answers()

    def _wait(self) -> None:
        give_up_s = time.monotonic() + self.ready_s
        while not self.http.answers():
            if time.monotonic() > give_up_s:
                raise Unreachable(f"{self.http.where} did not answer within {self.ready_s:g} s of its restart.")
            time.sleep(LOOK_EVERY_S)


@dataclass(slots=True)
class Fixed:
    """A server that is only measured."""

    http: Http
    current: Settings | None
    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    changes: bool = False

    def widen(self) -> Mapping[str, Any]:
        """It stays as it is."""
        return _with(self.config, self.current)

    def apply(self, settings: Settings) -> None:
        """Only what it has can be tested."""
        if settings != self.current:
            raise Rejected(f"{settings.label}: this server cannot be changed from here.")

    def restore(self) -> None:
        """Nothing was changed."""

    def answers(self) -> bool:
        """See `Target`."""
        return self.http.answers()


def find_target(http: Http, restart: str | None, given: Settings | None, ready_s: float) -> Target:
    """What can be done with this server. `given`: its settings, where it does not tell them itself.

    Raises `LoadTestError`: it must be one of these and is none, or its settings cannot be read.
    """
    kind = _kind(http)
    if restart is not None:
        check_command(restart)
        current = given or _told(http)
        if current is None:
            raise InvalidPlan(
                f"{http.where} does not tell its settings, and they are to be put back at the end: give what it has "
                "now with --max-num-seqs and --max-num-batched-tokens."
            )
        return Command(http, restart, current, kind, ready_s)
    if kind != "headway":
        return Fixed(http, given, kind)
    answer = http.call(f"{http.root}/admin/config")
    if answer.status == 200 and isinstance(answer.json, dict) and Settings.of(answer.json) is not None:
        return Admin(http, answer.json)
    if http.call(f"{http.root}/admin/workers").status == 200:
        raise InvalidPlan(
            f"{http.where} is a gateway: its workers have the limits. Tune one of them at its own address."
        )
    raise Rejected(
        f"{http.where} does not let its settings be read: {refusal(answer)} Run tune on the server's own machine and "
        "at its own address, or give --restart-command."
    )


def check_command(template: str) -> None:
    """Raises `InvalidPlan` unless it has a place for both limits, and no other."""
    what = "and only {max_num_seqs} and {max_num_batched_tokens} are given values"
    server.check_command(template, ("max_num_seqs", "max_num_batched_tokens"), "--restart-command", what)


def _kind(http: Http) -> str:
    """What the list of models says, or our own routes."""
    owners = {card.owner.lower() for card in http.models()}
    for kind in ("headway", "vllm", "sglang"):
        if kind in owners:
            return kind
    admin = http.call(f"{http.root}/admin/config")
    return "headway" if admin.status in (200, 403) and "json" in admin.kind else "other"


def _told(http: Http) -> Settings | None:
    """By a route that some servers have."""
    for path in ("/admin/config", "/load", "/get_server_info"):
        answer = http.call(f"{http.root}{path}")
        if answer.status == 200 and isinstance(answer.json, dict) and (found := Settings.of(_ours(answer.json))):
            return found
    return None


def _ours(told: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang's names as ours."""
    other = {"max_running_requests": "max_num_seqs", "chunked_prefill_size": "max_num_batched_tokens"}
    return {**{other[name]: value for name, value in told.items() if name in other}, **told}


def _with(config: Mapping[str, Any], current: Settings | None) -> dict[str, Any]:
    return {**config, **(current.given if current is not None else {})}
