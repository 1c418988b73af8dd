"""The flags of `headway bench`: those of the options' fields, and what only a command line knows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from headway.cli.config import Key, keys
from headway.loadtest.bench.options import (
    PROFILES,
    ClientOptions,
    Options,
    PromiseOptions,
    ServerOptions,
    TextOptions,
    WindowOptions,
)
from headway.loadtest.errors import InvalidPlan
from headway.setting import Setting

if TYPE_CHECKING:
    from headway.loadtest.bench.files import Files

Url = Annotated[str, Parameter(help="The server, such as http://localhost:8000; /v1 is added where no path is given.")]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Where results go and how they are told."""

    output: Annotated[str | None, Setting("Folder for all files: run.json, run.csv and run.html.", "Report")] = None
    json: Annotated[str | None, Setting("File for the run as JSON; - prints it.", "Report")] = None
    csv: Annotated[str | None, Setting("File for a line a request.", "Report")] = None
    html: Annotated[str | None, Setting("File for the report with plots.", "Report")] = None
    rivals: Annotated[
        tuple[Literal["aiperf", "guidellm", "vllm"], ...],
        Setting("Tell figures by another tool's definitions as well; may be repeated.", "Report", names=("as",)),
    ] = ()
    note: Annotated[
        tuple[str, ...],
        Setting("What the server does not tell, as NAME=VALUE: gpu=H100; may be repeated.", "Report"),
    ] = ()
    quiet: Annotated[bool, Setting("Show no progress.", "Report", names=("quiet", "disable-tqdm"))] = False

    def files(self) -> Files:
        """Raises InvalidPlan where they cannot be written, or would overwrite a run."""
        from headway.loadtest.bench.files import Files, in_folder

        usual = in_folder(Path(self.output)) if self.output else Files()
        files = replace(
            usual,
            json=Path(self.json) if self.json else usual.json,
            csv=Path(self.csv) if self.csv else usual.csv,
            html=Path(self.html) if self.html else usual.html,
        )
        files.check()
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How the stable region is searched for."""

    by: Annotated[
        Literal["rate", "concurrency"], Setting("What is raised: requests per second, or requests at a time.", "Search")
    ] = "rate"
    start: Annotated[float, Setting("The first load tried.", "Search", 0.001, 1e6)] = 1.0
    highest: Annotated[float, Setting("The highest that is tried.", "Search", 0.001, 1e6)] = 10_000.0
    lowest: Annotated[float, Setting("The lowest that is tried.", "Search", 0.001, 1e6)] = 0.01
    tolerance: Annotated[float, Setting("How narrow the border is searched, as a share.", "Search", 0.001, 0.9)] = 0.03
    window: Annotated[float, Setting("Seconds that are measured at each load.", "Search", 0.5, 86_400)] = 60.0
    sustain: Annotated[float, Setting("Windows on end for which the answer must hold.", "Search", 1, 1000)] = 3.0
    repeats: Annotated[int, Setting("Most probes of one load while it is undecided.", "Search", 1, 100)] = 3
    most_probes: Annotated[int, Setting("End the search after so many.", "Search", 1, 10_000)] = 60
    good: Annotated[float, Setting("Share of all requests that must keep every promise.", "Search", 0.01, 0.9999)] = (
        0.99
    )
    max_errors: Annotated[float, Setting("Share of all requests that may fail.", "Search", 0, 1)] = 0.01
    max_kv: Annotated[float, Setting("Share of the KV cache that may be used, at its p95.", "Search", 0.01, 1)] = 0.9
    max_preempted: Annotated[float, Setting("Preemptions to a request, at most.", "Search", 0, 1000)] = 0.01
    burstiness: Annotated[
        float, Setting("Of the arrivals: 1 is Poisson, less is burstier, more is more even.", "Search", 1e-3, 1e6)
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """What a sweep varies."""

    profile: Annotated[
        Literal["concurrency", "rate", "ramp", "mix", "long-context", "long-output", "burst", "trace"],
        Setting("The profile of every point.", "Grid"),
    ] = "concurrency"
    vary: Annotated[
        tuple[str, ...],
        Setting("A flag of the profile or of prompts and its values, as concurrency=1,2,4; one value fixes it; may be "
                "repeated: every combination is measured.", "Grid", default="concurrency=1,2,4,8,16,32 or a few rates"),
    ] = ()  # fmt: skip
    setting: Annotated[
        tuple[str, ...],
        Setting("A setting of the server and its values, as max_num_seqs=8,16; changed by /admin/reconfigure, or with "
                "--server-command by a restart; may be repeated.", "Grid"),
    ] = ()  # fmt: skip
    server_command: Annotated[
        str | None,
        Setting("Command that starts the server, with {name} for each --setting; it is ended afterwards.", "Grid"),
    ] = None
    server_timeout: Annotated[
        float, Setting("Seconds that the server may take to answer after its start.", "Grid", 1, 86_400)
    ] = 600.0
    trace: Annotated[str | None, Setting("The file of the profile trace.", "Grid")] = None


PROFILE_KEYS: dict[str, tuple[Key, ...]] = {name: tuple(keys(kind)) for name, kind in PROFILES.items()}
REPORT_KEYS = tuple(keys(ReportOptions))
_PARTS: tuple[tuple[str, type], ...] = (
    ("server", ServerOptions),
    ("window", WindowOptions),
    ("promise", PromiseOptions),
    ("text", TextOptions),
    ("client", ClientOptions),
)
OPTION_KEYS = tuple(key for _, kind in _PARTS for key in keys(kind))
# What means nothing to a command, or is refused by it, is no flag of it.
NOT_OF = {
    "mix": ("input_len", "output_len"),
    "trace": (
        "input_len", "output_len", "shared_prefix_tokens", "shared_prefix_groups", "shared_prefix_share",
    ),
    "stable": ("duration", "requests", "percentile", "json", "csv"),
    "sweep": ("json", "csv"),
}  # fmt: skip
# What is left out at both ends, where it is not what it is for most.
_WHOLE = {
    "warmup": "none: it counts from its first second",
    "cooldown": "none: it counts to its end",
}
DEFAULTS_OF = {
    "burst": {**_WHOLE, "duration": "three periods, and the calm after them"},
    "ramp": {**_WHOLE, "duration": "120"},
    "trace": {**_WHOLE, "duration": "the whole trace"},
    "stable": {
        "warmup": "of each probe a third of --window, at most 10",
        "cooldown": "of each probe a tenth of --window, at most 2",
    },
}
SEARCH_KEYS = tuple(keys(SearchOptions))
GRID_KEYS = tuple(keys(GridOptions))


def keys_of(command: str) -> tuple[Key, ...]:
    """All flags of a command that measures."""
    own = {"stable": SEARCH_KEYS, "sweep": GRID_KEYS}.get(command) or PROFILE_KEYS[command]
    mine = (key for key in (*own, *OPTION_KEYS, *REPORT_KEYS) if key.field not in NOT_OF.get(command, ()))
    shown = DEFAULTS_OF.get(command, {})
    return tuple(
        replace(key, setting=replace(key.setting, default=shown[key.field])) if key.field in shown else key
        for key in mine
    )


def taken(kind: type[T], settings: dict[str, Any]) -> T:
    """A dataclass from those settings that are its fields."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # they are dataclasses
    return kind(**{name: settings[name] for name in settings.keys() & names})


def options(settings: dict[str, Any], report: ReportOptions, url: str | None = None) -> Options:
    """From flat values by field name. `url`: of the server; it is sent the environment's key where no flag gave one."""
    _check_text(settings)
    headers = settings.get("header") or ()
    given = settings.get("api_key") or any(text.lower().startswith("authorization") for text in headers)
    if url is not None and not given:
        from headway.cli.key import key_of_environment

        settings["api_key"] = key_of_environment(url)
    return Options(
        **{name: taken(kind, settings) for name, kind in _PARTS},
        noted=tuple(map(_noted, report.note)),
        rivals=tuple(dict.fromkeys(report.rivals)),
    )


def _check_text(settings: dict[str, Any]) -> None:
    """A shell passes bytes on that are no text; a report could not hold them. They may be a key, so are not shown."""
    for name, value in settings.items():
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise InvalidPlan(f"--{name.replace('_', '-')} is not UTF-8 text.") from None


def _noted(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidPlan(f"--note takes NAME=VALUE, such as gpu=H100, not {text!r}.")
    return name.strip(), value.strip()
