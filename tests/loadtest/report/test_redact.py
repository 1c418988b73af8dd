"""No key gets into a report, wherever it came from; and what is no key stays readable."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadtest.redact import MASK, Redactor, is_secret_name
from headway.loadtest.result import Finding, Word
from tests.loadtest.report.sample_run import Sample, changed

KEY = "Zx81-hunter2-q9"
SURROUNDINGS = [
    "http://me:{}@host:8000/v1",
    "http://{}@host/v1",
    "https://host/v1?api_key={}&x=1",
    "https://host/v1?x=1&token={}",
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    "refused: 'Authorization': 'Bearer {}'",
    '{{"api_key": "{}"}}',
    "x-api-key: {}",
    "headway bench http://host --api-key {} --duration 10",
    "headway bench http://host --api-key={}",
    "HF_TOKEN={} headway bench",
    "Incorrect API key provided: {}.",
    "sent Bearer {} to the server",
    "password={}",
    "client_secret: {}",
]


@pytest.mark.parametrize("text", SURROUNDINGS)
def test_a_key_is_told_by_what_stands_around_it(text: str) -> None:
    clean = Redactor().text(text.format(KEY))
    assert KEY not in clean
    assert "hunter2" not in clean


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-abcdef123456",
        "hf_abcdefghijkl",
        "ghp_abcdefghij123",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOi.eyJzdWIiOi.c2ln",
    ],
)
def test_a_key_is_told_by_its_shape(key: str) -> None:
    assert Redactor().text(f"the server said {key} is no good") == f"the server said {MASK} is no good"


@given(st.text(min_size=8, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_a_known_key_is_never_told(key: str, before: str, after: str) -> None:
    assert key not in Redactor([key]).text(before + key + after).replace(MASK, "") or key in MASK


@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=7))
def test_a_short_known_key_is_hidden_as_a_word(key: str) -> None:
    assert Redactor([key]).text(f"key ({key}) refused").startswith("key (***)") or key in "key refused"


@given(st.sampled_from(SURROUNDINGS), st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=30))
def test_hiding_twice_changes_nothing_more(text: str, key: str) -> None:
    redactor = Redactor([KEY])
    once = redactor.text(text.format(key))
    assert redactor.text(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:8000/v1?model=a&stream=true",
        "max_tokens: 16, input tokens: 200, prompt_tokens=12",
        "kv_cache_dtype=fp8 max_num_seqs=24 --max-model-len 4096 --seed 7",
        "pad_token: 0, eos_token=2",
        "Connection to host:8000 refused",
        "This model's maximum context is 4096 tokens. Missing key: messages",
        "write to a@b.example",
        "a token: <|im_end|>",
        "Basic authentication is required",
    ],
)
def test_what_is_no_key_stays(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    "name", ["api_key", "x-api-key", "apiKey", "OPENAI_API_KEY", "HF_TOKEN", "auth", "Authorization"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["max_tokens", "pad_token", "key_cache_dtype", "monkey", "author", "model", ""])
def test_names_of_others(name: str) -> None:
    assert not is_secret_name(name)


def test_a_whole_run_is_cleaned_wherever_the_key_stands(made: Sample) -> None:
    dirty = msgspec.convert(msgspec.to_builtins(made.run), type(made.run))  # a deep copy
    dirty.target.url = f"http://me:{KEY}@host/v1?key={KEY}"
    dirty.environment.noted = {"api_key": KEY, "command": f"bench --api-key {KEY}", "rack": "b7"}
    dirty.environment.flags = {"hf-token": KEY, "max_num_seqs": "24"}
    dirty.load.settings = {"headers": f"Authorization: Bearer {KEY}"}
    dirty.summary.errors = {f"Incorrect API key provided: {KEY}1": 2, f"Incorrect API key provided: {KEY}2": 3, "x": 1}
    dirty.verdict.findings = [Finding(verdict=Word.SERVER_ERRORS, evidence=f"401: {KEY}")]
    clean = Redactor([KEY]).struct(dirty)
    assert "hunter2" not in msgspec.json.encode(clean).decode()
    assert clean.environment.noted["rack"] == "b7"
    assert clean.environment.flags["max_num_seqs"] == "24"
    assert sum(clean.summary.errors.values()) == 6
    assert clean.target.url == f"http://host/v1?key={MASK}"


def test_nothing_else_of_a_run_changes(made: Sample) -> None:
    assert Redactor(["not-in-there"]).struct(made.run) == made.run
    assert Redactor().struct(changed(made.run, interrupted=True)).interrupted
