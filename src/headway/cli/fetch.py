"""`headway fetch`: bring a model onto this machine, checked and ready to serve."""

from __future__ import annotations

from cyclopts import App

from headway.cli.config import DEFAULT_MODEL, Model

app = App(name="fetch")


@app.default
def fetch(model: Model = DEFAULT_MODEL, /) -> None:
    """Fetch and check a model, so that serving it needs no network."""
    from headway.cli.progress import shown_progress
    from headway.models import load_model

    with shown_progress() as report:
        loaded = load_model(model, report=report)
    print(f"{loaded.name} is ready in {loaded.directory}")
