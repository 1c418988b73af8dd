"""Whether the server ran out of memory, by the words of its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headway.loadtest.record import Record

_WORDS = re.compile(
    r"out[ -]of[ -](?:\w+ ){0,2}memory|\boom\b|outofmemory|std::bad_alloc|cannot allocate memory|memoryerror"
    r"|failed to allocate|not enough (?:\w+ ){0,2}memory|cuda_error_out_of_memory",
    re.IGNORECASE,
)


def is_out_of_memory(record: Record) -> bool:
    return not record.ok and bool(record.error) and _WORDS.search(record.error) is not None


def out_of_memory(records: Iterable[Record]) -> str:
    """One line about those that failed for want of it; empty when there is none."""
    failed = [record for record in records if is_out_of_memory(record)]
    if not failed:
        return ""
    return f"{len(failed):,} failed because the server had none left; the first said «{failed[0].error}»"
