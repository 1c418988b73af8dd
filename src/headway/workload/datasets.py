"""Prompts that people collected: conversations as in ShareGPT, and JSON lines of one's own. Both become items.

Conversations: a JSON list, or JSON lines, of {"conversations": [{"from": "human", "value": …}, …]} or of
{"messages": [{"role": "user", "content": …}, …]}. The first turn of the user is asked; the reply to it says how long
the answer is.

Own lines: {"prompt": …} or {"messages": […]}, optionally max_tokens (or output_tokens), tenant and kind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.workload import lines
from headway.workload.errors import MAX_TOKENS, WorkloadError, check_whole, shown
from headway.workload.item import Item
from headway.workload.prompts import texts
from headway.workload.tokens import Counted, Measure, words_in

_USERS = frozenset({"user", "human"})
_MODELS = frozenset({"assistant", "gpt", "chatgpt", "model", "bot", "bing", "bard"})

Content = str | list[dict[str, Any]]  # text, or parts of which some may be images


@dataclass(frozen=True, slots=True)
class Dataset:
    """What was read, and what was left out."""

    items: list[Item]
    name: str  # of the file, without its folder
    skipped: dict[str, int]  # why -> entries

    @property
    def description(self) -> str:
        """One line for people."""
        left_out = [f"{count:,} left out: {why}" for why, count in self.skipped.items()]
        return "; ".join([f"{len(self.items):,} prompts of {self.name}", *left_out])


class _Turn(msgspec.Struct):
    speaker: str = msgspec.field(name="from", default="")
    value: str = ""


class _Message(msgspec.Struct):
    role: str = ""
    content: Content | None = None


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] | None = None
    messages: list[_Message] | None = None

    def turns(self) -> Iterator[tuple[str, Content]]:
        for turn in self.conversations or ():
            yield turn.speaker.lower(), turn.value
        for message in self.messages or ():
            yield message.role.lower(), message.content or ""


def read_prompts(path: str | Path, measure: Measure, *, output_tokens: int | None = None) -> Dataset:
    """Own lines. `output_tokens` is for lines that do not say how long their answer is.

    Raises:
        WorkloadError: the file cannot be read or is empty, or a line is wrong; the message names file, line and field.
    """
    _check_output(output_tokens)
    items = []
    for number, row in lines.json_lines(path):
        try:
            items.append(_prompt_item(row, measure, output_tokens))
        except WorkloadError as error:
            raise lines.at_line(path, number, error) from None
    if not items:
        raise WorkloadError(f"{path} holds no prompt; write one JSON object a line", field="path")
    return Dataset(items, Path(path).name, {})


def _prompt_item(row: lines.Row, measure: Measure, output_tokens: int | None) -> Item:
    has_prompt, has_messages = row.get("prompt") is not None, row.get("messages") is not None
    if has_prompt == has_messages:
        which = "both" if has_prompt else "neither"
        raise WorkloadError(f"a line holds prompt or messages; this has {which}", field="prompt")
    if has_prompt:
        if not isinstance(row["prompt"], str) or not row["prompt"].strip():
            raise WorkloadError(f"prompt must be a text that is not empty, not {shown(row['prompt'])}", field="prompt")
        messages = [{"role": "user", "content": row["prompt"]}]
    else:
        messages = lines.messages(row)
    field = "max_tokens" if row.get("max_tokens") is not None else "output_tokens"
    asked = row.get(field)
    if asked is None:
        asked = output_tokens
    if asked is None:
        raise WorkloadError(
            "output_tokens is missing: say it here (max_tokens does as well), or one length for all lines",
            field="output_tokens",
        )
    return Item(
        _input_tokens(measure, messages),
        check_whole(field, asked, 1, MAX_TOKENS, "tokens"),
        kind=lines.name(row, "kind"),
        tenant=lines.name(row, "tenant"),
        messages=messages,
    )


def read_conversations(
    path: str | Path,
    measure: Measure,
    *,
    output_tokens: int | None = None,
    max_input_tokens: int | None = None,
    max_output_tokens: int | None = None,
    limit: int | None = None,
) -> Dataset:
    """Conversations. `output_tokens` is asked of all in place of the replies' lengths; those are counted with a
    tokenizer and estimated without. Prompts above `max_input_tokens` are left out, answers shortened to
    `max_output_tokens`. At most `limit` items are made.

    Raises:
        WorkloadError: the file cannot be read or is no such JSON, or no conversation can be used.
    """
    _check_output(output_tokens)
    items: list[Item] = []
    skipped: Counter[str] = Counter()
    for conversation in _conversations(path):
        prompt, reply = _exchange(conversation)
        messages = [{"role": "user", "content": prompt}]
        if _is_empty(prompt):
            skipped["no turn of a user"] += 1
            continue
        if output_tokens is None and _is_empty(reply):
            skipped["no reply to measure"] += 1
            continue
        input_len = _input_tokens(measure, messages)
        if max_input_tokens is not None and input_len > max_input_tokens:
            skipped[f"more than {max_input_tokens:,} input tokens"] += 1
            continue
        output_len = output_tokens if output_tokens is not None else _reply_tokens(measure, reply)
        items.append(Item(input_len, min(output_len, max_output_tokens or output_len), messages=messages))
        if limit is not None and len(items) >= limit:
            break
    if not items:
        why = "; ".join(f"{count:,}: {reason}" for reason, count in skipped.items()) or "it is empty"
        raise WorkloadError(f"no conversation of {path} can be used ({why})", field="path")
    return Dataset(items, Path(path).name, dict(skipped))


def _conversations(path: str | Path) -> Iterator[_Conversation]:
    with lines.reading(path):
        data = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] == b"[":
        try:
            yield from msgspec.json.decode(data, type=list[_Conversation])
        except msgspec.ValidationError as error:
            raise WorkloadError(
                f"{path}: {error}, counted from 0. Correct it or remove it", field="conversations"
            ) from None
        except msgspec.DecodeError as error:
            raise WorkloadError(f"{path}{_line_of(error, data)}: {error}", field="path") from None
        return
    for number, row in lines.json_lines(path):
        try:
            yield msgspec.convert(row, _Conversation)
        except msgspec.ValidationError as error:
            raise lines.at_line(path, number, WorkloadError(str(error), field="conversations")) from None


def _line_of(error: msgspec.DecodeError, data: bytes) -> str:
    """The line that a decoder's message is about: it names a byte, or else the first whose text is none is meant."""
    found = re.search(r"byte (\d+)", str(error))
    if found is not None:
        line = data.count(b"\n", 0, int(found[1])) + 1
        return f":{line}"
    number = next((number for number, line in enumerate(data.split(b"\n"), 1) if not lines.is_text(line)), None)
    return f":{number}" if number is not None else ""


