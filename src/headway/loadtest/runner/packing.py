"""Records as bytes, column by column, for the way between processes: what is unpacked is what was packed."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec

from headway.loadtest.record import CountedBy, Fate, Record

_ENUMS: dict[str, type[Enum]] = {"fate": Fate, "counted": CountedBy}
_GAPS = {"gaps_ns": "q", "gap_tokens": "H"}  # arrays, one of each to a record
_FIELDS = [one.name for one in dataclasses.fields(Record)]


def pack(records: list[Record]) -> bytes:
    columns = {name: _packed(name, [getattr(record, name) for record in records]) for name in _FIELDS}
    return msgspec.msgpack.encode(columns)


def unpack(data: bytes) -> list[Record]:
    columns: dict[str, list[Any]] = msgspec.msgpack.decode(data)
    rows = zip(*(_unpacked(name, columns[name]) for name in _FIELDS), strict=True)
    return [Record(*row) for row in rows]


def _packed(name: str, values: list[Any]) -> list[Any]:
    """["n", numbers] of whole numbers, ["g", lengths, numbers] of gaps, ["s", words, places] of anything repeated."""
    if name in _GAPS:
        joined = array(_GAPS[name])
        for value in values:
            joined.extend(value)
        return ["g", array("q", map(len, values)).tobytes(), joined.tobytes()]
    if values and type(values[0]) is int:
        return ["n", array("q", values).tobytes()]
    if name in _ENUMS:
        values = [value.value for value in values]
    words = {word: place for place, word in enumerate(dict.fromkeys(values))}
    return ["s", list(words), array("q", (words[value] for value in values)).tobytes()]


def _unpacked(name: str, column: list[Any]) -> Iterable[Any]:
    kind, *parts = column
    if kind == "n":
        return _numbers("q", parts[0])
    if kind == "g":
        return _slices(_numbers("q", parts[0]), _numbers(_GAPS[name], parts[1]))
    words: list[Any] = parts[0]
    if name in _ENUMS:
        words = [_ENUMS[name](word) for word in words]
    return [words[place] for place in _numbers("q", parts[1])]


def _numbers(kind: str, data: bytes) -> array[int]:
    numbers: array[int] = array(kind)
    numbers.frombytes(data)
    return numbers


def _slices(lengths: Iterable[int], joined: array[int]) -> Iterable[array[int]]:
    at = 0
    for length in lengths:
        yield joined[at : at + length]
        at += length
