"""`headway fetch`: bring a model onto this machine, checked and ready to serve."""

from __future__ import annotations

import shlex
from typing import Annotated

from cyclopts import App, Parameter

from headway.cli.config import Model
from headway.models import DEFAULT_MODEL

app = App(name="fetch")


PrintPath = Annotated[
    bool, Parameter(negative="", show_default=False, help="Print the folder of what was made, and nothing else.")
]


@app.default
def fetch(model: Model = DEFAULT_MODEL, /, *, print_path: PrintPath = False) -> None:
    """Fetch and check a model, so that serving it needs no network."""
    from headway.cli.progress import shown_progress
    from headway.models import load_model

    with shown_progress("fetching") as report:
        loaded = load_model(model, report=report)
    print(loaded.directory if print_path else f"{loaded.name} is ready: headway serve {shlex.quote(model)}")
