"""Runs steps on a real model: OpenVINO's CPU kernels with paged attention, one inference per step."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as ReadOnlySequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from headway.core.errors import ConfigError, EngineFailed, ModelError
from headway.core.scheduler.step import Outcome, Row, Step
from headway.executors.cpu import cpu_flags, instruction_set
from headway.executors.executor import ExecutorInfo
from headway.executors.memory import available_bytes
from headway.executors.paged_graph import CacheLayout, load_paged_graph
from headway.executors.sampling import Sampler

if TYPE_CHECKING:
    import openvino as ov

Dtype = Literal["auto", "bf16", "f32"]
KvCacheDtype = Literal["bf16", "u8", "f32"]

log = logging.getLogger(__name__)


class ModelFiles(Protocol):
    """The part of a model that is computed with; `headway.models.Model` is one."""

    @property
    def directory(self) -> Path: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def context_tokens(self) -> int: ...


class OpenVinoExecutor:
    """An `Executor` over a stateful OpenVINO IR.

    `dtype` "auto" is bf16 where the device computes in it, else f32 as fast as it goes. "f32" with f32 KV is *exact*:
    activations are not quantised either, and a token does not depend on chunking, batching or recomputation.
    `kv_cache_dtype` None is that of the matrix work. KV memory is reserved, not touched: pages become resident as
    blocks are first used.

    Raises `ModelError` for a model that cannot be paged and `ConfigError` for KV memory that holds no block or is
    not there, an unknown device, or a pair of types the device has no kernel for (its attention reads f32 KV only in
    f32, bf16 only in bf16).
    """

    def __init__(
        self,
        model: ModelFiles,
        *,
        dtype: Dtype = "auto",
        kv_cache_dtype: KvCacheDtype | None = None,
        kv_cache_bytes: int,
        device: str = "CPU",
        threads: int | None = None,
    ) -> None:
        graph = load_paged_graph(model.directory / "openvino_model.xml")
        compiled = _compile(graph, device, _properties(dtype, kv_cache_dtype, device, threads))
        layout = CacheLayout.of(compiled)
        # One block more than the scheduler knows of: where padding writes what nobody reads.
        self._scratch_block = kv_cache_bytes // layout.block_bytes
        if self._scratch_block < 1:
            raise ConfigError(
                f"{kv_cache_bytes} bytes of KV cache hold no block of {layout.block_size} tokens: "
                f"give at least {layout.block_bytes}"
            )
        self._info = _info(compiled, layout, self._scratch_block, model, threads)
        self._request: ov.InferRequest | None = compiled.create_infer_request()
        _allocate_cache(self._request, compiled, layout, self._scratch_block + 1)
        self._sampler = Sampler(self._info.vocab_size, model.eos_token_ids)
        self._warm_up()

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def run(self, step: Step) -> Outcome:
        if self._request is None:
            raise EngineFailed("the executor is closed")
        self._sampler.drop(step.dropped)
        for row in step.rows:
            if row.begin is not None:
                self._sampler.begin(row.seq, row.begin)
        if not step.rows and not step.pad_tokens:
            return Outcome(step.id, [])
        inputs = _inputs(step, self._info, self._scratch_block)
        started = time.perf_counter()
        logits = self._infer(inputs)
        seconds = time.perf_counter() - started
        sampling = [row for row in step.rows if row.samples]
        positions = [row.start + len(row.tokens) for row in sampling]
        return Outcome(step.id, self._sampler.sample([row.seq for row in sampling], positions, logits), seconds)

    def close(self) -> None:
        self._request = None

    def _warm_up(self) -> None:
        """Let the runtime build its kernels now: the first inference takes half a second more than the second."""
        row = Row(seq=-1, start=0, tokens=[0] * self._info.block_size, blocks=[self._scratch_block], samples=True)
        logits = self._infer(_inputs(Step(0, [row], len(row.tokens), 0, 0), self._info, self._scratch_block))
        if not np.isfinite(logits.max()):  # -inf alone may be a masked token
            raise ModelError("the model computes logits that are not finite: its weights are damaged")

    def _infer(self, inputs: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        import openvino as ov

        request = self._request
        assert request is not None
        try:
            for name, array in inputs.items():
                # Shared, not copied: the arrays live in `inputs` until the inference is over.
                request.set_tensor(name, ov.Tensor(array, shared_memory=True))
            request.infer()
        except RuntimeError as error:
            raise EngineFailed(f"OpenVINO failed to compute the step: {error}") from error
        logits: npt.NDArray[np.float32] = request.get_output_tensor(0).data
        return logits.reshape(-1, logits.shape[-1])


def _compile(graph: ov.Model, device: str, properties: dict[str, Any]) -> ov.CompiledModel:
    import openvino as ov

    core = ov.Core()
    try:
        return core.compile_model(graph, device, properties)
    except Exception as error:  # the runtime raises its own RuntimeError and, on some paths, others
        log.debug("OpenVINO on %s: %s", device, error)
        here = core.available_devices  # such as CPU, GPU.0, GPU.1
        if device.partition(".")[0] not in {"AUTO", *(one.partition(".")[0] for one in here)} and ":" not in device:
            raise ConfigError(
                f"--device {device} is not available here; available: {', '.join(here)}.", param="device"
            ) from error
        asked = f"{properties['INFERENCE_PRECISION_HINT']} with {properties['KV_CACHE_PRECISION']} KV on {device}"
        reason = str(error).strip().splitlines()[-1]  # the lines before it are places in OpenVINO's source
        raise ConfigError(f"OpenVINO cannot compile the model in {asked}: {reason}") from error


def device_dtype(device: str = "CPU") -> Literal["bf16", "f32"]:
    """What `device` computes in at its best. A CPU without AVX-512 or AMX has no bf16; nor has a device not known."""
    import openvino as ov

    try:
        capabilities: list[str] = ov.Core().get_property(device, "OPTIMIZATION_CAPABILITIES")
    except RuntimeError:  # not here, or several devices in one: compiling says which
        return "f32"
    return "bf16" if "BF16" in capabilities else "f32"


def _properties(dtype: Dtype, kv_cache_dtype: KvCacheDtype | None, device: str, threads: int | None) -> dict[str, Any]:
    offered = device_dtype(device)
    if dtype == "bf16" and device == "CPU" and offered != "bf16":
        raise ConfigError("--dtype bf16 is not offered by this CPU: take --dtype auto, or f32.", param="dtype")
    exact = dtype == "f32" and kv_cache_dtype in {"f32", None}
    precision = offered if dtype == "auto" else dtype
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": kv_cache_dtype or precision,
        "PERFORMANCE_HINT": "LATENCY",  # one stream that uses every thread: steps run one at a time
    }
    if device == "CPU":
        # Pinned threads cannot leave a core that the server's own process is busy on: slower beside other work.
        properties["ENABLE_CPU_PINNING"] = False
    if threads is not None:
        properties["INFERENCE_NUM_THREADS"] = threads
    if exact:
        # Quantised activations share scales across what happens to be computed together.
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    return properties


_TYPE_NAMES = {"bfloat16": "bf16", "float32": "f32", "f32": "f32", "float": "f32", "float16": "f16", "uint8_t": "u8"}


def _info(
    compiled: ov.CompiledModel, layout: CacheLayout, num_blocks: int, model: ModelFiles, threads: int | None
) -> ExecutorInfo:
    """What the runtime says is in effect, which is not always what was asked (f16 KV becomes bf16, for one)."""
    precision = _type_name(compiled.get_property("INFERENCE_PRECISION_HINT"))
    kv_cache_dtype = _TYPE_NAMES.get(layout.dtype, layout.dtype)
    vocabulary = compiled.output(0).partial_shape[-1]  # embeddings may be padded beyond what the tokenizer knows
    return ExecutorInfo(
        name="openvino",
        block_size=layout.block_size,
        num_blocks=num_blocks,
        # Keys are quantised in groups of a block's tokens: a chunk that ends inside one changes its scales.
        chunk_multiple_tokens=layout.block_size if kv_cache_dtype not in {"bf16", "f16", "f32"} else 1,
        kv_bytes_per_token=layout.block_bytes // layout.block_size,
        vocab_size=vocabulary.get_length() if vocabulary.is_static else model.vocab_size,
        max_model_len=model.context_tokens,
        precision=precision,
        kv_cache_dtype=kv_cache_dtype,
        instruction_set=instruction_set(precision, cpu_flags()),
        threads=int(compiled.get_property("INFERENCE_NUM_THREADS")) if threads is None else threads,
    )


def _type_name(kind: Any) -> str:
    name = kind.get_type_name() if hasattr(kind, "get_type_name") else str(kind)
    return _TYPE_NAMES.get(name, name)


def _allocate_cache(request: ov.InferRequest, compiled: ov.CompiledModel, layout: CacheLayout, blocks: int) -> None:
    """Give every cache input its memory, once. Large allocations come from the system as untouched zero pages."""
    import openvino as ov

    wanted, available = blocks * layout.block_bytes, available_bytes()
    if available is not None and wanted > available:
        raise _no_memory(wanted, f"{available / 2**30:,.1f} GiB are available")
    try:
        for port in compiled.inputs:
            shape = layout.shapes.get(port.any_name)
            if shape is not None:
                request.set_tensor(port.any_name, ov.Tensor(port.element_type, ov.Shape([blocks, *shape])))
    except (MemoryError, RuntimeError) as error:  # std::bad_alloc arrives as either
        log.debug("allocating %d bytes of KV cache: %s", wanted, error)
        raise _no_memory(wanted, "the system does not give so much") from error


def _no_memory(wanted_bytes: int, why: str) -> ConfigError:
    return ConfigError(
        f"The KV cache needs {wanted_bytes / 2**30:,.1f} GiB of memory, and {why}. Lower --kv-cache-gib.",
        param="kv_cache_gib",
    )


def _inputs(step: Step, info: ExecutorInfo, scratch_block: int) -> dict[str, npt.NDArray[Any]]:
    """The step as flat arrays. Raises `EngineFailed` for ids or block tables that would read foreign memory."""
    rows = [*step.rows, *_padding(step.pad_tokens, info.block_size, scratch_block)]
    lengths = np.fromiter((len(row.tokens) for row in rows), np.int64, len(rows))
    starts = np.fromiter((row.start for row in rows), np.int32, len(rows))
    begins = np.zeros(len(rows) + 1, np.int64)
    lengths.cumsum(out=begins[1:])
    total = int(begins[-1])
    tokens = np.fromiter(chain.from_iterable(row.tokens for row in rows), np.int64, total)
    ends = starts + lengths
    needed = -(-ends // info.block_size)
    tables = [_table(row, count) for row, count in zip(rows, needed.tolist(), strict=True)]
    table_begins = np.zeros(len(rows) + 1, np.int32)
    needed.cumsum(out=table_begins[1:])
    blocks = np.fromiter(chain.from_iterable(tables), np.int32, int(table_begins[-1]))
    _check(tokens, blocks, lengths, info, scratch_block)
    samples = np.fromiter((row.samples for row in rows), np.bool_, len(rows))
    return {
        "input_ids": tokens,
        "position_ids": np.arange(total, dtype=np.int64) + np.repeat(starts - begins[:-1], lengths),
        "past_lens": starts,
        "subsequence_begins": begins.astype(np.int32),
        "block_indices": blocks,
        "block_indices_begins": table_begins,
        "max_context_len": np.array(ends.max(), np.int32),
        "sampled_tokens_indices": begins[1:][samples] - 1,
    }


def _table(row: Row, needed: int) -> ReadOnlySequence[int]:
    if len(row.blocks) < needed:
        raise EngineFailed(
            f"sequence {row.seq}: {len(row.blocks)} blocks cannot hold positions up to {row.start + len(row.tokens)}"
        )
    return row.blocks if len(row.blocks) == needed else row.blocks[:needed]


def _padding(pad_tokens: int, block_size: int, scratch_block: int) -> list[Row]:
    """Rows that cost what real tokens cost and write where nobody reads."""
    full, rest = divmod(pad_tokens, block_size)
    counts = [block_size] * full + ([rest] if rest else [])
    return [Row(seq=-1, start=0, tokens=[0] * count, blocks=[scratch_block], samples=False) for count in counts]


def _check(
    tokens: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int64],
    info: ExecutorInfo,
    scratch_block: int,
) -> None:
    if lengths.min() < 1:
        raise EngineFailed("a row feeds no token; a row feeds at least one")
    if tokens.min() < 0 or tokens.max() >= info.vocab_size:
        raise EngineFailed(f"a token id is outside the vocabulary of {info.vocab_size}")
    if blocks.min() < 0 or blocks.max() > scratch_block:
        raise EngineFailed(f"a block index is outside the {info.num_blocks} blocks that exist")
