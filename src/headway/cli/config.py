"""`ServeConfig`: everything `headway serve` can be told. Flags and `--config` keys are both made from its fields.

A field's `Setting` holds its meaning and limits; the engine's own are in `engine/config.py`. A flag wins over the
file, the file over the default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import Parameter as Argument
from inspect import signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token, convert

from headway.engine.config import EngineConfig
from headway.models import DEFAULT_MODEL
from headway.setting import Setting

T = TypeVar("T")

Model = Annotated[str, Parameter(help="A model name, a .gguf file, an OpenVINO IR folder or a Hugging Face repo id.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The server around an engine, and the engine."""

    host: Annotated[str, Setting("Address to listen on; 0.0.0.0 is every interface.", "Network")] = "127.0.0.1"
    port: Annotated[int, Setting("Port to listen on; 0 takes a free one.", "Network", 0, 65535)] = 8000
    drain_timeout: Annotated[
        float, Setting("Seconds that running requests get to finish after SIGTERM.", "Network", 0, 86_400)
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Setting("Least severe line to log.", "Network")
    ] = "info"
    served_model_name: Annotated[
        str | None, Setting("Name clients use for the model.", "Model", default="the model's own name")
    ] = None
    generation_config: Annotated[
        Literal["auto", "none"],
        Setting(
            "Sampling where a request says nothing: as the model's makers recommend, or as in OpenAI's API.", "Model"
        ),
    ] = "auto"
    allowed_origins: Annotated[
        str | None,
        Setting(
            "Origins whose web pages may call this server, with commas between; * is any.", "Network", default="none"
        ),
    ] = None
    worker: Annotated[
        tuple[str, ...],
        Setting("URL of a server to send requests to, instead of a model here; may be repeated.", "Fleet"),
    ] = ()
    api_keys: Annotated[
        str | None, Setting("File of the tenants' API keys; see `headway keys`.", "Fleet", default="no keys")
    ] = None
    allow_anonymous: Annotated[
        bool, Setting("Let in who has no API key, also from other machines, as one tenant.", "Fleet")
    ] = False
    max_running: Annotated[
        int, Setting("Most requests on all workers together; 0 leaves it to their windows.", "Fleet", 0)
    ] = 0
    kv_claim_ratio: Annotated[
        float,
        Setting("How much of the workers' KV the requests inside may need at worst; 0 is no limit.", "Fleet", 0, 100),
    ] = 0.0
    overlong: Annotated[
        Literal["reject", "trim"],
        Setting("A chat that is too long: refuse it, or drop its oldest turns.", "Fleet"),
    ] = "reject"
    engine: EngineConfig = dataclasses.field(default_factory=EngineConfig)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting, as flags and TOML keys see it."""

    field: str
    type: Any  # without Annotated
    setting: Setting
    default: Any

    @property
    def name(self) -> str:
        """Of the flag, without its dashes, and of the TOML key."""
        return self.setting.names[0] if self.setting.names else self.field.replace("_", "-")

    @property
    def kind(self) -> Any:
        """Its type when it is given: `None` says only that it may be left out."""
        if get_origin(self.type) not in {Union, UnionType}:
            return self.type
        (kind,) = (kind for kind in get_args(self.type) if kind is not NoneType)
        return kind

    def complaint(self, value: float) -> str | None:
        """What is wrong with a number, fit to follow the setting's name; None when nothing is."""
        if not math.isfinite(value):
            return f"must be a finite number, not {value}"
        try:
            self.setting.check(value)
        except ValueError as error:
            return str(error)
        return None

    @property
    def aliases(self) -> dict[str, Any]:
        """Other names of its choices, as vLLM has them."""
        return {**OTHER_NAMES, "auto": self.default} if self.field in {"dtype", "kv_cache_dtype"} else {}

    def flag(self) -> Argument:
        """The keyword argument that cyclopts makes a flag of."""

        def within(_type: Any, value: Any) -> None:
            if isinstance(value, int | float) and (complaint := self.complaint(value)):
                raise ValueError(f"It {complaint.rpartition(', not ')[0]}.")  # cyclopts says what it is instead

        def convert_alias(kind: Any, tokens: Sequence[Token]) -> Any:
            word = tokens[0].value
            return self.aliases[word] if word in self.aliases else convert(kind, tokens)

        shown = self.setting.default
        unset = self.default is False or self.default == ()
        parameter = Parameter(
            name=[f"--{name}" for name in self.setting.names] or None,
            negative="" if unset else None,
            help=self.setting.help,
            group=GROUPS[self.setting.group],
            validator=within,
            converter=convert_alias if self.aliases else None,
            show_default=(lambda _: shown) if shown else False if unset else None,
        )
        return Argument(
            self.field, Argument.KEYWORD_ONLY, default=self.default, annotation=Annotated[self.type, parameter]
        )


GROUPS = {
    name: Group(name, sort_key=place)
    for place, name in enumerate(
        (
            *("Output", "Network", "Model", "Fleet", "Concurrency and batching"),
            *("Search", "Grid", "Profile", "Load", "Prompts"),  # of `bench`
            *("Promises", "Lanes", "Runtime"),
            *("Server", "Client", "Report"),  # of `bench`
        )
    )
}
OTHER_NAMES = {"bfloat16": "bf16", "float32": "f32", "float": "f32"}
MODEL_KEY = Key("model", str, Setting("The model to serve.", "Model"), DEFAULT_MODEL)


def keys(config: type) -> Iterator[Key]:
    """Every setting of a configuration dataclass, in order of declaration; parts that are dataclasses excluded."""
    hints = get_type_hints(config, include_extras=True)
    for field in dataclasses.fields(config):
        parts = get_args(hints[field.name])
        if parts and isinstance(parts[-1], Setting):
            yield Key(field.name, parts[0], parts[-1], field.default)


def with_flags(command: Callable[..., T], flags: Iterable[Key]) -> Callable[..., T]:
    """`command` with a signature that has a keyword for each of `flags` in place of its `**settings`."""
    shape = signature(command, eval_str=True)
    own = [argument for argument in shape.parameters.values() if argument.kind is not Argument.VAR_KEYWORD]
    shape = shape.replace(parameters=[*own, *(key.flag() for key in flags)])
    command.__signature__ = shape  # type: ignore[attr-defined]  # functions may carry one; mypy does not know
    return command


ENGINE_KEYS = tuple(keys(EngineConfig))
SERVE_KEYS = (*keys(ServeConfig), *ENGINE_KEYS)


def serve_config(settings: dict[str, Any]) -> ServeConfig:
    """A `ServeConfig` from flat values by field name. Raises ConfigError where values do not go together."""
    engine = {key.field: settings[key.field] for key in ENGINE_KEYS if key.field in settings}
    rest = {name: value for name, value in settings.items() if name not in engine}
    return ServeConfig(**rest, engine=EngineConfig(**engine))
