"""A GGUF small enough to convert in a fraction of a second: one layer, 300 tokens, random weights.

Written with the `gguf` package, which the code under test does not use: two readings of one format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WIDTH, HEADS, KV_HEADS = 256, 4, 2
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 w"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def byte_letters() -> list[str]:
    """The 256 letters of a byte-level vocabulary: printable bytes are themselves, the rest follow from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [chr(byte) for byte in sorted(printable)] + [chr(256 + i) for i in range(256 - len(printable))]


def write(
    path: Path,
    *,
    architecture: str = "llama",
    layers: int = 1,
    pre: str | None = "smollm",
    tokenizer_model: str = "gpt2",
    tokens: list[str] | None = None,
    token_types: list[int] | None = None,
    merges: list[str] | None = None,
    matrix: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
    without: Sequence[str] = (),
    zeroed: Sequence[str] = (),
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    more: Callable[[Any], None] = lambda writer: None,
) -> Path:
    """Write the model to `path`. `without` and `zeroed` name tensors; `more` adds metadata to the writer."""
    if tokens is None:
        tokens = [*CONTROL, *byte_letters(), *(m.replace(" ", "") for m in MERGES)]
        tokens += [f"[PAD{i}]" for i in range(len(tokens), 300)]
    if token_types is None:
        token_types = [3 if token in CONTROL else 1 for token in tokens]
    writer = gguf.GGUFWriter(path, architecture, endianess=endianess)
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    if "epsilon" not in without:
        writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(1)
    writer.add_tokenizer_model(tokenizer_model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(token_types)
    writer.add_token_merges(MERGES if merges is None else merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    more(writer)
    random = np.random.default_rng(0)
    shapes = _shapes(architecture, layers, len(tokens))
    for name, shape in shapes.items():
        if name in without:
            continue
        values = random.standard_normal(shape).astype(np.float32) * 0.05
        if name in zeroed:
            values = np.zeros(shape, np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, matrix), raw_dtype=matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(architecture: str, layers: int, tokens: int) -> dict[str, tuple[int, ...]]:
    head = WIDTH // HEADS
    kv_width = head * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (tokens, WIDTH), "output_norm.weight": (WIDTH,)}
    for i in range(layers):
        matrices = ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        shapes |= {f"blk.{i}.{name}.weight": (WIDTH, WIDTH) for name in matrices}
        shapes |= {f"blk.{i}.{name}.weight": (kv_width, WIDTH) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{i}.{name}.weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
        if architecture == "qwen2":
            shapes |= {f"blk.{i}.attn_{x}.bias": (WIDTH if x == "q" else kv_width,) for x in "qkv"}
        if architecture == "qwen3":
            shapes |= {f"blk.{i}.attn_{x}_norm.weight": (head,) for x in "qk"}
    return shapes
