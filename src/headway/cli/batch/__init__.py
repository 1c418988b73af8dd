"""`headway batch`: every line of a file gets its answer, once, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from headway.cli.batch.flags import PRICE_KEYS, RESUME_KEYS, RUN_KEYS
from headway.cli.config import with_flags

EPILOGUE = (
    "Exit status: 0 when every item has an answer, 3 when some failed (they are in the errors file), 1 when it stopped "
    "before its end and can be resumed, 2 when it was asked for wrongly, 130 when it was interrupted."
)

app = App(name="batch")

Input = Annotated[
    Path, Parameter(help="JSON lines as for OpenAI's Batch API, lines with a prompt or messages, or a CSV file.")
]
Output = Annotated[Path, Parameter(name=["--output", "-o"], help="File for the answers; others are written beside it.")]
Begun = Annotated[Path, Parameter(help="The output that the batch was begun with.")]
Changed = Annotated[
    bool,
    Parameter(
        name="--allow-changed-input",
        negative="",
        show_default=False,
        help="Go on though the input has changed: changed and new items run, the others keep their answers.",
    ),
]
Classes = Annotated[
    tuple[Literal["limit", "timeout", "oom", "server", "bad_item"], ...],
    Parameter(
        name="--class",
        negative="",
        show_default=False,
        help="Of which failures; may be repeated. All but bad_item where none is given.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="As JSON.")]


def _run(input: Input, /, *, output: Output, **settings: Any) -> int:
    """Answer every line of a file, here or on servers. A run that was killed goes on with `resume`."""
    from headway.cli.batch.run import begin

    return begin(input, output, settings)


def _resume(output: Begun, /, *, allow_changed_input: Changed = False, **settings: Any) -> int:
    """Go on with what is missing. Settings are those of the start, but for the flags given now."""
    from headway.cli.batch.run import go_on

    return go_on(output, settings, allow_changed_input=allow_changed_input)


def _retry(output: Begun, /, *, classes: Classes = (), **settings: Any) -> int:
    """Try again what failed, and go on with what is missing."""
    from headway.cli.batch.run import go_on

    return go_on(output, settings, retry=classes or ("limit", "timeout", "oom", "server"))


def _status(output: Begun, /, *, json: Json = False, **settings: Any) -> int:
    """Say how far a batch is, whether it runs or not."""
    from headway.cli.batch.run import show_status

    return show_status(output, settings, json=json)


with_flags(_run, RUN_KEYS)
with_flags(_resume, RESUME_KEYS)
with_flags(_retry, RESUME_KEYS)
with_flags(_status, PRICE_KEYS)
app.command(_run, name="run", sort_key=1, help_epilogue=EPILOGUE)
app.command(_status, name="status", sort_key=2)
app.command(_resume, name="resume", sort_key=3, help_epilogue=EPILOGUE)
app.command(_retry, name="retry", sort_key=4, help_epilogue=EPILOGUE)
