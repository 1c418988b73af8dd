"""`headway serve`: a model behind OpenAI's API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.config import MODEL_KEY, SERVE_KEYS, Model, serve_config, with_flags
from headway.cli.config_file import apply_config_file
from headway.core.errors import ConfigError
from headway.models import DEFAULT_MODEL

ConfigPath = Annotated[
    Path | None, Parameter(help="TOML file; its keys are `model` and the names of these flags. Flags win.")
]


def serve(model: Model = DEFAULT_MODEL, /, *, config: ConfigPath = None, **settings: Any) -> None:
    """Serve a model behind OpenAI's API. SIGTERM or Ctrl-C finishes what runs, a second one stops at once."""
    checked = serve_config(settings)  # what the file says is in them already, but for its tables
    from headway.cli.fleet.tables import FleetTables, read_tables
    from headway.cli.interrupt import ends_at_once

    tables = read_tables(config) if config is not None else FleetTables()
    if checked.worker or tables.workers:
        if model != DEFAULT_MODEL:
            raise ConfigError(
                f"{model} cannot be served beside --worker: serve it on a port of its own, and give that as a worker.",
                param="model",
            )
        from headway.cli.fleet.run import run_gateway

        run_gateway(checked, tables, config)
        return
    for name in ("api_keys", "allow_anonymous"):
        if getattr(checked, name):
            raise ConfigError(f"--{name.replace('_', '-')} is for a gateway: give it a --worker.", param=name)

    with ends_at_once("starting"):  # until `run_server` is ready to end in order
        from headway.cli.server import run_server

        run_server(model, checked)


app = App(name="serve", config=apply_config_file((MODEL_KEY, *SERVE_KEYS)))
app.default(with_flags(serve, SERVE_KEYS))