def _exchange(conversation: _Conversation) -> tuple[Content, Content]:
    """What the user said first and the reply to it, each empty where there is none."""
    turns = list(conversation.turns())
    for place, (speaker, said) in enumerate(turns):
        if speaker in _USERS:
            after = turns[place + 1] if place + 1 < len(turns) else ("", "")
            return said, after[1] if after[0] in _MODELS else ""
    return "", ""


def _is_empty(content: Content) -> bool:
    return not (content.strip() if isinstance(content, str) else content)


def _input_tokens(measure: Measure, messages: list[dict[str, Any]]) -> int:
    """Of the text; what an image costs is not known here."""
    text = "\n\n".join(texts(messages))
    if isinstance(measure, Counted):
        return max(1, measure.count(text) + measure.overhead_tokens)
    return measure.tokens_for(words_in(text))


def _reply_tokens(measure: Measure, reply: Content) -> int:
    text = "\n\n".join(texts([{"content": reply}]))
    tokens = measure.count(text) if isinstance(measure, Counted) else round(words_in(text) * measure.tokens_per_word)
    return min(max(1, tokens), MAX_TOKENS)


def _check_output(output_tokens: int | None) -> None:
    if output_tokens is not None:
        check_whole("output_tokens", output_tokens, 1, MAX_TOKENS, "tokens")
