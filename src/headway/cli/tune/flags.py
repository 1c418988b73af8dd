"""The flags of `headway tune`: its own, and those of the load test that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from headway.cli.bench.flags import ReportOptions, options, taken
from headway.cli.config import Key, keys
from headway.loadtest.bench.options import (
    Burst,
    ClientOptions,
    Mixed,
    Options,
    PromiseOptions,
    Rate,
    ServerOptions,
    TextOptions,
    Trace,
    WindowOptions,
)
from headway.loadtest.errors import InvalidPlan
from headway.setting import Setting

DURATION_S, DRAIN_S = 60.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a tuning is told besides the load and the promises."""

    local: Annotated[
        str | None,
        Setting(
            "Model to start a server of our own for, which is tuned and ended.", "Server", default="none: give a URL"
        ),
    ] = None
    serve_flags: Annotated[
        str, Setting("Further flags of that server: --serve-flags='--kv-cache-gib 4 --dtype f32'.", "Server")
    ] = ""
    restart_command: Annotated[
        str | None,
        Setting(
            "Command that restarts the server with {max_num_seqs} and {max_num_batched_tokens}, for vLLM and others. "
            "It returns once the server is told to start.",
            "Server",
            default="none: flags are printed",
        ),
    ] = None
    restart_timeout: Annotated[float, Setting("Seconds that a restart may take.", "Server", 1, 86_400)] = 900.0
    max_num_seqs: Annotated[
        int | None, Setting("What the server has now, where it does not say.", "Server", 1, 1_000_000)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, Setting("What the server has now, where it does not say.", "Server", 1, 10_000_000)
    ] = None
    profile: Annotated[
        Literal["rate", "mix", "burst", "trace"], Setting("How requests come; as `headway bench` has it.", "Profile")
    ] = "rate"
    trace: Annotated[str | None, Setting("The file of the profile trace.", "Profile")] = None
    request_rate: Annotated[
        float | None,
        Setting("Requests per second, of rate and mix.", "Profile", 1e-6, 1e6,
                default="the highest that holds is searched", names=("request-rate", "rate")),
    ] = None  # fmt: skip
    good: Annotated[
        float,
        Setting("Share of the requests that must keep every promise at the highest load.", "Search", 0.01, 0.9999),
    ] = 0.95
    live_tests: Annotated[int, Setting("Most load tests of the real server.", "Search", 2, 100)] = 5
    probe: Annotated[float, Setting("Seconds of the probing load that the server is fitted to.", "Search", 2, 3600)] = (
        24.0
    )
    fit: Annotated[
        str | None, Setting("File of `headway fit` to go by.", "Search", default="none: a probing load is made")
    ] = None
    step_log: Annotated[
        str | None, Setting("The server's step log, readable here.", "Search", default="where the server says it is")
    ] = None
    keep: Annotated[bool, Setting("Let the server go on with the winner.", "Search")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Where the result goes."""

    json: Annotated[str | None, Setting("File for the result as JSON; - is standard output.", "Report")] = None
    html: Annotated[str | None, Setting("File for the report with plots.", "Report")] = None
    quiet: Annotated[bool, Setting("Show no progress.", "Report", names=("quiet", "disable-tqdm"))] = False


_PROFILES: tuple[type, ...] = (Rate, Mixed, Burst, Trace)
_WITHOUT = frozenset({"file", "concurrency", "percentile", "processes", "drain", "duration", "n"})
_WINDOW = {"duration": f"{DURATION_S:g}; of a trace, all of it"}
_CLIENT = {"drain": f"{DRAIN_S:g}: who is not served by then has not kept its promise"}


def _keys() -> tuple[Key, ...]:
    found: dict[str, Key] = {key.field: key for key in (*keys(TuneOptions), *keys(ResultOptions))}
    for part in (*_PROFILES, WindowOptions, PromiseOptions, TextOptions, ServerOptions, ClientOptions):
        for key in keys(part):
            told = {**_WINDOW, **_CLIENT}.get(key.field)
            if told is not None:
                found[key.field] = replace(key, setting=replace(key.setting, default=told))
            elif key.field not in _WITHOUT:
                found.setdefault(key.field, key)
    return tuple(found.values())


KEYS = _keys()


def profile_of(mine: TuneOptions, settings: Mapping[str, Any]) -> Rate | Mixed | Burst | Trace:
    """The load. Raises `InvalidPlan`."""
    if (mine.profile == "trace") != (mine.trace is not None):
        raise InvalidPlan("--profile trace and --trace FILE belong together.")
    given = dict(settings)
    if mine.request_rate is None:
        given.pop("request_rate", None)
    if mine.profile == "trace":
        return taken(Trace, {**given, "file": mine.trace})
    kinds: dict[str, type[Rate | Mixed | Burst]] = {"rate": Rate, "mix": Mixed, "burst": Burst}
    given.pop("concurrency", None)
    return taken(kinds[mine.profile], given)


def options_of(mine: TuneOptions, settings: dict[str, Any], url: str | None) -> Options:
    """As the load tester takes them: a test of a minute, and little patience afterwards."""
    if mine.profile != "trace" and settings.get("duration") is None and settings.get("requests") is None:
        settings["duration"] = DURATION_S
    if settings.get("drain") is None:
        settings["drain"] = DRAIN_S
    return options(settings, ReportOptions(), url)
