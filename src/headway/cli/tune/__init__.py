"""`headway tune`: find the settings inside the promise, and prove them with live tests."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.config import with_flags
from headway.cli.tune.flags import KEYS

EPILOGUE = (
    "Exit status: 0 when it came to its end, whether or not anything was better; 1 when it failed, and the report says "
    "how far it came; 2 when it was asked for wrongly, such as for a promise that nothing can keep; 130 when it was "
    "interrupted. Unless it ended with a winner, the server has its old settings again."
)

app = App(name="tune", help_epilogue=EPILOGUE)

Url = Annotated[
    str | None,
    Parameter(
        help="The server, such as http://localhost:8000; /v1 is added where no path is given.", show_default=False
    ),
]


@app.default
def tune(url: Url = None, /, **settings: Any) -> int:
    """Search max_num_seqs × max_num_batched_tokens for a live server, test the best under load, and keep the winner."""
    from headway.cli.tune.run import run_tune

    return run_tune(url, settings)


with_flags(tune, KEYS)
