"""A GGUF file's header, read without trusting it: metadata, tensor names, and that every tensor lies inside the file.

The converter maps the file and follows its offsets, so a truncated download kills the process with SIGSEGV. Here
every count, length and offset is compared with the bytes that exist before it is followed; nothing is allocated on a
number's word alone, and no tensor data is read beyond the first non-zero byte. The file is mapped, so a header of
a many-gigabyte model costs what its vocabulary costs (about 0.1 s for 50,000 tokens).

Format: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import ModelError

_MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_MIN_ENTRY_BYTES = 8 + 4 + 1  # an empty key, a value type, the smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # an empty name, a dimension count, one dimension, a type, an offset

# ggml type number -> (name, weights in a block, bytes of a block)
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in the file's order: the row length first."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    start: int  # absolute position in the file
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked header. Metadata values are Python's own: str, int, float, bool, or a list of one of them."""

    path: Path
    size_bytes: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    header_sha256: str  # of everything before the tensor data: the metadata, the vocabulary, the tensor table

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def own(self, key: str) -> Any:
        """The architecture's own value, e.g. `own("block_count")` reads `llama.block_count`; None when absent."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_gguf(path: Path) -> GgufFile:
    """Read and check the header of `path`.

    Raises:
        ModelError: unreadable, not GGUF, truncated, or inconsistent; the message says what and where.
    """
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            if size_bytes < len(_MAGIC) + 20:
                raise ModelError(
                    f"{path} is not a GGUF model: it has {size_bytes} bytes, less than a GGUF header", code="bad_gguf"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data, size_bytes)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}", code="model_not_found") from error


class _Cursor:
    """A position in the mapped file that cannot pass its end."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0

    def bad(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} is a damaged GGUF file: {what} (near byte {self.at:,} of {self.size:,})", code="bad_gguf"
        )

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            raise self.bad(
                f"{what} needs {count:,} bytes and {self.size - self.at:,} are left; the file is truncated or corrupt"
            )

    def scalar(self, code: str, what: str) -> Any:
        width = struct.calcsize(code)
        self.need(width, what)
        value = struct.unpack_from(code, self.data, self.at)[0]
        self.at += width
        return value

    def count(self, what: str, least_bytes_each: int) -> int:
        """A number of things that must still fit in the file, at their smallest."""
        number = int(self.scalar("<Q", what))
        self.need(number * least_bytes_each, f"{what} of {number:,}")
        return number

    def string(self, what: str) -> str:
        length = self.count(f"the length of {what}", 1)
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")


def _parse(path: Path, data: mmap.mmap, size: int) -> GgufFile:
    cursor = _Cursor(path, data, size)
    _check_start(cursor)
    tensor_count = cursor.count("the tensor count", _MIN_TENSOR_BYTES)
    entry_count = cursor.count("the metadata count", _MIN_ENTRY_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.bad(f"metadata key {key!r} appears twice")
        metadata[key] = _value(cursor, cursor.scalar("<I", f"the type of {key!r}"), key)
    table = [_tensor_entry(cursor) for _ in range(tensor_count)]
    header = hashlib.sha256(memoryview(data)[: cursor.at]).hexdigest()
    tensors = _place(cursor, table, metadata)
    return GgufFile(path, size, metadata, tensors, header)


def _check_start(cursor: _Cursor) -> None:
    magic = cursor.data[:4]
    if magic != _MAGIC:
        raise ModelError(
            f"{cursor.path} is not a GGUF model: it starts with {magic!r}, not {_MAGIC!r}", code="bad_gguf"
        )
    cursor.at = 4
    version = cursor.scalar("<I", "the version")
    if version and version & 0xFFFF == 0:
        raise ModelError(f"{cursor.path} is a big-endian GGUF file; convert it to little-endian", code="bad_gguf")
    if version not in (2, 3):
        raise ModelError(f"{cursor.path} has GGUF version {version}; versions 2 and 3 are supported", code="bad_gguf")


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.string(f"the value of {key!r}")
    if kind == _ARRAY:
        return _array(cursor, key)
    if (code := _SCALARS.get(kind)) is None:
        raise cursor.bad(f"metadata {key!r} has unknown type {kind}")
    return cursor.scalar(code, f"the value of {key!r}")


def _array(cursor: _Cursor, key: str) -> list[Any]:
    kind = cursor.scalar("<I", f"the element type of {key!r}")
    if kind == _STRING:
        length = cursor.count(f"the length of {key!r}", 8)
        return [cursor.string(f"an element of {key!r}") for _ in range(length)]
    if (code := _SCALARS.get(kind)) is None:
        raise cursor.bad(f"metadata {key!r} is an array of unsupported type {kind}")
    width = struct.calcsize(code)
    length = cursor.count(f"the length of {key!r}", width)
    values = struct.unpack_from(f"<{length}{code[1]}", cursor.data, cursor.at)
    cursor.at += length * width
    return list(values)


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string("a tensor name")
    dimensions = cursor.scalar("<I", f"the dimensions of tensor {name!r}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.bad(f"tensor {name!r} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.scalar("<Q", f"the shape of tensor {name!r}") for _ in range(dimensions))
    kind = cursor.scalar("<I", f"the type of tensor {name!r}")
    offset = cursor.scalar("<Q", f"the offset of tensor {name!r}")
    return name, shape, kind, offset


def _place(
    cursor: _Cursor, table: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any]
) -> dict[str, TensorInfo]:
    """Turn offsets into positions, each inside the file."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.bad(f"general.alignment is {alignment!r}, not a power of two")
    data_start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in table:
        if name in tensors:
            raise cursor.bad(f"tensor {name!r} appears twice")
        if kind not in TENSOR_TYPES:
            raise cursor.bad(f"tensor {name!r} has unknown type {kind}")
        type_name, block_weights, block_bytes = TENSOR_TYPES[kind]
        weights = math.prod(shape)
        if weights == 0 or shape[0] % block_weights:
            raise cursor.bad(
                f"tensor {name!r} has shape {list(shape)}, impossible for {type_name} in blocks of {block_weights}"
            )
        size_bytes = weights // block_weights * block_bytes
        start = data_start + offset
        if offset % alignment or start + size_bytes > cursor.size:
            raise ModelError(
                f"{cursor.path} is truncated or corrupt: tensor {name!r} ({type_name}, {list(shape)}) should occupy "
                f"bytes {start:,} to {start + size_bytes:,} and the file has {cursor.size:,}. Fetch it again.",
                code="bad_gguf",
            )
        tensors[name] = TensorInfo(name, shape, type_name, start, size_bytes)
    return tensors


def check_not_blank(gguf: GgufFile) -> None:
    """Refuse a file whose weight matrices were never written: a download that reserved space and then stopped.

    Reads each matrix up to its first non-zero byte, so a sound file costs one page per tensor.

    Raises:
        ModelError: a two-dimensional weight is all zeros. (A bias may well be.)
    """
    step = 1 << 20
    with gguf.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for tensor in gguf.tensors.values():
            if len(tensor.shape) < 2 or not tensor.name.endswith(".weight"):
                continue
            end = tensor.start + tensor.size_bytes
            first = data[tensor.start : min(tensor.start + 4096, end)]
            pieces = (data[at : min(at + step, end)] for at in range(tensor.start, end, step))
            if not first.strip(b"\0") and not any(piece.strip(b"\0") for piece in pieces):
                raise ModelError(
                    f"{gguf.path}: tensor {tensor.name!r} is all zeros, so the file was never completely written. "
                    "Fetch it again.",
                    code="bad_gguf",
                )
