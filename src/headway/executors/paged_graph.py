"""Turns a stateful OpenVINO IR into a graph driven step by step over a paged KV cache.

The graph takes all tokens of a step flattened into one axis of `T`, with `B` subsequences, and reads and writes KV
through a block table. Logits exist only for the rows that sample: the vocabulary projection is the largest matrix
of a small model, and a chunk of 512 prefill tokens needs at most one of its rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import ModelError

if TYPE_CHECKING:
    import openvino as ov

# Inputs that `OpenVinoExecutor` knows how to fill, besides the KV caches. The transformation can add others
# (cache eviction scores, rotation tables, token types): running without them would give silent nonsense.
STEP_INPUTS = frozenset(
    {
        "input_ids",  # i64[T]
        "position_ids",  # i64[T]
        "past_lens",  # i32[B]: resident tokens of each subsequence
        "subsequence_begins",  # i32[B+1]
        "block_indices",  # i32[*]: the block tables end to end
        "block_indices_begins",  # i32[B+1]
        "max_context_len",  # i32[]
        "sampled_tokens_indices",  # i64[S]: added here
    }
)
_CACHE_INPUT = re.compile(r"(?:key|value)_cache\.\d+")
# What may stand between the vocabulary projection and the output: all of it works row by row.
_ROW_WISE = frozenset(
    {"Add", "Convert", "Divide", "Multiply", "Tanh", "Subtract", "Clamp", "Reshape", "Unsqueeze", "Squeeze", "Result"}
)


def load_paged_graph(file: Path) -> ov.Model:
    """Read the IR `file` and return its paged form with the extra input `sampled_tokens_indices`.

    Output 0 is the logits, f32 of `S` rows. Raises `ModelError` when the file is not a causal language model whose
    attention OpenVINO can page.
    """
    import openvino as ov
    from openvino._offline_transformations import paged_attention_transformation

    if not file.is_file():
        raise ModelError(f"{file} does not exist: a model directory holds openvino_model.xml and openvino_model.bin")
    try:
        graph = ov.Core().read_model(file)
        paged_attention_transformation(graph)
    except Exception as error:  # whatever the runtime raises, it is this model that does not work
        raise ModelError(f"OpenVINO cannot turn {file} into a paged-attention graph: {error}") from error
    _keep_sampled_rows(graph, file)
    _check_inputs(graph, file)
    return graph


def _keep_sampled_rows(graph: ov.Model, file: Path) -> None:
    import numpy as np
    from openvino import opset13 as ops

    if len(graph.outputs) != 1:
        raise ModelError(f"{file} has {len(graph.outputs)} outputs; a language model has one, its logits")
    node: Any = graph.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        if node.get_type_name() not in _ROW_WISE:
            raise ModelError(
                f"{file}: cannot find the vocabulary projection behind the logits "
                f"(met {node.get_type_name()} '{node.get_friendly_name()}')"
            )
        node = _deepest_input(node)
    rows = ops.parameter([-1], np.int64, name="sampled_tokens_indices")
    rows.output(0).set_names({"sampled_tokens_indices"})
    kept = ops.gather(node.input_value(0), rows, ops.constant(np.int64(0)))
    node.input(0).replace_source_output(kept.output(0))
    graph.add_parameters([rows])
    graph.validate_nodes_and_infer_types()


def _deepest_input(node: Any) -> Any:
    """The operand that carries the activations: the first one that is no constant (softcapping multiplies by one)."""
    operands = [value.get_node() for value in node.input_values()]
    return next((each for each in operands if each.get_type_name() not in {"Constant", "Convert"}), operands[0])


def _check_inputs(graph: ov.Model, file: Path) -> None:
    names = {port.any_name for port in graph.inputs}
    unknown = sorted(name for name in names - STEP_INPUTS if not _CACHE_INPUT.fullmatch(name))
    if unknown:
        raise ModelError(f"{file}: the paged graph wants inputs that Headway does not fill: {', '.join(unknown)}")
    missing = sorted(STEP_INPUTS - names)
    if missing:
        raise ModelError(f"{file}: the paged graph lacks the inputs {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The KV cache as the compiled graph wants it."""

    block_size: int  # tokens
    block_bytes: int  # of all layers, keys and values
    dtype: str  # "bf16", "u8", "f32"
    shapes: dict[str, tuple[int, ...]]  # input name -> shape of one block

    @classmethod
    def of(cls, compiled: ov.CompiledModel) -> CacheLayout:
        """Read it off the inputs. Raises `ModelError` on a layout that is not [blocks, heads, tokens, head size]."""
        shapes: dict[str, tuple[int, ...]] = {}
        block_bytes, block_sizes, dtypes = 0, set(), set()
        for port in compiled.inputs:
            name = port.any_name
            if not _CACHE_INPUT.fullmatch(name):
                continue
            dims = list(port.partial_shape)
            if len(dims) != 4 or any(dim.is_dynamic for dim in dims[1:]):
                raise ModelError(f"{name} has shape {port.partial_shape}: this device's KV layout is not supported")
            shapes[name] = tuple(int(dim.get_length()) for dim in dims[1:])
            block_bytes += _product(shapes[name]) * port.element_type.bitwidth // 8
            dtypes.add(port.element_type.get_type_name())
            if name.startswith("value"):  # a quantised key cache keeps its scales in extra rows
                block_sizes.add(shapes[name][1])
        if len(block_sizes) != 1 or len(dtypes) != 1:
            raise ModelError(f"the KV cache mixes block sizes {sorted(block_sizes)} or types {sorted(dtypes)}")
        return cls(block_sizes.pop(), block_bytes, dtypes.pop(), shapes)


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for dim in shape:
        result *= dim
    return result
