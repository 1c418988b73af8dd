"""Ten questions: a yes needs evidence, a no needs a way out, and what is not known is neither."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from headway.doctor.check_report import as_json, page, text
from headway.doctor.checklist import Item, Known, LoadTest, checklist

NOTHING = Known("server", live=True)
ALL = frozenset({"running", "waiting", "kv_ratio", *(f"h:{name}" for name in ("ttft_s", "itl_s", "e2e_s"))}) | {
    "h:prompt_tokens",
    "h:output_tokens",
}
PERCENTILES = frozenset({"ttft", "itl", "e2e"})
TESTS = (LoadTest("closed", "4 at a time", PERCENTILES), LoadTest("open", "3 a second", PERCENTILES))
READY = Known(
    "server",
    "headway",
    live=True,
    signals=ALL,
    exports=frozenset({"headway_kv_reserved_bytes"}),
    config={"queue-timeout": 20.0, "max-waiting": 256, "store": "work", "api-keys": "keys"},
    lanes=("short", "long-prompt"),
    gateway=True,
    limited=True,
    limits_output=True,
    max_model_len=4096,
    max_num_seqs=16,
    kv_tokens=100_000,
    tests=TESTS,
)


def answer(known: Known, number: int) -> Item:
    return checklist(known)[number - 1]


def test_there_are_ten_and_each_is_whole() -> None:
    for known in (NOTHING, READY, Known("file.toml", "headway")):
        items = checklist(known)
        assert [item.number for item in items] == list(range(1, 11))
        for item in items:
            assert item.evidence
            assert bool(item.fix) == (item.verdict != "yes")


def test_everything_in_order_is_ten_times_yes() -> None:
    assert [item.verdict for item in checklist(READY)] == ["yes"] * 10


def test_of_a_server_that_tells_nothing_nothing_is_denied() -> None:
    assert {item.verdict for item in checklist(NOTHING)} == {"cannot tell"}


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (1, {"signals": ALL - {"h:prompt_tokens"}}),
        (2, {"tests": TESTS[:1]}),
        (3, {"signals": ALL - {"h:itl_s"}, "tests": ()}),
        (4, {"kv_tokens": 3000}),
        (5, {"limits_output": False}),
        (5, {"refuses_overlong": False}),
        (7, {"signals": ALL - {"waiting"}}),
        (8, {"signals": ALL - {"kv_ratio"}}),
        (9, {"config": {"max-waiting": 256, "store": "work"}}),
        (9, {"config": {"max-waiting": 256, "store": "work", "queue-timeout": 9.0}}),  # everybody is one tenant
        (9, {"limited": False}),
        (10, {"config": {"queue-timeout": 20.0}}),
    ],
)
def test_one_thing_lacking_is_one_no(number: int, change: dict[str, object]) -> None:
    known = replace(READY, **change)  # type: ignore[arg-type]
    assert answer(known, number).verdict == "no"
    untouched = {item.number for item in checklist(known) if item.verdict == "yes"}
    touched = {number, *({2} if "tests" in change else ()), *({9, 10} if "config" in change else ())}
    assert untouched >= set(range(1, 11)) - touched


def test_another_engine_has_no_limits_of_its_own() -> None:
    assert answer(replace(READY, kind="vllm", config={}), 9).verdict == "no"


def test_a_load_test_that_is_not_to_be_relied_on_answers_nothing() -> None:
    closed, opened = TESTS
    tests = (replace(closed, verdict="TOO-FEW-SAMPLES"), replace(opened, verdict="UNSTEADY"))
    for given in (tests, (replace(closed, verdict="VALID"), tests[1])):
        item = answer(replace(READY, tests=given), 2)
        assert item.verdict == "cannot tell"
        assert "UNSTEADY" in item.evidence
        assert "VALID" in item.fix
    busy = replace(opened, verdict="CLIENT-LIMITED", why="requests were sent 90 ms late")
    item = answer(replace(READY, tests=(tests[0], busy)), 2)
    assert "sent 90 ms late" in item.evidence
    assert "for longer" in item.fix  # each in its own way
    assert "time to spare" in item.fix
    again = (*tests, *(replace(test, verdict="VALID") for test in TESTS))
    assert answer(replace(READY, tests=again), 2).verdict == "yes"
    assert answer(replace(READY, tests=tests[:1]), 2).verdict == "no"  # half of it is lacking, whatever came of it


def test_a_load_test_says_what_metrics_do_not() -> None:
    assert answer(replace(READY, signals=frozenset({"running"})), 3).verdict == "yes"


def test_what_a_gateway_cannot_tell_its_workers_and_its_file_can() -> None:
    gateway = replace(
        READY, config={}, workers=("http://a:1", "http://b:1"), exports=frozenset(), max_model_len=None, kv_tokens=None
    )
    for number in (4, 5, 8):
        item = answer(gateway, number)
        assert item.verdict == "cannot tell"
        assert "headway check http://b:1" in item.fix
    assert "headway check FILE" in answer(gateway, 9).fix
    engine = replace(READY, gateway=False, exports=frozenset({"something"}))
    assert answer(engine, 8).verdict == "no"


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_whole_escaped_and_loads_nothing() -> None:
    known = replace(READY, where="<script>alert(1)</script>")
    reader = Reader()
    reader.feed(page(checklist(known), known.where))
    assert reader.tags.count("tr") == 11
    assert "script" not in reader.tags
    assert not reader.loads


def test_text_and_json_say_the_same() -> None:
    items = checklist(NOTHING)
    assert [one["verdict"] for one in as_json(items, "server")["items"]] == [item.verdict for item in items]
    said = text(items, "server")
    assert all(item.question in said and item.fix in said for item in items)
