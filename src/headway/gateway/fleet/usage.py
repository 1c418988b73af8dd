"""What an answer of a kind that is not known here says that it cost, if it says so as OpenAI's do."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.core.request import Usage


class _Counts(msgspec.Struct):
    prompt_tokens: Any = None
    input_tokens: Any = None
    completion_tokens: Any = None
    output_tokens: Any = None


class _Body(msgspec.Struct):
    usage: _Counts | None = None


_body = msgspec.json.Decoder(_Body)


def usage_in(body: bytes, estimate: int) -> Usage:
    """`estimate` stands for the prompt where the answer says nothing."""
    try:
        counts = _body.decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        counts = None
    if counts is None:
        return Usage(estimate, 0)
    prompt = _first(counts.prompt_tokens, counts.input_tokens)
    output = _first(counts.completion_tokens, counts.output_tokens)
    return Usage(estimate if prompt is None else prompt, output or 0)


def _first(*values: Any) -> int | None:
    return next((value for value in values if type(value) is int and value >= 0), None)
