"""`headway explain`: every name has a meaning, the same one that the reference has."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.cli import status
from headway.cli.explain import named, nearest_names
from headway.cli.explain.entries import BY_THEMSELVES, KINDS, entries, error_classes
from headway.cli.explain.words import LEVELS
from headway.core.errors import HeadwayError
from headway.core.front.ladder import Level
from headway.loadtest.result import Word

SOURCE = Path(headway.__file__).parent
EVERY = [entry for kind in KINDS for entry in entries(kind)]
# Whose errors a client of a server may meet.
SERVING = ("core", "engine", "gateway", "wire", "workers", "store")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert status(["explain", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("headway_requests_waiting", "Requests let in and not yet started."),
        ("headway_time_to_first_token_seconds_bucket", "first output token"),  # a series of it
        ('headway_lane_waiting{lane="short"}', "by lane"),
        ("vllm:num_requests_running", "headway_sequences_running"),
        ("--max-num-seqs", "Most sequences"),
        ("max_num_seqs", "Most sequences"),  # as in JSON
        ("long-prompt", "1,024 tokens"),
        ("shed_low_priority", "429"),
        ("queue_full", "429"),
        ("chat", "headway serve --goal chat"),
        ("x-headway-degraded", "levels of degradation"),
        ("Retry-After", "seconds"),
        ("late", "promise"),
        ("preempted", "may become"),
        ("TTFT", "first visible token"),
        ("time to first token", "first visible token"),
        ("itl", "n gaps of gap / n"),
        ("TPOT", "(last − first) / (n − 1)"),
        ("icl", "raw"),
        ("E2E", "end of the stream"),
        ("lag", "the client's own delay"),
        ("schedule lag", "the client's own delay"),
        ("goodput", "every promise"),
        ("finished well", "without an error"),
        *((word.value, word.meaning) for word in Word),
        ("client-limited", "exit status  3"),
        ("client-limited", "load tester was late"),
        ("slot-limit", "all slots are taken"),
        ("cold_cache", "prefix cache"),
    ],
)
def test_a_name_is_explained(capsys: pytest.CaptureFixture[str], name: str, means: str):
    assert means in said(capsys, name)


def test_several_words_are_one_name(capsys: pytest.CaptureFixture[str]):
    assert said(capsys, "schedule", "lag") == said(capsys, "schedule lag")


def test_a_figure_is_told_without_loading_a_server():
    code = "import sys; from headway.cli import status; status(['explain', 'TTFT']); sys.exit('aiohttp' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "time to first token" in told.stdout


@pytest.mark.parametrize("kind", BY_THEMSELVES)
def test_what_is_looked_for_no_further_has_no_other_meaning(kind: str):
    for entry in entries(kind):
        assert {found.kind for found in named(entry.name, EVERY)} == {kind}


def test_without_a_name_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]):
    text = said(capsys)
    for kind in KINDS:
        assert re.search(rf"^{kind} ", text, re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_a_kind_can_be_listed_and_found_again(capsys: pytest.CaptureFixture[str], kind: str):
    text = said(capsys, kind)
    for entry in entries(kind):
        assert f"{entry.name}: {entry.meaning}" in text
        assert entry.meaning.endswith((".", ")"))
        assert entry in named(entry.name, EVERY)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("queue_timout", "queue_timeout"),
        ("kv_usage", "headway_kv_usage_ratio"),
        ("--max-num-seq", "--max-num-seqs"),
        ("KV", "kv_exhausted"),
    ],
)
def test_what_is_not_there_tells_the_nearest(capsys: pytest.CaptureFixture[str], typo: str, meant: str):
    assert status(["explain", typo]) == 2
    complaint = capsys.readouterr().err
    assert len(complaint.splitlines()) == 1
    assert meant in complaint


def test_nothing_is_near_to_nonsense(capsys: pytest.CaptureFixture[str]):
    assert nearest_names("zzzzqqqq", EVERY) == []
    assert status(["explain", "zzzzqqqq\n" * 50]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_every_level_has_a_meaning():
    assert set(LEVELS) == set(Level)


def test_no_error_class_is_forgotten():
    """Where errors are looked for is a list, since to import everything takes seconds."""
    explained = {kind for kind in error_classes() if kind.code}
    for layer in SERVING:
        for module in pkgutil.walk_packages([str(SOURCE / layer)], f"headway.{layer}."):
            if not module.name.endswith((".tracing", ".genai")):  # they need an extra
                importlib.import_module(module.name)

    def below(kind: type[HeadwayError]) -> set[type[HeadwayError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    served = {f"headway.{layer}." for layer in SERVING}
    there = {one for one in below(HeadwayError) if one.code and one.__module__.startswith(tuple(served))}
    assert there <= explained


def test_every_cause_that_a_rule_names_is_explained():
    named_by_rules = {
        node.value
        for path in (SOURCE / "doctor" / "rules").glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding"
        for node in ast.walk(call.args[0])
        if isinstance(node, ast.Constant)
    }
    assert named_by_rules == {entry.name for entry in entries("cause")}


def test_every_code_that_a_server_gives_an_error_is_explained():
    known = {entry.name for entry in entries("error")}
    for layer in SERVING:
        for path in (SOURCE / layer).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                    code = node.value.value
                    assert not isinstance(code, str) or code in known, f"{path.name}: {code}"
