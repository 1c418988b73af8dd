"""`headway fit`: a step-time model, and the server around it, from what was measured or from a model and a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from headway.simulate.fit import Belief, Observed, StepFit, StepLog
    from headway.simulate.sizing import ModelShape

app = App(name="fit")

Sources = Annotated[
    str,
    Parameter(
        help="Any of: a step log; requests.jsonl, or a folder with it; run.json of `headway bench`, or its folder; "
        "a model's config.json, GGUF file, folder or owner/name (with --gpu)."
    ),
]
Output = Annotated[Path, Parameter(name=("--output", "-o"), help="File to write the fit to.")]
Gpu = Annotated[str | None, Parameter(help="Device that the model runs on, such as «RTX 4090».")]
Ranks = Annotated[int, Parameter(help="Devices that the model is split over.")]
KvCacheDtype = Annotated[str, Parameter(help="Of the KV cache, as `headway kv` takes it.")]
PolicyName = Annotated[str | None, Parameter(help="How the server schedules: vllm or headway.")]
NumSeqs = Annotated[int | None, Parameter(help="The server's limit, where it is known.")]
BatchedTokens = Annotated[int | None, Parameter(help="The server's limit, where it is known.")]
NumBlocks = Annotated[int | None, Parameter(help="KV blocks of the server, where they are known.")]
BlockSize = Annotated[int | None, Parameter(help="Tokens in a block.")]
PrefixCache = Annotated[bool | None, Parameter(help="Does the server reuse the KV of what it computed before?")]
Seed = Annotated[int, Parameter(help="Of the bootstrap that says how sure the coefficients are.")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print the file's content.")]


@app.default
def fit(
    *sources: Sources,
    output: Output = Path("fit.json"),
    gpu: Gpu = None,
    tensor_parallel_size: Ranks = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    policy: PolicyName = None,
    max_num_seqs: NumSeqs = None,
    max_num_batched_tokens: BatchedTokens = None,
    num_blocks: NumBlocks = None,
    block_size: BlockSize = None,
    prefix_cache: PrefixCache = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fit how long steps take, and how sure that is, for `headway simulate`, `plan` and `tune`."""
    from headway.cli.stages import stages
    from headway.core.errors import ConfigError
    from headway.simulate.fit import fit as fitted
    from headway.simulate.fit import fit_bytes

    given = {
        "policy": policy,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "prefix_cache": prefix_cache,
    }
    given = {name: value for name, value in given.items() if value is not None}
    _check(given)
    if not sources:
        raise ConfigError("nothing to fit: give a step log, requests, a bench result, or a model and --gpu")
    logs: list[StepLog] = []
    observed: list[Observed] = []
    models: list[ModelShape] = []
    for source in sources:
        _read(source, logs, observed, models)
    belief = _belief(models, gpu, tensor_parallel_size, kv_cache_dtype, given)
    with stages(quiet=False) as progress:
        result = fitted(logs, observed, belief, given=given, progress=progress, seed=seed)
    content = fit_bytes(result)
    try:
        output.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror or error}", param="output") from error
    if as_json:
        print(content.decode(), end="")
    else:
        _show(result, output)


def _check(given: dict[str, Any]) -> None:
    from headway.core.errors import ConfigError
    from headway.core.scheduler.policies import POLICIES

    for name, value in given.items():
        if name == "policy" and value not in POLICIES:
            raise ConfigError(f"--policy is {value!r}; known are {', '.join(POLICIES)}", param=name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {value}, and must be at least 1", param=name)


def _read(source: str, logs: list[StepLog], observed: list[Observed], models: list[ModelShape]) -> None:
    """Put what the argument names where it belongs, by what is in it."""
    from headway.cli.kv import read_shape
    from headway.simulate.fit import read_bench, read_folder, read_requests, read_step_log
    from headway.simulate.fit.read import is_step_log, json_of

    path = Path(source).expanduser()
    if path.is_dir() and (path / "requests.jsonl").is_file():
        observed.append(read_folder(path))
    elif path.is_dir() and (path / "run.json").is_file():
        observed.append(read_bench(path / "run.json"))
    elif path.suffix == ".jsonl":
        if is_step_log(path):
            logs.append(read_step_log(path))
        else:
            observed.append(read_requests(path))
    elif path.suffix == ".json" and path.is_file() and {"verdict", "summary"} & json_of(path).keys():
        observed.append(read_bench(path))
    else:
        models.append(read_shape(source))


def _belief(
    models: list[ModelShape], gpu: str | None, ranks: int, kv_cache_dtype: str, given: dict[str, Any]
) -> Belief | None:
    from headway.core.errors import ConfigError
    from headway.simulate.fit import Belief
    from headway.simulate.sizing import StepRange, hardware_named

    if len(models) > 1:
        raise ConfigError(f"two models are given, {models[0].name} and {models[1].name}; a fit is of one")
    if models and gpu is None:
        raise ConfigError(f"{models[0].name} on what? Give --gpu, such as --gpu H100.", param="gpu")
    if gpu is not None and not models:
        raise ConfigError("--gpu says where; give the model as well, such as its config.json", param="gpu")
    if not models or gpu is None:
        return None
    usual = StepRange()
    valid = StepRange(
        given.get("max_num_batched_tokens", usual.max_num_batched_tokens), given.get("max_num_seqs", usual.max_num_seqs)
    )
    # Only rates matter here, so a CPU need not say how much memory the machine has.
    hardware = hardware_named(gpu, memory_gib=1.0)
    return Belief.of(models[0], hardware, tensor_parallel=ranks, kv_cache_dtype=kv_cache_dtype, valid=valid)


def _show(result: StepFit, output: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from headway.simulate.fit.terms import WORDS

    console = Console(soft_wrap=True, highlight=False)
    of = " on ".join(part for part in (result.model, result.device) if part)
    console.print(f"{of or 'A server'}, from {', '.join(result.sources)}\n")
    table = Table(box=None, padding=(0, 3, 0, 0))
    for column in ("takes, µs", "between", ""):
        table.add_column(column, justify="right" if column else "left")
    for name, word in WORDS.items():
        c = result.coefficients[name]
        if c.high > 0:
            table.add_row(_micro(c.value), f"{_micro(c.low)} and {_micro(c.high)}", word)
    console.print(table)
    table = Table(box=None, padding=(0, 3, 0, 0))
    for column in ("residuals", "count", "bias", "median", "p95"):
        table.add_column(column, justify="left" if column == "residuals" else "right")
    for r in result.residuals:
        table.add_row(r.kind, f"{r.count:,}", f"{r.bias:+.1%}", f"{r.median_error:.1%}", f"{r.p95_error:.1%}")
    console.print()
    console.print(table)
    v, s = result.valid, result.server
    console.print(
        f"\nHolds for steps of up to {v.max_prefill_tokens:,} prompt tokens, {v.min_decode_seqs} to "
        f"{v.max_decode_seqs} decoding sequences, {v.max_context_tokens:,} tokens of context."
    )
    for name, how in s.known.items():
        console.print(f"  {name.replace('_', '-')} {getattr(s, name)} ({how})")
    for note in result.notes:
        console.print(f"Note: {note}.")
    console.print(f"Written to {output}")


def _micro(ns: float) -> str:
    return f"{ns / 1e3:,.4g}" if ns < 1e6 else f"{ns / 1e3:,.0f}"
