"""`headway plan`: what some traffic takes to keep a promise: replicas, settings and money, by kind of hardware."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.config import with_flags
from headway.cli.plan.flags import KEYS

EPILOGUE = (
    "Exit status: 0 when some hardware keeps the promise, 9 when none does; 1 when --measure failed, 2 when it was "
    "asked for wrongly, 130 when it was interrupted."
)

app = App(name="plan", help_epilogue=EPILOGUE)

Sources = Annotated[
    str,
    Parameter(
        help="The model (config.json, GGUF file, folder or owner/name), a file that `headway fit` wrote, or both: then "
        "other hardware is judged from what was measured on the fit's."
    ),
]


@app.default
def plan(*sources: Sources, **settings: Any) -> int:
    """Say how many replicas of each hardware keep a promise, with which settings, and what that costs."""
    from headway.cli.plan.run import run_plan

    return run_plan(sources, settings)


with_flags(plan, KEYS)
