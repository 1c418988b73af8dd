"""Reading inputs: every form, and everything that can be wrong with a line, which never costs the next one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.offline.errors import InputUnreadable
from headway.offline.inputs import MAX_LINE_BYTES, Format, line_of, read
from headway.offline.items import CHAT, COMPLETIONS, BadLine, Item, sketch
from tests.offline.fakes import openai_line


def lines_of(path, data, **format):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return [one.line for one in read(path, Format(**format))]


def test_openai_lines(tmp_path):
    chat = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": [{"role": "user", "content": "é"}]}}
    found = lines_of(tmp_path / "in.jsonl", json.dumps(chat) + "\n" + json.dumps(openai_line(2)))
    assert [(one.line, one.custom_id, one.url) for one in found] == [(1, "a", CHAT), (2, "item-2", COMPLETIONS)]
    assert json.loads(found[0].body) == chat["body"]


def test_bom_crlf_and_blank_lines_do_not_matter(tmp_path):
    text = "\r\n".join(json.dumps(openai_line(number)) for number in range(3))
    plain = lines_of(tmp_path / "a.jsonl", text.replace("\r\n", "\n"))
    other = lines_of(tmp_path / "b.jsonl", b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n  \r\n")
    assert [one.body_hash for one in plain] == [one.body_hash for one in other]
    assert [one.key for one in plain] == [one.key for one in other]


def test_plain_prompts_and_messages(tmp_path):
    text = '{"prompt": "Hello", "max_tokens": 5}\n{"messages": [{"role": "user", "content": "x"}], "id": 7}\n'
    prompt, chat = lines_of(tmp_path / "in.jsonl", text)
    assert (prompt.custom_id, prompt.url, json.loads(prompt.body)) == (
        "line-1",
        COMPLETIONS,
        {"prompt": "Hello", "max_tokens": 5},
    )
    assert (chat.custom_id, chat.url) == ("7", CHAT)
    as_chat, _ = lines_of(tmp_path / "in.jsonl", text, chat=True)
    assert as_chat.url == CHAT
    assert json.loads(as_chat.body) == {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('{"custom_id": "a", "url"', "invalid_json", "Line 17: it is not a JSON object"),
        ("[1]", "invalid_json", "not a JSON object"),
        (b'{"a": "\xff"}', "invalid_json", "not UTF-8"),
        ('{"url": "/v1/completions", "body": {}}', "invalid_custom_id", "no `custom_id`; add one"),
        ('{"custom_id": "", "url": "/v1/completions", "body": {}}', "invalid_custom_id", "1 to 512 characters"),
        ('{"custom_id": {"x": 1}, "url": "/v1/completions", "body": {}}', "invalid_custom_id", "1 to 512"),
        ('{"custom_id": "a", "url": "/v1/completions"}', "missing_body", "neither `body` nor `prompt`"),
        ('{"custom_id": "a", "body": {}}', "invalid_url", "no `url`; there are /v1/chat/completions and"),
        ('{"custom_id": "a", "url": "/v1/embeddings", "body": {}}', "invalid_url", "the url '/v1/embeddings'"),
        ('{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}', "invalid_method", "'GET'"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": []}', "invalid_body", "not an object"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_and_the_next_is_read(tmp_path, text, code, words):
    text = text if isinstance(text, bytes) else text.encode()
    found = lines_of(tmp_path / "in.jsonl", b"\n" * 16 + text + b"\n" + json.dumps(openai_line(1)).encode())
    bad, good = found
    assert isinstance(bad, BadLine)
    assert (bad.line, bad.code) == (17, code)
    assert words in bad.message
    assert isinstance(good, Item)


def test_a_line_without_end_is_not_held_in_memory(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"prompt": "' + b"x" * (2 * MAX_LINE_BYTES) + b'"}\n{"prompt": "y"}\n')
    bad, good = [one.line for one in read(path, Format())]
    assert isinstance(bad, BadLine)
    assert "Line 1: it is longer than" in bad.message
    assert (good.line, good.custom_id) == (2, "line-2")


@given(st.binary(max_size=300))
def test_no_line_is_so_odd_that_it_stops_anything(data):
    found = line_of(3, data.replace(b"\n", b" ").strip() or b"x", Format())
    assert found.line == 3
    if isinstance(found, Item):
        sketch(found)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\xff\xfea\0", "is UTF-16"), (b"\x1f\x8b\x08\x00", "is gzip"), (b"PK\x03\x04", "is zip")],
)
def test_other_encodings_are_named(tmp_path, data, words):
    with pytest.raises(InputUnreadable, match=words):
        lines_of(tmp_path / "in.jsonl", data)


def test_no_file_and_a_folder_are_errors(tmp_path):
    for path in (tmp_path / "nothing.jsonl", tmp_path):
        with pytest.raises(InputUnreadable, match="cannot be read"):
            list(read(path, Format()))


# -- CSV ---------------------------------------------------------------------------------------------------------------

CSV = 'name,text\n"Smith, J","said ""hi""\nand left"\nBob,bye\n'


def test_csv_with_a_template(tmp_path):
    found = lines_of(tmp_path / "in.csv", "\ufeff" + CSV.replace("\n", "\r\n"), template="{name}: {text} {{end}}")
    assert [json.loads(one.body)["prompt"] for one in found] == [
        'Smith, J: said "hi"\r\nand left {end}',
        "Bob: bye {end}",
    ]
    assert [one.custom_id for one in found] == ["row-2", "row-4"]


def test_csv_with_a_column_an_id_and_chat(tmp_path):
    found = lines_of(tmp_path / "in.csv", CSV, column="text", id_column="name", chat=True)
    assert [one.custom_id for one in found] == ["Smith, J", "Bob"]
    assert json.loads(found[1].body) == {"messages": [{"role": "user", "content": "bye"}]}


@pytest.mark.parametrize(
    ("format", "words"),
    [
        ({}, "Say with --column or --template which column is the prompt; the columns are 'name', 'text'"),
        ({"column": "body"}, "no column 'body'; the columns are 'name', 'text'"),
        ({"template": "{nam}"}, "no column 'nam'"),
        ({"template": "{"}, "--template cannot be read"),
        ({"template": "no column"}, "names no column"),
        ({"template": "{name}", "column": "text"}, "--column or --template"),
        ({"column": "text", "id_column": "id"}, "no column 'id'"),
    ],
)
def test_columns_that_are_not_there(tmp_path, format, words):
    with pytest.raises(ConfigError, match=words.replace("(", "\\(")):
        lines_of(tmp_path / "in.csv", CSV, **format)


def test_a_row_of_another_length_is_bad_and_the_next_is_read(tmp_path):
    bad, good = lines_of(tmp_path / "in.csv", "prompt,b\nonly one\nx,y\n")
    assert "Line 2: it has 1 fields, and the first line names 2" in bad.message
    assert json.loads(good.body) == {"prompt": "x"}


# -- what decides about the order --------------------------------------------------------------------------------------


def item(body, url=CHAT):
    return Item(1, "a", url, json.dumps(body).encode(), 1, 1)


def chat(system, user, **more):
    return item({"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}], **more})


def test_items_with_the_same_instructions_are_of_one_group():
    one, other = "You are kind. " * 40, "You are rude. " * 40
    assert sketch(chat(one, "a")).group == sketch(chat(one, "quite another question")).group != 0
    assert sketch(chat(one, "a")).group != sketch(chat(other, "a")).group
    assert sketch(chat("short", "a")).group == 0


def test_prompts_that_begin_alike_are_of_one_group():
    start = "Translate the following text into French, and mind the tone. " * 6
    groups = {sketch(item({"prompt": start + text}, COMPLETIONS)).group for text in ("one", "two", "three")}
    assert len(groups) == 1
    assert groups != {0}


def test_lengths_are_counted_or_guessed():
    assert sketch(item({"prompt": [5] * 77, "max_tokens": 9}, COMPLETIONS)).input_tokens == 77
    found = sketch(item({"prompt": "x" * 400, "max_tokens": 9, "n": 3}, COMPLETIONS))
    assert (found.input_tokens, found.output_tokens) == (100, 27)
