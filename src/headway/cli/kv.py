"""`headway kv`: what a model's KV cache takes, and how many tokens and sequences a device holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from headway.simulate.sizing import KvCost, LiveKv, MemoryPlan, MemorySettings, ModelShape

app = App(name="kv")

GIB, KIB = 1 << 30, 1 << 10
PIPED_WIDTH = 140  # a table that is piped has no edge to keep to
SHOWN_CONTEXTS = (1024, 4096, 8192, 32768, 131072)

Source = Annotated[
    str, Parameter(help="config.json, a folder that has one, a GGUF file, a hub's owner/name, or a server's URL.")
]
Gpu = Annotated[
    str | None, Parameter(help="Device to fit it into, such as «RTX 4090». Without it, only bytes are told.")
]
MemoryGib = Annotated[float | None, Parameter(help="Memory of the device, in place of what the table says.")]
Ranks = Annotated[int, Parameter(help="Devices that the model is split over.")]
KvCacheDtype = Annotated[str, Parameter(help="auto (the model's own), fp8, int8, u8, q8_0, q4_0, nvfp4, fp8_ds_mla, …")]
Utilization = Annotated[
    float | None, Parameter(show_default=False, help="Share of memory that the engine may use, as the engine means it.")
]
MaxModelLen = Annotated[int | None, Parameter(help="Longest request; by default the model's own context.")]
BatchedTokens = Annotated[int | None, Parameter(help="Tokens of a step, which size the activations.")]
NumSeqs = Annotated[int | None, Parameter(help="Sequences of a step, which size the memory of sampling.")]
BlockSize = Annotated[int | None, Parameter(help="Tokens in a block.")]
EngineName = Annotated[
    str, Parameter(help="Whose rule divides the memory: vllm, vllm-0.8, sglang, trtllm, llama.cpp, …")
]
Eager = Annotated[bool, Parameter(negative="", help="No CUDA graphs.")]
FullWindows = Annotated[
    bool, Parameter(negative="", help="The engine keeps everything, also where a sliding window would do.")
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print one JSON object.")]


@app.default
def kv(
    source: Source,
    /,
    *,
    gpu: Gpu = None,
    memory_gib: MemoryGib = None,
    tensor_parallel_size: Ranks = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    gpu_memory_utilization: Utilization = None,
    max_model_len: MaxModelLen = None,
    max_num_batched_tokens: BatchedTokens = None,
    max_num_seqs: NumSeqs = None,
    block_size: BlockSize = None,
    engine: EngineName = "vllm",
    enforce_eager: Eager = False,
    keep_full_windows: FullWindows = False,
    as_json: AsJson = False,
) -> None:
    """Size a KV cache: bytes per token and request, and what fits into a device beside weights and reserves."""
    from headway.simulate.sizing import (
        MemorySettings,
        engine_named,
        hardware_named,
        kv_cost,
        kv_dtype,
        live_kv,
        plan_memory,
    )

    if source.startswith(("http://", "https://")):
        _show_live(live_kv(_fetched(source), source), max_model_len, as_json=as_json)
        return
    shape = read_shape(source)
    settings = MemorySettings(
        tensor_parallel=tensor_parallel_size,
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        block_tokens=block_size,
        enforce_eager=enforce_eager,
        use_windows=not keep_full_windows,
    )
    rule = engine_named(engine)
    if gpu is not None:
        plan = plan_memory(shape, hardware_named(gpu, memory_gib=memory_gib), rule, settings)
        cost = plan.cost
    else:
        plan = None
        cost = kv_cost(
            shape,
            kv_dtype(kv_cache_dtype, shape.weight_format.dtype),
            tensor_parallel=tensor_parallel_size,
            block_tokens=rule.block_tokens if block_size is None else block_size,
            use_windows=not keep_full_windows,
            convolution_bytes=rule.convolution_bytes,
        )
    if as_json:
        print(json.dumps(as_document(shape, cost, plan, settings), indent=2))
    else:
        _show(shape, cost, plan, settings)


def read_shape(source: str) -> ModelShape:
    """The shape of what the argument names.

    Raises:
        ModelError: nothing there that tells a model's sizes; the message says what was looked for.
    """
    from headway.core.errors import ModelError
    from headway.models.gguf_file import read_gguf
    from headway.models.hub import is_repository
    from headway.simulate.sizing import shape_from_gguf

    path = Path(source).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if path.suffix.lower() == ".gguf":
        gguf = read_gguf(path)
        sizes = {name: tensor.size_bytes for name, tensor in gguf.tensors.items()}
        return shape_from_gguf(gguf.metadata, sizes, where=str(path), name=path.stem)
    if path.is_file():
        return _from_config(path, path.resolve().parent.name)
    if is_repository(source):
        return _from_config(_hub_config(source), source)
    raise ModelError(
        f"no {source!r}: it is no file or folder here, no hub repository (owner/name) and no http:// address",
        code="model_not_found",
    )


def _from_folder(folder: Path) -> ModelShape:
    from dataclasses import replace

    from headway.simulate.sizing import weight_bytes

    shape = _from_config(folder / "config.json", folder.resolve().name)
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    counted = weight_bytes(shape).total
    if not stored:
        return shape
    # Weights that are kept in 32 bits are served in 16, so their files say nothing.
    return replace(shape, weights_bytes=stored) if stored < 1.3 * counted else shape


def _from_config(path: Path, name: str) -> ModelShape:
    from headway.core.errors import ModelError
    from headway.simulate.sizing import shape_from_config

    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}", code="model_not_found") from error
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}", code="bad_config") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} is no JSON object but {type(config).__name__}", code="bad_config")
    return shape_from_config(config, where=str(path), name=name)


def _hub_config(repository: str) -> Path:
    """Only the config.json of a repository: no weights are fetched."""
    from huggingface_hub import hf_hub_download

    from headway.core.errors import ModelError

    name, _, revision = repository.partition("@")
    try:
        return Path(hf_hub_download(name, "config.json", revision=revision or None))
    except Exception as error:  # the library passes on its HTTP client's exceptions, whose type is its own affair
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"could not fetch config.json of {repository}: {reason}", code="fetch_failed") from error


def _fetched(url: str, timeout_s: float = 5.0) -> dict[str, str]:
    """The pages of a server that may say how large its KV cache is; those that it does not have are left out."""
    from headway.core.errors import ConfigError
    from headway.wire.asker import Asker

    asker = Asker(url.rstrip("/").removesuffix("/v1"), timeout_s=timeout_s)
    try:
        answers = {page: asker.try_get(page) for page in ("/metrics", "/v1/models", "/get_server_info", "/props")}
    finally:
        asker.close()
    pages = {page: answer.text for page, answer in answers.items() if answer.status == 200}
    if not pages:
        raise ConfigError(f"{asker.url} has none of the pages looked for: {', '.join(answers)}", param="source")
    return pages


def as_document(shape: ModelShape, cost: KvCost, plan: MemoryPlan | None, settings: MemorySettings) -> dict[str, Any]:
    """What `--json` prints. Bytes are of one device."""
    context = settings.max_model_len or shape.context_tokens
    document: dict[str, Any] = {
        "model": shape.name,
        "family": shape.family,
        "parameters": shape.parameters.total,
        "weights": shape.weight_format.name,
        "tensor_parallel_size": settings.tensor_parallel,
        "kv_cache_dtype": cost.dtype,
        "block_tokens": cost.block_tokens,
        "token_bytes": cost.token_bytes,
        "growing_token_bytes": cost.growing_token_bytes,
        "request_state_bytes": cost.request_state_bytes,
        "max_model_len": context,
        "request_bytes_at_max_model_len": cost.request_bytes(context),
        "notes": list(shape.notes),
    }
    if plan is not None:
        document |= {
            "gpu": plan.hardware.name,
            "gpu_source": plan.hardware.source,
            "engine": plan.engine.name,
            "memory_bytes": plan.hardware.memory_bytes,
            "gpu_memory_utilization": plan.utilization,
            "budget_bytes": plan.budget_bytes,
            "terms": [{"name": t.name, "bytes": t.bytes, "why": t.why} for t in plan.terms],
            "kv_cache_bytes": plan.kv_bytes,
            "blocks": plan.blocks,
            "tokens": plan.tokens,
            "sequences_at_max_model_len": round(plan.sequences(context), 3),
            "tokens_at_max_model_len": plan.tokens_at(context),
            "longest_context_tokens": plan.longest_context,
        }
    return document


def _show(shape: ModelShape, cost: KvCost, plan: MemoryPlan | None, settings: MemorySettings) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console = Console(soft_wrap=True, highlight=False, width=PIPED_WIDTH)
    billions = shape.parameters.total / 1e9
    ranks = settings.tensor_parallel
    each = f", on each of {ranks} devices" if ranks > 1 else ""
    console.print(f"{shape.name} ({shape.family}): {billions:,.2f} billion parameters, {shape.weight_format.name}\n")
    console.print(f"KV cache in {cost.dtype}, blocks of {cost.block_tokens} tokens{each}")
    for group in cost.groups:
        console.print(
            f"  {group.layers:3} layers × {group.token_bytes // group.layers:,} bytes per token: {group.what}"
        )
    if cost.request_state_bytes:
        console.print(f"  a state of {cost.request_state_bytes / GIB * 1024:,.1f} MiB for each request, of any length")
    console.print(f"  = {cost.token_bytes:,} bytes per token ({cost.token_bytes / KIB:,.1f} KiB)")
    if cost.growing_token_bytes != cost.token_bytes:
        console.print(f"  = {cost.growing_token_bytes:,} bytes per token beyond the windows")
    if plan is not None:
        _show_terms(console, plan)
    _show_contexts(console, shape, cost, plan, settings)
    for note in shape.notes:
        console.print(f"Note: {note}.")


def _show_terms(console: Console, plan: MemoryPlan) -> None:
    from rich.table import Table

    hardware, total = plan.hardware, plan.hardware.memory_bytes
    console.print(f"\n{hardware.name}: {total / GIB:.2f} GiB ({hardware.source}), divided as {plan.engine.title}")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(justify="right")
    for column in ("name", "why"):
        table.add_column(column)
    table.add_row(
        f"{plan.budget_bytes / GIB:.2f} GiB", "may be used", f"{plan.utilization:g} {plan.engine.share.value}"
    )
    for term in plan.terms:
        table.add_row(f"- {term.bytes / GIB:.2f}", term.name, term.why)
    fits = f"{plan.blocks:,} blocks, {plan.tokens:,} tokens" if plan.cost.token_bytes else "states only"
    table.add_row(
        f"= {plan.kv_bytes / GIB:.2f} GiB", "KV cache", fits + ("" if plan.cost.uniform else ", if no layer forgot any")
    )
    console.print(table)
    if plan.longest_context < plan.max_model_len:
        console.print(
            f"A request of {plan.max_model_len:,} tokens does not fit: "
            f"use --max-model-len {plan.longest_context} or less."
        )


def _show_contexts(
    console: Console, shape: ModelShape, cost: KvCost, plan: MemoryPlan | None, settings: MemorySettings
) -> None:
    from rich.table import Table

    longest = settings.max_model_len or shape.context_tokens
    table = Table(box=None, padding=(0, 3, 0, 0))
    for column in ("tokens of a request", "its KV cache", *(("requests at once",) if plan else ())):
        table.add_column(column, justify="right")
    for context in sorted({*(c for c in SHOWN_CONTEXTS if c < longest), longest}):
        row = [f"{context:,}", f"{cost.request_bytes(context) / GIB:.3f} GiB"]
        table.add_row(*row, *((f"{plan.sequences(context):,.2f}",) if plan else ()))
    console.print()
    console.print(table)


def _show_live(live: LiveKv, max_model_len: int | None, *, as_json: bool) -> None:
    from dataclasses import asdict

    context = max_model_len or live.max_model_len
    if as_json:
        sequences = None if context is None else round(live.sequences(context), 3)
        print(json.dumps(asdict(live) | {"sequences_at_max_model_len": sequences}, indent=2))
        return
    blocks = f" in {live.blocks:,} blocks of {live.block_tokens}" if live.block_tokens and live.blocks else ""
    print(f"{live.model or 'The model'} on {live.engine}: a KV cache of {live.tokens:,} tokens{blocks}")
    if live.dtype or live.utilization:
        print(f"  dtype {live.dtype or 'not told'}, utilisation {live.utilization or 'not told'}")
    if context:
        print(f"  {live.sequences(context):,.2f} requests of {context:,} tokens at once")
