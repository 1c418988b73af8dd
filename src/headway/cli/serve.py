"""`headway serve`: a model behind OpenAI's API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.config import MODEL_KEY, SERVE_KEYS, Model, serve_config, with_flags
from headway.cli.config_file import apply_config_file
from headway.models import DEFAULT_MODEL

ConfigPath = Annotated[
    Path | None, Parameter(help="TOML file; its keys are `model` and the names of these flags. Flags win.")
]


def serve(model: Model = DEFAULT_MODEL, /, *, config: ConfigPath = None, **settings: Any) -> None:
    """Serve a model behind OpenAI's API. SIGTERM or Ctrl-C finishes what runs, a second one stops at once."""
    del config  # read before this runs: what it says is in `settings` already
    checked = serve_config(settings)
    from headway.cli.interrupt import ends_at_once

    with ends_at_once("starting"):  # until `run_server` is ready to end in order
        from headway.cli.server import run_server

        run_server(model, checked)


app = App(name="serve", config=apply_config_file((MODEL_KEY, *SERVE_KEYS)))
app.default(with_flags(serve, SERVE_KEYS))
