"""`Hours`: the times of the day at which batch work may begin."""

from __future__ import annotations

import re
from dataclasses import dataclass

DAY_S = 86_400
_SPAN = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hours:
    """Spans in seconds since midnight, each up to its last, which may be of the next day. None: always."""

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, texts: tuple[str, ...]) -> Hours:
        """Of texts like `01:00-06:00` or `22:00-06:00`. Raises ValueError that says what is wrong with which."""
        return cls(tuple(map(_span, texts)))

    def opens_in_s(self, hour: int, minute: int = 0, second: int = 0) -> int:
        """By the clock on the wall; 0 while work may begin."""
        now = hour * 3600 + minute * 60 + second
        return min((_until(span, now) for span in self.spans), default=0)


def _span(text: str) -> tuple[int, int]:
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no time of day; write it as 01:00-06:00")
    begin, end = (_second(text, *found.group(hour, minute)) for hour, minute in ((1, 2), (3, 4)))
    if begin == end:
        raise ValueError(f"{text!r} begins when it ends; leave it out for all day")
    return begin, end


def _second(text: str, hour: str, minute: str) -> int:
    second = int(hour) * 3600 + int(minute) * 60
    if int(minute) > 59 or second > DAY_S:
        raise ValueError(f"{text!r} has {hour}:{minute}, which is no time of day: 00:00 to 24:00")
    return second


def _until(span: tuple[int, int], now: int) -> int:
    begin, end = span
    inside = begin <= now < end if begin < end else now >= begin or now < end
    return 0 if inside else (begin - now) % DAY_S
