"""The flags of `headway batch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, TypeVar

from headway.cli.config import ENGINE_KEYS, Key, batch_hours, keys
from headway.core.batch.dispatch import NS_PER_S, RetryLimits
from headway.core.errors import ConfigError
from headway.engine.config import EngineConfig
from headway.models import DEFAULT_MODEL
from headway.offline.batch import Wanted
from headway.offline.inputs import Format
from headway.offline.intake import Fitting
from headway.offline.job import JobLimits
from headway.offline.summary import Prices
from headway.setting import Setting

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """How lines become requests."""

    column: Annotated[
        str | None, Setting("CSV: the column with the prompt.", "Input", default="the one named prompt")
    ] = None
    template: Annotated[
        str | None, Setting("CSV: the prompt, with {name} where a column's text goes.", "Input", default="none")
    ] = None
    id_column: Annotated[str | None, Setting("CSV: the column with the item's id.", "Input", default="row-LINE")] = None
    chat: Annotated[bool, Setting("Send plain prompts and CSV rows as a chat of one message.", "Input")] = False
    models: Annotated[
        Literal["same", "any", "override"],
        Setting(
            "Lines that name another model than the first: an error, passed on, or every line answered by --model.",
            "Input",
        ),
    ] = "same"
    strict: Annotated[bool, Setting("Look through the whole input first, and begin nothing if a line is wrong.",
                                    "Input")] = False  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """Who runs the items, how many at once, and in which order."""

    model: Annotated[
        str | None,
        Setting("The model: run here, as for `headway serve`; with --url, its name there.", "Model",
                default=f"{DEFAULT_MODEL}; with --url, what the server has"),
    ] = None  # fmt: skip
    url: Annotated[
        tuple[str, ...], Setting("Send the items to this server instead; may be repeated: each is a worker.", "Model")
    ] = ()
    max_output: Annotated[
        int | None, Setting("Most output tokens of any item; lowers what a line asks.", "Output", 1, default="no limit")
    ] = None
    order: Annotated[
        Literal["auto", "input"],
        Setting("auto: items that begin alike together, long ones first; batches of one length where they are static.",
                "Order and concurrency"),
    ] = "auto"  # fmt: skip
    lookahead: Annotated[
        int, Setting("Items that are read ahead to be put in order.", "Order and concurrency", 1, 1_000_000)
    ] = 4096
    concurrency: Annotated[
        int | None,
        Setting("With --url: items at once on each server, always so many.", "Order and concurrency", 1, 100_000,
                default="found out"),
    ] = None  # fmt: skip
    max_concurrency: Annotated[
        int,
        Setting("With --url: most items at once on each server.", "Order and concurrency", 1, 100_000),
    ] = 1024
    window: Annotated[
        tuple[str, ...],
        Setting("Begin items only at this time of the day, as 01:00-06:00 by this machine's clock; may be repeated.",
                "Leaving others their due", default="always"),
    ] = ()  # fmt: skip
    tokens_per_minute: Annotated[
        int | None,
        Setting("Most tokens a minute, of prompts and outputs together.", "Leaving others their due", 1,
                default="no limit"),
    ] = None  # fmt: skip
    protect_ttft: Annotated[
        float | None,
        Setting("With --url: fewer at once as soon as the p95 TTFT that the server measures comes near these seconds.",
                "Leaving others their due", 0.001, 3600, default="not looked at"),
    ] = None  # fmt: skip
    protect_itl: Annotated[
        float | None,
        Setting("The same for the p95 ITL.", "Leaving others their due", 0.001, 3600, default="not looked at"),
    ] = None  # fmt: skip
    on: Annotated[
        Literal["here", "ray"],
        Setting("Run the workers in this process, or as actors of a Ray cluster (headway[ray]).", "Ray"),
    ] = "here"
    ray_address: Annotated[
        str | None,
        Setting("The cluster: auto, HOST:PORT or ray://HOST:PORT.", "Ray", default="one of this machine, for this run"),
    ] = None
    ray_workers: Annotated[
        int | None,
        Setting("Engines, each an actor with its share of a node's CPUs; with --url each server is one.", "Ray", 1,
                10_000, default="one for each node"),
    ] = None  # fmt: skip
    ray_gpus: Annotated[float, Setting("GPUs for each engine; may be a part of one.", "Ray", 0, 64)] = 0.0
    tries: Annotated[int, Setting("Tries of an item that fails or times out.", "Failures", 1, 100)] = 4
    item_timeout: Annotated[
        float, Setting("With --url: seconds that a server may take for one item.", "Failures", 0.1, 864_000)
    ] = 600.0
    patience: Annotated[
        float,
        Setting("Seconds that a worker may be away, or refuse, before it is given up.", "Failures", 1, 864_000),
    ] = 600.0
    straggler_factor: Annotated[
        float,
        Setting("At the end, cut off items that run so many times as long as nearly all others; 0 for never.",
                "Failures", 0, 10_000),
    ] = 0.0  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What is told of it."""

    price_input: Annotated[float, Setting("Price of a million input tokens, for the cost.", "Report", 0)] = 0.0
    price_cached: Annotated[
        float | None, Setting("Price of a million cached input tokens.", "Report", 0, default="as other input")
    ] = None
    price_output: Annotated[float, Setting("Price of a million output tokens.", "Report", 0)] = 0.0
    price_hour: Annotated[float, Setting("Price of an hour of whatever runs it.", "Report", 0)] = 0.0
    html: Annotated[str | None, Setting("File for a report with plots.", "Report", default="none")] = None
    quiet: Annotated[bool, Setting("Show no progress.", "Report")] = False


