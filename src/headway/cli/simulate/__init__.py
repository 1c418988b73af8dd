"""`headway simulate`: what a load would meet at a service that need not exist. One command per profile of a load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.bench import TraceFile
from headway.cli.config import with_flags
from headway.cli.simulate.flags import keys_of
from headway.loadtest.bench.options import PROFILES

EPILOGUE = (
    "Without a profile it is concurrency. The report is that of `headway bench`, and so is the exit status: 0 VALID, "
    "4 SERVER-ERRORS, 5 UNSTEADY, 6 TOO-FEW-SAMPLES; 1 when it could not be simulated, 2 when it was asked for wrongly."
)
ConfigPath = Annotated[
    Path | None,
    Parameter(help="TOML file of `headway serve`: its keys and its [[tenant]] tables hold here as well. Flags win."),
]

app = App(name="simulate", help_epilogue=EPILOGUE)


def _profile(name: str) -> Callable[..., int]:
    def command(*, config: ConfigPath = None, **settings: Any) -> int:
        from headway.cli.simulate.run import simulate_profile

        return simulate_profile(name, config, settings)

    command.__doc__ = PROFILES[name].__doc__
    with_flags(command, keys_of(name))
    return command


def _trace(file: TraceFile, /, *, config: ConfigPath = None, **settings: Any) -> int:
    from headway.cli.simulate.run import simulate_profile

    return simulate_profile("trace", config, {**settings, "file": file})


def _default(*, config: ConfigPath = None, **settings: Any) -> int:
    """Predict what a load meets: the code that decides in the server, on virtual time, with steps as a fit says."""
    from headway.cli.simulate.run import simulate_profile

    return simulate_profile("concurrency", config, settings)


_trace.__doc__ = PROFILES["trace"].__doc__
with_flags(_trace, keys_of("trace"))
app.default(with_flags(_default, keys_of("")))
for _place, _name in enumerate(PROFILES):
    app.command(_trace if _name == "trace" else _profile(_name), name=_name, sort_key=_place)
