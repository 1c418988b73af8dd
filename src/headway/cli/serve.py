"""`headway serve`: a model behind OpenAI's API, or a gateway in front of several servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.config import SERVE_KEYS, with_flags
from headway.cli.layers import Effective, Layers
from headway.core.errors import ConfigError
from headway.models import DEFAULT_MODEL

Model = Annotated[
    str | None,
    Parameter(
        help="A model name, a .gguf file, an OpenVINO IR folder or a Hugging Face repo id.",
        show_default=lambda _: f"{DEFAULT_MODEL}, unless there is a --worker",
    ),
]
ConfigPath = Annotated[
    Path | None, Parameter(help="TOML file; its keys are `model` and the names of these flags. Flags win.")
]
PrintConfig = Annotated[
    bool, Parameter(negative="", show_default=False, help="Print what would hold, as such a file, and serve nothing.")
]


def serve(
    model: Model = None, /, *, config: ConfigPath = None, print_config: PrintConfig = False, **flags: Any
) -> int | None:
    """Serve a model behind OpenAI's API. SIGTERM or Ctrl-C finishes what runs, a second one stops at once."""
    layers = Layers(model, config, flags)  # cyclopts hands over those that were given
    effective = layers.read()
    if print_config:
        from headway.cli.print_config import printed

        print(printed(effective), end="")
        return None
    if effective.is_gateway:
        from headway.cli.fleet.run import run_gateway

        return run_gateway(layers, effective)
    check_engine_alone(effective)
    from headway.cli.interrupt import ends_at_once

    with ends_at_once("starting"):  # until `run_server` is ready to end in order
        from headway.cli.server import run_server

        run_server(layers, effective)
    return None


def check_engine_alone(effective: Effective) -> None:
    """Raises ConfigError for what only a gateway can do."""
    for name in ("api_keys", "allow_anonymous", "scale_hook", "quota_store", "shadow"):
        if getattr(effective.config, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is for a gateway: give it a --worker, or --local-workers 1.", param=name
            )


app = App(name="serve")
app.default(with_flags(serve, SERVE_KEYS))
