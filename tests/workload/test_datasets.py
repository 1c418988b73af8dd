"""Collected prompts: every form is read, and what is wrong is named by file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.workload.datasets import read_conversations, read_prompts
from headway.workload.errors import WorkloadError
from headway.workload.item import Item
from headway.workload.tokens import Calibration, Counted, words_in

BY_WORDS = Counted(words_in, overhead_tokens=10)


def write(tmp_path: Path, *rows: Any, name: str = "data.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def said(question: str, answer: str | None = None) -> dict[str, Any]:
    turns = [{"from": "human", "value": question}]
    return {"id": "x", "conversations": turns + ([{"from": "gpt", "value": answer}] if answer is not None else [])}


def test_own_lines_become_items(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who are you?"}]
    path = write(
        tmp_path,
        {"prompt": "Tell me a story", "max_tokens": 50, "tenant": "a", "kind": "story", "id": 7},
        "",
        {"messages": messages, "output_tokens": 9},
        {"prompt": "Hm"},
    )
    assert read_prompts(path, BY_WORDS, output_tokens=77).items == [
        Item(14, 50, "story", "a", messages=[{"role": "user", "content": "Tell me a story"}]),
        Item(15, 9, messages=messages),
        Item(11, 77, messages=[{"role": "user", "content": "Hm"}]),
    ]


@pytest.mark.parametrize(
    ("row", "field", "what"),
    [
        ("{", "", "this is none"),
        ("[1]", "", "must hold a JSON object, not [1]"),
        ({}, "prompt", "holds prompt or messages; this has neither"),
        ({"prompt": "x", "messages": []}, "prompt", "this has both"),
        ({"prompt": 5, "max_tokens": 1}, "prompt", "prompt must be a text that is not empty, not 5"),
        ({"prompt": " ", "max_tokens": 1}, "prompt", "not empty"),
        ({"messages": [], "max_tokens": 1}, "messages", "messages must be a list of at least one message, not []"),
        ({"messages": ["x"], "max_tokens": 1}, "messages", "messages[0] must be an object"),
        ({"messages": [{"content": "x"}], "max_tokens": 1}, "messages", "messages[0].role must be a text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages[0].content must be a text or a list"),
        ({"prompt": "x"}, "output_tokens", "output_tokens is missing"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "max_tokens must be 1 to 10,000,000 tokens, not 0"),
        ({"prompt": "x", "max_tokens": -3}, "max_tokens", "not -3"),
        ({"prompt": "x", "max_tokens": "9"}, "max_tokens", "max_tokens must be a number, not '9'"),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens", "must be a whole number, not 1.5"),
        ('{"prompt": "x", "max_tokens": NaN}', "max_tokens", "not nan"),
        ({"prompt": "x", "max_tokens": 1, "tenant": 5}, "tenant", "tenant must be a text"),
        ({"prompt": "x", "max_tokens": 1, "kind": "k" * 500}, "kind", "kind must be a text of at most 200"),
    ],
)
def test_a_bad_own_line_is_named(tmp_path: Path, row: Any, field: str, what: str) -> None:
    path = write(tmp_path, {"prompt": "good", "max_tokens": 1}, row, {"prompt": "good", "max_tokens": 1})
    with pytest.raises(WorkloadError) as error:
        read_prompts(path, BY_WORDS)
    assert str(error.value).startswith(f"{path}:2: ")
    assert str(error.value).endswith("Correct the line or remove it.")
    assert what in str(error.value)
    assert error.value.field == field


HALVES = ["\\ud83d", "\\ud83d and more", "\\udc00", "\\ude00\\ud83d", "\\\\\\ud83d", "\\ud83d\\ude00\\ude00"]


@pytest.mark.parametrize("half", HALVES)
def test_half_a_character_is_no_text(tmp_path: Path, half: str) -> None:
    """JSON can escape it, and no request could carry it."""
    good = '{"prompt": "a whole one: \\ud83d\\ude00, and \\\\ud83d is none", "max_tokens": 1}'
    own = write(tmp_path, good, '{"prompt": "HALF", "max_tokens": 1}'.replace("HALF", half))
    turns = '{"conversations": [{"from": "human", "value": "HALF"}, {"from": "gpt", "value": "b"}]}'
    listed = write(tmp_path, "[", turns.replace("HALF", half), "]", name="list.json")
    rows = write(tmp_path, turns.replace("HALF", "a"), turns.replace("HALF", half), name="rows.jsonl")
    for read, path in ((read_prompts, own), (read_conversations, listed), (read_conversations, rows)):
        with pytest.raises(WorkloadError, match=rf"{path.name}:2: "):
            read(path, BY_WORDS)
    assert len(read_prompts(write(tmp_path, good), BY_WORDS).items) == 1


def test_bytes_that_are_no_text_are_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(b'[\n{"messages": [{"role": "user", "content": "a\xff"}]}\n]')
    with pytest.raises(WorkloadError, match=r"list.json:2: "):
        read_conversations(path, BY_WORDS)


@pytest.mark.parametrize("as_list", [True, False])
def test_conversations_ask_the_first_turn_and_measure_its_reply(tmp_path: Path, as_list: bool) -> None:
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    entries = [
        said("How far is the moon", "About a light second away"),
        {"conversations": [{"from": "gpt", "value": "Hello"}, *said("One two", "three")["conversations"]]},
        said("No answer"),
        said(" ", "what"),
        {"conversations": []},
        {
            "messages": [
                {"role": "system", "content": "x"},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "a b"},
            ]
        },
        {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "seen"}]},
        said("a b c d e f g h i j k", "long"),
        said("Much", "w " * 50),
    ]
    path = write(tmp_path, entries, name="x.json") if as_list else write(tmp_path, *entries)
    read = read_conversations(path, BY_WORDS, max_input_tokens=20, max_output_tokens=30)
    assert [(item.input_tokens, item.output_tokens) for item in read.items] == [
        (15, 5),
        (12, 1),
        (11, 2),
        (11, 1),
        (11, 30),
    ]
    assert [item.messages[0]["content"] for item in read.items if item.messages] == [
        "How far is the moon",
        "One two",
        "Hi",
        parts,
        "Much",
    ]
    assert read.skipped == {"no reply to measure": 1, "no turn of a user": 2, "more than 20 input tokens": 1}
    assert "2 left out: no turn of a user" in read.description


def test_one_output_length_can_be_asked_of_all(tmp_path: Path) -> None:
    path = write(tmp_path, said("No answer"), said("Why", "because"))
    assert [item.output_tokens for item in read_conversations(path, BY_WORDS, output_tokens=64).items] == [64, 64]
    assert len(read_conversations(path, BY_WORDS, output_tokens=64, limit=1).items) == 1


def test_without_a_tokenizer_lengths_are_estimated(tmp_path: Path) -> None:
    path = write(tmp_path, said("a b c d", "a b c d e f"))
    [item] = read_conversations(path, Calibration(1.5, 20)).items
    assert (item.input_tokens, item.output_tokens) == (26, 9)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[{"conversations": [{"from": "human", "value": 5}]}]', r"\[0\]\.conversations\[0\]\.value"),
        ('[{"conversations": 5}]', r"\[0\]\.conversations"),
        ('[\n{"conversations": []},\n{"conversations": }]', r"x\.json:3: "),
        ('{"conversations": []}\n{"conversations": 5}', r"x\.json:2: .*conversations"),
        ("", "it is empty"),
        ("[]", "it is empty"),
        ('[{"conversations": []}]', "1: no turn of a user"),
        ("\n\nhello", r"x\.json:3: a line must hold"),
    ],
)
def test_bad_conversations_are_named(tmp_path: Path, text: str, what: str) -> None:
    path = write(tmp_path, text, name="x.json")
    with pytest.raises(WorkloadError, match=what):
        read_conversations(path, BY_WORDS)


@pytest.mark.parametrize("read", [read_prompts, read_conversations])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, read) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(WorkloadError, match=f"cannot read {path}: "):
            read(path, BY_WORDS)
    with pytest.raises(WorkloadError, match="holds no prompt"):
        read_prompts(write(tmp_path, "", name="empty.jsonl"), BY_WORDS)
    with pytest.raises(WorkloadError, match="output_tokens must be 1 to"):
        read(write(tmp_path, {"prompt": "x"}), BY_WORDS, output_tokens=0)
