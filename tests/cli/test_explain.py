"""`headway explain`: every name has a meaning, the same one that the reference has."""

from __future__ import annotations

import ast
import importlib
import io
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import headway
import headway.cli.explain
from headway.cli import status
from headway.cli.explain import named, nearest_names
from headway.cli.explain.entries import BY_THEMSELVES, KINDS, entries, error_classes
from headway.cli.explain.words import LEVELS
from headway.cli.top.frame import frame_of
from headway.cli.top.page import page_of
from headway.cli.top.view import view
from headway.core.errors import HeadwayError
from headway.core.front.ladder import Level
from headway.doctor.remedies import REMEDIES
from headway.loadtest.result import Word

SOURCE = Path(headway.__file__).parent
ROOT = Path(__file__).parents[2]
_FLAG = re.compile(r"--[a-z][a-z-]+[a-z]")
# A gateway's and an engine's at once.
_TOP = """
headway_requests_in_service 3
headway_sequences_running 2
headway_step_tokens 5
headway_requests_waiting 1
headway_kv_usage_ratio 0.5
headway_ladder_level 0
headway_ladder_pressure_ratio 0.1
headway_replicas 1
headway_desired_replicas 1
headway_preemptions_total {0}
headway_prefill_tokens_total {0}
headway_decode_tokens_total {0}
headway_requests_total{{outcome="good"}} {0}
headway_time_to_first_token_seconds_bucket{{le="+Inf"}} {0}
headway_inter_token_latency_seconds_bucket{{le="+Inf"}} {0}
headway_queue_seconds_bucket{{le="+Inf"}} {0}
headway_request_duration_seconds_bucket{{le="+Inf"}} {0}
headway_worker_up{{worker="w0"}} 1
headway_tenant_requests_total{{tenant="acme",outcome="good"}} {0}
"""
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
        ("slot-limit", "--max-num-seqs"),
        ("HeadwayKvFull", "KV has been VALUE full"),
        ("headwaydown", "kubectl get pods"),
        ("headway:slo_attainment:ratio_rate5m", "answered as promised"),
        ("window", "How many requests it may have in flight."),
        ("in flight", "headway_worker_requests_in_flight"),
        ("pressure", "How much too much there is"),
        ("429", "queue_full"),
        ("503", "no_worker"),
        ("HTTP 504", "worker_timeout"),
        ("3", "shed_low_priority"),
        ("level 3", "a pressure of 0.7"),
        ("level", "shed_low_priority: Priorities of 1 and lower (1, 2, …) get 429 with the code shed. (level 3; "),
        ("levels", "(level 6; "),
        ("codes", "queue_full: "),
        ("statuses", "Too Many Requests"),
        ("windows", "column"),
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
        ("KV exhausted now", "kv_exhausted"),
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


def test_every_cause_has_a_remedy_and_its_rule_names_the_same_settings():
    """What is advised in general is what a finding advises; of both, the settings."""
    functions, findings = {}, []
    for path in (SOURCE / "doctor" / "rules").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                functions[node.name] = node

    def flags(name: str, seen: set[str]) -> set[str]:
        """That a function names, or one that it calls."""
        seen.add(name)
        inside = list(ast.walk(functions[name]))
        words = " ".join(one.value for one in inside if isinstance(one, ast.Constant) and isinstance(one.value, str))
        called = {one.id for one in inside if isinstance(one, ast.Name) and one.id in functions} - seen
        return set(_FLAG.findall(words)).union(*(flags(one, seen) for one in called))

    for name, function in functions.items():
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
                causes = [one.value for one in ast.walk(call.args[0]) if isinstance(one, ast.Constant)]
                findings += [(cause, flags(name, set())) for cause in causes]
    assert {cause for cause, _ in findings} == set(REMEDIES)
    for cause in REMEDIES:
        told = set().union(*(flags for found, flags in findings if found == cause))
        assert set(_FLAG.findall(REMEDIES[cause])) - {"--worker"} <= told, cause


def test_the_page_of_symptoms_has_the_same_remedies():
    page = (ROOT / "docs" / "concepts" / "four-symptoms.md").read_text()
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page).replace("`", "")
    rows = [line.strip("| ").split(" | ") for line in plain.splitlines() if line.startswith("| ")]
    told = {cause: row[2] for row in rows for cause in REMEDIES if row[0].partition(":")[0] == cause}
    assert told == {cause: remedy for cause, remedy in REMEDIES.items() if cause != "kv-exhausted"}
    assert REMEDIES["kv-exhausted"] in " ".join(plain.split())


def test_a_page_is_named_only_where_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert "docs/reference/words.md" in said(capsys, "slot-limit")
    monkeypatch.setattr(headway.cli.explain, "REFERENCE", tmp_path)  # as in an installed package
    assert "docs/" not in said(capsys, "slot-limit")


def test_every_word_of_top_is_explained():
    """Rows, columns and states of a frame that has all of them."""
    frame = frame_of(page_of(_TOP.format(0), 0.0), page_of(_TOP.format(9), 2.0))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(view(frame, "title"))
    _title, *lines = [line for line in console.export_text().splitlines() if line.strip()]
    heads = [line for line in lines if re.match(r"worker |tenant | +p50", line)]
    assert len(heads) == 3
    words = {word for line in heads for word in re.split(r"  +", line.strip())}
    words |= {found[1] for line in lines if line not in heads and (found := re.match(r"(\S+)  +", line))}
    words |= {"pressure", "prefill", "decode", "wanted"}
    assert {"ladder", "preemptions/s", "queue", "E2E"} <= words
    words -= {"w0", "acme"}  # ids
    assert {word for word in words if not named(word, EVERY)} == set()


def test_a_status_lists_the_codes_that_are_answered_with_it():
    told = {(entry.name, code) for entry in entries("status") for code in entry.facts}
    classes = {kind.__name__: kind for kind in error_classes()}
    given = {(str(kind.status), kind.code) for kind in error_classes() if kind.code}
    for path in (path for layer in SERVING for path in (SOURCE / layer).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in classes:
                values = [one.value for one in call.keywords if one.arg == "code"]
                codes = [one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                given |= {(str(classes[call.func.id].status), code) for code in codes}
    # A line of a batch has a code and no status, a worker's refusal the worker's, and one class decides by its code.
    given -= {("400", "mismatched_model"), ("400", "empty_file"), ("400", "input_file_not_found")}
    given -= {("500", "worker_refused"), ("502", "worker_timeout")}
    assert given <= told
    made_elsewhere = {("429", "requests_per_minute"), ("429", "tokens_per_minute"), ("405", "method_not_allowed")}
    assert told - given == made_elsewhere | {("504", "worker_timeout")}


def test_every_code_that_a_server_gives_an_error_is_explained():
    known = {entry.name for entry in entries("error")}
    for layer in SERVING:
        for path in (SOURCE / layer).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                    code = node.value.value
                    assert not isinstance(code, str) or code in known, f"{path.name}: {code}"
