"""`[[worker]]`, `[[tenant]]`, `[[tokenizer]]`: what they say, and where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.config import SERVE_KEYS
from headway.cli.config_file import read_config
from headway.cli.fleet.tables import FleetTables, read_tables, worker_table
from headway.core.errors import ConfigError

GOOD = """
port = 9000

[[worker]]
url = "http://10.0.0.1:8000/"
kind = "vllm"
pool = "batch"
models = ["a", "b"]
weight = 2
api-key-env = "KEY"
most-sequences = 64
gap-timeout = 20

[[worker]]
url = "https://example.test"
id = "second"   # a name

[[tenant]]
name = "*"
tokens-per-minute = 1000
weight = 0.5

[[tenant]]
name = "alice"
max-concurrency = 4
lanes = ["short"]

[[tokenizer]]
model = "a"
path = "tokenizer.json"
"""


def read(tmp_path: Path, text: str):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return read_tables(path, {"KEY": "the-key"})


def test_what_tables_say(tmp_path: Path) -> None:
    tables = read(tmp_path, GOOD)
    one, two = tables.workers
    assert (one.url, one.spec.id, one.kind, one.spec.pool) == ("http://10.0.0.1:8000", "10.0.0.1:8000", "vllm", "batch")
    assert (one.spec.models, one.spec.weight, one.spec.most_sequences) == (frozenset("ab"), 2.0, 64)
    assert one.api_key == "the-key"
    assert "the-key" not in repr(one)
    assert one.timeouts == {"between_bytes_s": 20.0}
    assert two.spec.id == "second"
    assert tables.default_limits.tokens_per_minute == 1000
    alice = tables.limits["alice"]
    assert (alice.max_concurrency, alice.tokens_per_minute, alice.weight) == (4, 1000, 0.5)
    assert alice.lanes == ("short",)
    assert tables.tokenizers[0].model == "a"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('kind = "vllm"', 'kind = "vlm"', 6, "[[worker]] kind: must be one of vllm"),
        ("weight = 2", "weight = 0", 9, "[[worker]] weight: must be between"),
        ("weight = 2", "wieght = 2", 9, "[[worker]] wieght: unknown key. Did you mean 'weight'?"),
        ("weight = 2", 'weight = "2"', 9, "[[worker]] weight: must be a number"),
        ("weight = 2", "weight = nan", 9, "[[worker]] weight: must be between"),
        ('models = ["a", "b"]', 'models = "a"', 8, "[[worker]] models: must be a list of texts"),
        ('models = ["a", "b"]', 'models = ["a", "a"]', 8, "[[worker]] models: something stands there twice"),
        ('"http://10.0.0.1:8000/"', '"10.0.0.1:8000"', 5, "[[worker]] url: '10.0.0.1:8000' is no address"),
        ('"http://10.0.0.1:8000/"', '"http://me:secret@h"', 5, "use api-key-env"),
        ('api-key-env = "KEY"', 'api-key-env = "NONE"', 10, "[[worker]] api-key-env: the environment has no NONE"),
        ('id = "second"', 'id = "10.0.0.1:8000"', 16, "[[worker]] id: there is a worker"),
        ('url = "https://example.test"\n', "", 14, "[[worker]] url: it is missing"),
        ("tokens-per-minute = 1000", "tokens-per-minute = -1", 20, "[[tenant]] tokens-per-minute: must be between"),
        ("tokens-per-minute = 1000", "tokens-per-minute = 1.5", 20, "[[tenant]] tokens-per-minute: must be a whole"),
        ('name = "alice"', 'name = "*"', 24, "[[tenant]] name: there is a tenant '*' above"),
        ("max-concurrency = 4", "max-concurrency = true", 25, "[[tenant]] max-concurrency: must be a whole number"),
        ('path = "tokenizer.json"\n', "", 28, "[[tokenizer]] path: say where"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_key(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, GOOD.replace(old, new))
    assert refused.value.message.startswith(f"{tmp_path / 'c.toml'}:{line}: "), refused.value.message
    assert says in refused.value.message
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("text", ['worker = "http://a"', "worker = [1]", "[worker]\nurl = 'http://a'"])
def test_a_worker_is_a_table_of_its_own(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"each under its own \[\[worker\]\]"):
        read(tmp_path, text)


def test_workers_of_which_only_the_address_is_said_may_be_a_list(tmp_path: Path) -> None:
    assert read(tmp_path, 'worker = ["http://a", "http://b"]') == FleetTables()
    path = tmp_path / "c.toml"
    assert read_config(path, SERVE_KEYS) == {"worker": ["http://a", "http://b"]}


def test_a_worker_of_a_request_is_checked_alike() -> None:
    assert worker_table({"url": "http://a:1"}).spec.id == "a:1"
    for wrong in ({}, {"url": 1}, {"url": "http://a", "weight": True}, {"url": "http://a", "more": 1}):
        with pytest.raises(ConfigError):
            worker_table(wrong)
