"""Whatever is in the file, the answer is a checked header or a `ModelError`, soon."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.errors import ModelError
from headway.models.convert import check_convertible
from headway.models.gguf_file import TENSOR_TYPES, check_not_blank, read_gguf
from headway.models.gguf_tokenizer import check_tokenizer
from tests.models import tiny_gguf

SAME_FILE = settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_it_reads_what_the_reference_reader_reads(tiny_file: Path) -> None:
    ours, theirs = read_gguf(tiny_file), gguf.GGUFReader(tiny_file)
    metadata = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == metadata
    assert [(t.name, t.shape, t.type_name, t.start, t.size_bytes) for t in ours.tensors.values()] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]


def test_the_table_of_types_is_the_reference_table() -> None:
    reference = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert not set(TENSOR_TYPES.items()) - set(reference.items())


@SAME_FILE
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(tiny_file: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = tiny_file.read_bytes()
    last = max(t.start + t.size_bytes for t in read_gguf(tiny_file).tensors.values())
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: data.draw(st.integers(0, last - 1))])
    with pytest.raises(ModelError, match=r"truncated|less than a GGUF header"):
        read_gguf(cut)


def test_a_cut_in_the_tensors_names_the_tensor_and_the_sizes(tiny_file: Path, tmp_path: Path) -> None:
    victim = read_gguf(tiny_file).tensors["blk.0.ffn_up.weight"]
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_file.read_bytes()[: victim.start + 10])
    with pytest.raises(ModelError, match="truncated") as caught:
        read_gguf(cut)
    assert f"{victim.start + 10:,}" in caught.value.message


@SAME_FILE
@given(data=st.data())
def test_a_corrupt_header_is_read_or_refused_and_never_crashes(
    tiny_file: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(tiny_file.read_bytes())
    header = min(t.start for t in read_gguf(tiny_file).tensors.values())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header - 9))
        with_bytes = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8))))
        content[at : at + len(with_bytes)] = with_bytes
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content)
    try:
        file = read_gguf(broken)
        check_convertible(file)
        check_tokenizer(file)
    except ModelError as error:
        assert str(broken) in error.message
    else:
        size = len(content)
        assert all(t.start + t.size_bytes <= size for t in file.tensors.values())


@SAME_FILE
@given(st.binary(max_size=200))
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "garbage.gguf"
    for start in (b"", b"GGUF", b"GGUF\x03\0\0\0"):
        file.write_bytes(start + content)
        with pytest.raises(ModelError):
            read_gguf(file)


def header(tensors: int, entries: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def entry(kind: int, value: bytes, key: bytes = b"k") -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def tensor(shape: list[int], kind: int, offset: int, name: bytes = b"t") -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + dimensions + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (b"PK\x03\x04" + bytes(100), "starts with"),
        (header(0, 0, version=1), "version 1"),
        (header(0, 0, version=0x03000000), "big-endian"),
        (header(2**63, 0), "tensor count"),
        (header(0, 2**63), "metadata count"),
        (header(0, 1, entry(8, struct.pack("<Q", 2**64 - 1))), "length of the value"),
        (header(0, 1, entry(9, struct.pack("<IQ", 10, 2**61))), "length of 'k'"),
        (header(0, 1, entry(9, struct.pack("<IQ", 8, 2**40))), "length of 'k'"),
        (header(0, 1, entry(9, struct.pack("<IQ", 9, 1)) + bytes(64)), "array of unsupported type 9"),
        (header(0, 1, entry(99, bytes(8))), "unknown type 99"),
        (header(0, 2, entry(0, b"\0") * 2), "twice"),
        (header(1, 0, tensor([1] * 5, 0, 0)), "5 dimensions"),
        (header(1, 0, tensor([2**63, 2**63], 0, 0) + bytes(64)), "should occupy"),
        (header(1, 0, tensor([32, 0], 0, 0) + bytes(64)), "impossible"),
        (header(1, 0, tensor([33], 2, 0) + bytes(64)), "impossible for Q4_0"),
        (header(1, 0, tensor([32], 4, 0) + bytes(64)), "unknown type 4"),
        (header(1, 0, tensor([8], 0, 2**64 - 32) + bytes(64)), "should occupy"),
        (header(1, 0, tensor([1], 0, 7) + bytes(64)), "truncated or corrupt"),
        (header(2, 0, tensor([1], 0, 0) * 2 + bytes(64)), "twice"),
        (header(0, 1, entry(4, struct.pack("<I", 24), b"general.alignment")), "power of two"),
    ],
)
def test_an_absurd_header_is_refused_by_what_is_wrong(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "absurd.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=says):
        read_gguf(file)


def test_a_big_endian_file_is_named_as_such(tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "big.gguf", endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(ModelError, match="big-endian"):
        read_gguf(file)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot read"):
            read_gguf(path)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.ffn_down.weight"])
def test_a_matrix_of_zeros_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file = read_gguf(tiny_gguf.write(tmp_path / "blank.gguf", zeroed=[name]))
    with pytest.raises(ModelError, match=f"'{name}' is all zeros"):
        check_not_blank(file)


def test_a_vector_of_zeros_may_be_meant(tmp_path: Path) -> None:
    check_not_blank(read_gguf(tiny_gguf.write(tmp_path / "biased.gguf", zeroed=["output_norm.weight"])))


def test_a_matrix_that_begins_with_zeros_is_not_blank(tiny_file: Path, tmp_path: Path) -> None:
    embedding = read_gguf(tiny_file).tensors["token_embd.weight"]
    content = bytearray(tiny_file.read_bytes())
    content[embedding.start : embedding.start + embedding.size_bytes - 1] = bytes(embedding.size_bytes - 1)
    content[embedding.start + embedding.size_bytes - 1] = 1
    mostly = tmp_path / "mostly.gguf"
    mostly.write_bytes(content)
    check_not_blank(read_gguf(mostly))


def test_the_header_digest_tells_models_apart(tiny_file: Path, tmp_path: Path) -> None:
    same = read_gguf(tiny_gguf.write(tmp_path / "same.gguf")).header_sha256
    other = read_gguf(tiny_gguf.write(tmp_path / "other.gguf", more=lambda w: w.add_name("other"))).header_sha256
    assert read_gguf(tiny_file).header_sha256 == same
    assert other != same
