"""GGUF to OpenVINO IR: what the converter can take is checked first, then it runs in a child process.

The converter is OpenVINO GenAI's GGUF reader. It is native code that follows the file's own numbers; whatever it
does with a file our checks did not foresee, it does in the child (`converter.py`), and a dead child is a `ModelError`
that names the signal. The child is given a link in a temporary folder, because it writes beside the file it reads.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from headway import child_process
from headway.core.errors import ModelError
from headway.models import converter
from headway.models.cache import Progress, Report, explained, no_space, require_space, tree_bytes
from headway.models.gguf_file import GgufFile
from headway.models.ir_directory import BIN, XML, check_extents

# What openvino-genai 2026.4's reader converts, found by converting one tiny model of each kind, and the tensors that
# make each architecture what it is. (The reader leaves out what is absent, and answers are then quietly wrong.)
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "llama": (),
    "qwen2": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight"),
}
MATRIX_TYPES = ("F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
VECTOR_TYPES = ("F32", "F16")
_COUNTS = ("block_count", "embedding_length", "attention.head_count", "context_length")
_OPTIONAL_COUNTS = ("attention.head_count_kv", "attention.key_length")
_LAYER_TENSORS = (
    *("attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"),
    *("ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
)
_MOST_LAYERS = 4096  # so that a corrupt count is a message and not a long wait

_GROWTH = {"Q6_K": 1.5}  # unpacked to eight bits with scales; the other types keep their size
_SLACK_BYTES = 16 << 20  # the graph itself, and the tokenizer the converter writes unasked
_STDERR_LINES = 6
_SECONDS_PER_GB = 120  # beyond this the child is taken to hang; a laptop needs about 10
_BASE_SECONDS = 300


def check_convertible(gguf: GgufFile) -> None:
    """Refuse, by name, what the converter would refuse in its own words or misread.

    Raises:
        ModelError: the architecture, a tensor type, a missing tensor or metadata key, or a split file.
    """
    if gguf.architecture not in ARCHITECTURES:
        raise _refused(gguf, f"its architecture is {gguf.architecture!r}; supported are {', '.join(ARCHITECTURES)}")
    if gguf.metadata.get("split.count", 1) not in (0, 1):
        raise _refused(gguf, "it is one part of several; merge them into one file first (llama-gguf-split --merge)")
    _check_counts(gguf)
    _check_tensors(gguf)


def _check_counts(gguf: GgufFile) -> None:
    for key in (*_COUNTS, *(key for key in _OPTIONAL_COUNTS if gguf.own(key) is not None)):
        value = gguf.own(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise _refused(gguf, f"its metadata says {gguf.architecture}.{key} is {value!r}, not a positive number")
    if not isinstance(gguf.own("attention.layer_norm_rms_epsilon"), float):
        raise _refused(gguf, f"its metadata lacks {gguf.architecture}.attention.layer_norm_rms_epsilon")


def _check_tensors(gguf: GgufFile) -> None:
    layers = min(gguf.own("block_count"), _MOST_LAYERS)
    parts = (*_LAYER_TENSORS, *ARCHITECTURES[gguf.architecture])
    needed = ["token_embd.weight", "output_norm.weight", *(f"blk.{i}.{part}" for i in range(layers) for part in parts)]
    if absent := [name for name in needed if name not in gguf.tensors]:
        raise _refused(gguf, f"{len(absent)} tensors are missing, the first is {absent[0]}")
    for tensor in gguf.tensors.values():
        accepted = MATRIX_TYPES if len(tensor.shape) > 1 else VECTOR_TYPES
        if tensor.type_name not in accepted:
            raise _refused(
                gguf, f"tensor {tensor.name!r} has type {tensor.type_name}; supported here are {', '.join(accepted)}"
            )
    embedding, tokens = gguf.tensors["token_embd.weight"], gguf.metadata.get("tokenizer.ggml.tokens")
    if len(embedding.shape) != 2 or not isinstance(tokens, list) or embedding.shape[1] < len(tokens):
        raise _refused(gguf, f"its embedding has shape {list(embedding.shape)}, too small for its vocabulary")


def _refused(gguf: GgufFile, why: str) -> ModelError:
    return ModelError(f"{gguf.path} cannot be converted: {why}.", code="unsupported_model")


def convert(gguf: GgufFile, folder: Path, report: Report | None = None) -> None:
    """Write `openvino_model.xml` and `.bin` for `gguf` into `folder`, which exists, is empty and is ours.

    Takes seconds per gigabyte and about twice the model's size in memory, all of it in the child.

    Raises:
        ModelError: the model is not convertible, the child failed or was killed, or the disk is full.
    """
    check_convertible(gguf)
    needed = int(sum(t.size_bytes * _GROWTH.get(t.type_name, 1.05) for t in gguf.tensors.values())) + _SLACK_BYTES
    require_space(folder, needed, f"converting {gguf.path.name}")
    if report:
        report(Progress("convert", gguf.path.name, 0, gguf.size_bytes))
    with explained(folder, f"converting {gguf.path.name}"):
        source = folder / "source.gguf"
        source.symlink_to(gguf.path.resolve())
        try:
            _run_child(source, gguf)
            check_extents(folder)  # a stream that fails to write does not always throw over there
        except ModelError as error:
            # Over there a full disk is an "iostream error" or a short file, so it is told by the room that there was.
            if shutil.disk_usage(folder).free + tree_bytes(folder) < needed:
                raise no_space(folder, f"converting {gguf.path.name}", needed) from error
            raise
        for file in folder.iterdir():
            if file.name not in (XML, BIN):
                file.unlink()
    if report:
        report(Progress("convert", gguf.path.name, gguf.size_bytes, gguf.size_bytes))


def _run_child(source: Path, gguf: GgufFile) -> None:
    limit_s = _BASE_SECONDS + _SECONDS_PER_GB * gguf.size_bytes / 1e9
    try:
        done = subprocess.run(
            child_process.command(converter.__name__, str(source)),
            env=child_process.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"converting {gguf.path} did not finish within {limit_s:.0f} s and was stopped", code="conversion_failed"
        ) from error
    if done.returncode != 0:
        said = "\n".join(done.stderr.decode("utf-8", "replace").strip().splitlines()[-_STDERR_LINES:])
        raise ModelError(
            f"converting {gguf.path} failed: {_how_it_ended(done.returncode)}{f': {said}' if said else ''}",
            code="conversion_failed",
        )


def _how_it_ended(returncode: int) -> str:
    if returncode >= 0:
        return f"the converter exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = {
        "SIGSEGV": " (the file is probably corrupt; fetch it again)",
        "SIGBUS": " (the file was probably truncated while it was read)",
        "SIGKILL": " (probably out of memory)",
    }.get(name, "")
    return f"the converter was killed by {name}{hint}"
