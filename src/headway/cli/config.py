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

from headway.core.batch.hours import Hours
from headway.core.errors import ConfigError
from headway.core.front.ladder import Level, Mode
from headway.core.front.replicas import ReplicaLimits
from headway.engine.config import EngineConfig
from headway.models import DEFAULT_MODEL
from headway.setting import Setting
from headway.workers.quota_url import check_url

T = TypeVar("T")

Model = Annotated[str, Parameter(help="A model name, a .gguf file, an OpenVINO IR folder or a Hugging Face repo id.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The server around an engine, and the engine."""

    goal: Annotated[
        Literal["chat", "throughput", "offline", "long-docs", "multi-tenant"] | None,
        Setting(
            "Begin with settings for this purpose; flags and the file overrule them. --print-config shows them.",
            "Goal",
            default="none",
        ),
    ] = None
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
    metrics_names: Annotated[
        Literal["headway", "vllm"],
        Setting("Names at /metrics: ours alone, or vLLM's as well, for dashboards that were made for it.", "Network"),
    ] = "headway"
    worker: Annotated[
        tuple[str, ...],
        Setting(
            "URL of a server to send requests to; may be repeated. A model that is named is served as well.", "Fleet"
        ),
    ] = ()
    local_workers: Annotated[
        int,
        Setting(
            "Engines to start as processes of their own and put a gateway before, sharing the cores.", "Fleet", 0, 256
        ),
    ] = 0
    api_keys: Annotated[
        str | None, Setting("File of the tenants' API keys; see `headway keys`.", "Fleet", default="no keys")
    ] = None
    allow_anonymous: Annotated[
        bool, Setting("Let in who has no API key, also from other machines, as one tenant.", "Fleet")
    ] = False
    quota_store: Annotated[
        str | None,
        Setting(
            "Share tenants' limits with other gateways through this Redis: redis://HOST:PORT/DATABASE. Its password "
            "may be in HEADWAY_QUOTA_PASSWORD.",
            "Fleet",
            default="each gateway counts for itself",
        ),
    ] = None
    quota_loss: Annotated[
        Literal["closed", "share"],
        Setting("While that store is lost: refuse tenants that have limits, or grant an even share of each.", "Fleet"),
    ] = "closed"
    quota_lease: Annotated[
        float, Setting("Seconds after which the slots of a killed gateway are given to others.", "Fleet", 1, 60)
    ] = 5.0
    max_running: Annotated[
        int, Setting("Most requests on all workers together; 0 leaves it to their windows.", "Fleet", 0)
    ] = 0
    kv_claim_ratio: Annotated[
        float,
        Setting("How much of the workers' KV the requests inside may need at worst; 0 is no limit.", "Fleet", 0, 100),
    ] = 0.0
    overlong: Annotated[
        Literal["reject", "async", "trim"],
        Setting("A chat that is too long: refuse it, answer it later from --store, or drop its oldest turns.", "Fleet"),
    ] = "reject"
    overlong_tokens: Annotated[
        int,
        Setting("Longest prompt of a request that somebody waits for; 0 leaves that to --max-model-len.", "Fleet", 0),
    ] = 0
    ladder: Annotated[
        tuple[str, ...],
        Setting(
            "What to do with a level of degradation under overload: LEVEL=on, off or auto; may be repeated.", "Fleet"
        ),
    ] = ()
    clamp_output_tokens: Annotated[
        int, Setting("Longest output while the level clamp_output is in force.", "Fleet", 1)
    ] = 256
    short_context_ratio: Annotated[
        float,
        Setting("Of --max-model-len, what is left while the level shorten_context is in force.", "Fleet", 0.01, 1),
    ] = 0.5
    min_replicas: Annotated[int, Setting("Fewest workers ever asked for.", "Fleet", 1, 65_536)] = 1
    max_replicas: Annotated[
        int,
        Setting("Most workers ever asked for, under an overload that nothing else helps; 0 is no limit.", "Fleet", 0),
    ] = 0
    scale_hook: Annotated[
        str | None,
        Setting(
            "Command to run when another number of workers would be right: HEADWAY_REPLICAS_DESIRED says how many.",
            "Fleet",
            default="none",
        ),
    ] = None
    scale_hook_timeout: Annotated[float, Setting("Seconds after which the command is ended.", "Fleet", 0.1, 3600)] = (
        30.0
    )
    shadow: Annotated[
        bool,
        Setting("Decide, write down and count what the limits would do, and do none of it; requests go on.", "Fleet"),
    ] = False
    otel: Annotated[
        bool,
        Setting(
            "Send OpenTelemetry spans and metrics to where OTEL_EXPORTER_OTLP_ENDPOINT says; needs headway[otel].",
            "Network",
        ),
    ] = False
    store: Annotated[
        str | None,
        Setting(
            "Directory for work that is done later: requests with `background`, files and batches.",
            "Background",
            default="none: such requests are refused",
        ),
    ] = None
    store_gib: Annotated[float, Setting("Most that the store may hold, in GiB.", "Background", 0.001, 1 << 20)] = 16.0
    background_limit: Annotated[
        int, Setting("Most requests that wait in the store; one key's tenant may have half.", "Background", 1, 10**7)
    ] = 10_000
    background_timeout: Annotated[
        float,
        Setting("Seconds in which a request of the background must be started; then it fails.", "Background", 1),
    ] = 86_400.0
    background_retention: Annotated[float, Setting("Seconds that its answer is kept.", "Background", 1)] = 86_400.0
    batch_retention: Annotated[
        float, Setting("Seconds that an ended batch and its output files are kept.", "Background", 1)
    ] = 2_592_000.0
    batch_window: Annotated[
        tuple[str, ...],
        Setting(
            "Begin lines of batches only at this time of the day, as 01:00-06:00; may be repeated.",
            "Background",
            default="always",
        ),
    ] = ()
    engine: EngineConfig = dataclasses.field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        ladder_modes(self.ladder)
        batch_hours(self.batch_window)
        if self.quota_store is not None:
            check_url(self.quota_store)
        ReplicaLimits(self.min_replicas, self.max_replicas)


def ladder_modes(said: Sequence[str]) -> dict[Level, Mode]:
    """Every level's mode, `auto` where nothing is said. Raises ConfigError."""
    modes = dict.fromkeys(Level, Mode.AUTO)
    levels, words = {level.name.lower(): level for level in Level}, [mode.value for mode in Mode]
    for one in said:
        name, _, mode = one.partition("=")
        if name not in levels or mode not in words:
            raise ConfigError(
                f"ladder: {one[:80]!r} is no LEVEL=MODE: levels are {', '.join(levels)}; modes {', '.join(words)}.",
                param="ladder",
            )
        modes[levels[name]] = Mode(mode)
    return modes


def batch_hours(spans: tuple[str, ...], *, param: str = "batch_window") -> Hours:
    """Raises ConfigError."""
    try:
        return Hours.parse(spans)
    except ValueError as error:
        raise ConfigError(f"{param.replace('_', '-')}: {error}.", param=param) from None


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

    def typed(self, value: Any) -> Any:
        """A value that was checked, as the configuration holds it: by its own name, and of its own type."""
        if get_origin(self.kind) is tuple:
            return tuple(value)
        if isinstance(value, str):
            return self.aliases.get(value, value)
        return float(value) if self.kind is float else value

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
            "Simulation",
            "Input",  # of `batch`
            *("Goal", "Output", "Network", "Model", "Fleet", "Background", "Concurrency and batching"),
            *("Order and concurrency", "Leaving others their due", "Ray", "Failures"),  # of `batch`
            *("Search", "Grid", "Profile", "Load", "Prompts"),  # of `bench`
            *("Hardware", "Effort"),  # of `plan`
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
    config = ServeConfig(**rest, engine=EngineConfig(**engine))
    if config.overlong == "async" and config.store is None:
        raise ConfigError("--overlong async keeps what is too long for later: give it a --store.", param="overlong")
    return config
