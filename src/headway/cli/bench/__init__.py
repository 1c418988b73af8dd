"""`headway bench`: load tests of any server that speaks OpenAI's API. One file per kind of command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.bench.flags import Url, keys_of
from headway.cli.config import with_flags
from headway.loadtest.bench.options import PROFILES

EPILOGUE = (
    "Without a profile it is concurrency. The exit status is the verdict: 0 VALID, 3 CLIENT-LIMITED, 4 SERVER-ERRORS, "
    "5 UNSTEADY, 6 TOO-FEW-SAMPLES; 1 when the test could not be made, 2 when it was asked for wrongly, 130 when it "
    "was interrupted."
)
OTHER = " 1 when it could not be done, 2 when it was asked for wrongly"
# A command that ends otherwise than a run says so itself.
EPILOGUES = {
    "stable": "Exit status: 0 when a load holds and the border is known, 3 when this machine was the limit, 9 when no "
    f"load holds, 10 when the search ended before the border was known;{OTHER}, 130 when it was interrupted.",
    "sweep": "Exit status: 0 when every point was measured, 3 when this client was too slow for one;"
    f"{OTHER}, 130 when it was interrupted.",
    "compare": "Exit status: 0 comparable and no difference beyond noise, 7 comparable and different, 8 not comparable;"
    f"{OTHER}.",
    "report": f"Exit status: 0 when they were shown;{OTHER}.",
}

app = App(name="bench", help_epilogue=EPILOGUE)

TraceFile = Annotated[str, Parameter(help="The trace: Azure's CSV, Mooncake's JSON lines or our own.")]
Saved = Annotated[Path, Parameter(help="A run's JSON file, or the folder that --output made.")]
Html = Annotated[Path | None, Parameter(name="--html", help="File for the report with plots.")]
Varied = Annotated[
    tuple[str, ...],
    Parameter(
        name="--varied",
        negative="",
        show_default=False,
        help="A condition whose effect is the question, such as framework; may be repeated.",
    ),
]
Rivals = Annotated[
    tuple[str, ...],
    Parameter(
        name="--as", negative="", show_default=False, help="aiperf, guidellm or vllm, where the run was made with it."
    ),
]


def _profile(name: str) -> Callable[..., int]:
    def command(url: Url, /, **settings: Any) -> int:
        from headway.cli.bench.run import run_profile

        return run_profile(name, url, settings)

    command.__doc__ = PROFILES[name].__doc__
    with_flags(command, keys_of(name))
    return command


def _trace(url: Url, file: TraceFile, /, **settings: Any) -> int:
    from headway.cli.bench.run import run_profile

    return run_profile("trace", url, {**settings, "file": file})


def _stable(url: Url, /, **settings: Any) -> int:
    """Find the highest load that keeps every promise, with bounded errors and memory to spare."""
    from headway.cli.bench.several import run_stable

    return run_stable(url, settings)


def _sweep(url: Url, /, **settings: Any) -> int:
    """Measure a grid of loads, or of the server's settings. One that was broken off goes on in its folder."""
    from headway.cli.bench.several import run_sweep

    return run_sweep(url, settings)


def _compare(a: Saved, b: Saved, /, *, varied: Varied = (), html: Html = None) -> int:
    """Say whether two saved runs are comparable, what differs, and whether by more than noise."""
    from headway.cli.bench.saved import compare_runs

    return compare_runs(a, b, varied, html)


def _report(*runs: Saved, html: Html = None, rivals: Rivals = ()) -> int:
    """Show saved runs again: one as it was at its end; several, or a sweep's folder, as a sweep; a search's folder."""
    from headway.cli.bench.saved import show_runs

    return show_runs(runs, html, rivals)


_trace.__doc__ = PROFILES["trace"].__doc__
with_flags(_trace, keys_of("trace"))
with_flags(_stable, keys_of("stable"))
with_flags(_sweep, keys_of("sweep"))

app.default(_profile("concurrency"))
for _place, _name in enumerate(PROFILES):
    app.command(_trace if _name == "trace" else _profile(_name), name=_name, sort_key=_place)
for _name, _command in (("sweep", _sweep), ("stable", _stable), ("compare", _compare), ("report", _report)):
    app.command(_command, name=_name, sort_key=len(PROFILES), help_epilogue=EPILOGUES[_name])