# Of the engine's settings those that mean something to a batch, and what is better for one than for a server.
_MEANT = (
    *("batching", "max_num_seqs", "max_num_batched_tokens", "kv_full", "max_model_len", "dtype", "kv_cache_dtype"),
    *("kv_cache_gib", "prefix_cache_scope", "executor", "device", "threads", "step_timeout", "step_log"),
)
MOST_BATCHED_TOKENS = 512  # nobody waits for the next token of a stream
OPTION_KEYS = (*keys(InputOptions), *keys(WorkOptions), *keys(ReportOptions))
BATCH_ENGINE_KEYS = tuple(
    replace(key, default=MOST_BATCHED_TOKENS) if key.field == "max_num_batched_tokens" else key
    for key in ENGINE_KEYS
    if key.field in _MEANT
)
RUN_KEYS: tuple[Key, ...] = (*OPTION_KEYS, *BATCH_ENGINE_KEYS)
INPUT_FIELDS = frozenset(key.field for key in keys(InputOptions)) - {"strict"}
# What a batch is resumed with may be another than it was begun with, but not what its answers are answers to.
RESUME_KEYS = tuple(key for key in RUN_KEYS if key.field not in INPUT_FIELDS | {"strict"})
PRICE_KEYS = tuple(key for key in keys(ReportOptions) if key.field != "quiet")

_NOT_REMEMBERED = {"strict", "html", "quiet"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a command line said, and what was remembered of an earlier one."""

    input: InputOptions
    work: WorkOptions
    report: ReportOptions
    engine: EngineConfig
    settings: dict[str, Any]  # what to remember

    @property
    def wanted(self) -> Wanted:
        work, lines = self.work, self.input
        order: Literal["grouped", "static", "input"] = "input"
        if work.order == "auto":
            order = "static" if self.engine.batching == "static" and not work.url else "grouped"
        retry = RetryLimits(tries=work.tries, patience_ns=int(work.patience * NS_PER_S))
        return Wanted(
            format=Format(column=lines.column, template=lines.template, id_column=lines.id_column, chat=lines.chat),
            fitting=Fitting(models=lines.models, model=self.model_name, max_output=work.max_output),
            limits=JobLimits(
                order=order,
                lookahead=work.lookahead,
                retry=retry,
                straggler_factor=work.straggler_factor,
                hours=batch_hours(work.window, param="window"),
                tokens_per_minute=work.tokens_per_minute,
            ),
            strict=lines.strict,
            prices=self.prices,
            settings=self.settings,
        )

    @property
    def model_name(self) -> str | None:
        """What every line asks for with --models override."""
        return self.work.model or (None if self.work.url else DEFAULT_MODEL)

    @property
    def prices(self) -> Prices:
        report = self.report
        return Prices(
            input=report.price_input,
            output=report.price_output,
            cached=report.price_cached,
            hour=report.price_hour,
        )


def asked(given: Mapping[str, Any], remembered: Mapping[str, Any] | None = None) -> Asked:
    """Raises `ConfigError` for what does not go together."""
    settings = {**(remembered or {}), **given}
    work = _taken(WorkOptions, settings)
    engine_fields = {key.field for key in BATCH_ENGINE_KEYS}
    own = sorted(name for name in given.keys() & engine_fields if name != "batching")
    if work.url and (own or given.get("batching") == "static"):
        flag = (own[0] if own else "batching").replace("_", "-")
        raise ConfigError(f"--{flag} is of a model that runs here; with --url the server decides.")
    if settings.get("models") == "override" and work.url and not work.model:
        raise ConfigError("--models override needs --model: the name to ask the server for.")
    if not work.url and given.keys() & {"protect_ttft", "protect_itl"}:
        raise ConfigError("--protect-ttft and --protect-itl need --url: nobody else uses a model that runs here.")
    batch_hours(work.window, param="window")
    if work.on != "ray" and given.keys() & {"ray_address", "ray_workers", "ray_gpus"}:
        raise ConfigError("--ray-address, --ray-workers and --ray-gpus need --on ray.")
    if work.url and given.keys() & {"ray_workers", "ray_gpus"}:
        raise ConfigError("--ray-workers and --ray-gpus are of engines; with --url each server is a worker.")
    if not work.url and given.keys() & {"concurrency", "max_concurrency", "item_timeout"}:
        raise ConfigError("--concurrency, --max-concurrency and --item-timeout need --url; here it is --max-num-seqs.")
    engine = {name: value for name, value in settings.items() if name in engine_fields}
    return Asked(
        _taken(InputOptions, settings),
        work,
        _taken(ReportOptions, settings),
        _engine_config(engine),
        {name: value for name, value in settings.items() if name not in _NOT_REMEMBERED},
    )


def _engine_config(settings: dict[str, Any]) -> EngineConfig:
    """With every slot open to every length: nobody waits for an answer here."""
    slots = settings.get("max_num_seqs", EngineConfig().max_num_seqs)
    settings = {"max_num_batched_tokens": max(MOST_BATCHED_TOKENS, slots * 2), **settings}
    return EngineConfig(
        **settings,
        max_waiting=1_000_000,
        max_waiting_tokens=1_000_000_000,
        age_bound=0.0,
        long_prompt_slots=slots,
        long_output_slots=slots,
    )


def _taken(kind: type[T], settings: Mapping[str, Any]) -> T:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # they are dataclasses
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return kind(**{name: value for name, value in values.items() if name in names})
