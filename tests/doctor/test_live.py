"""Live servers that keep things to themselves, want a key, start again, or are not there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count

import pytest

from headway.core.errors import ConfigError
from headway.doctor.diagnose import diagnose
from headway.doctor.facts import Facts
from headway.doctor.live import observe
from headway.doctor.report import as_json
from headway.doctor.report import text as words
from headway.wire.asker import Asker, Login, Unauthorised, Unreachable
from tests.doctor import making
from tests.doctor.serving import Reply, Table, json_of, serving, text


def watched(table: Table, *, wants: str = "", key: str = "") -> Facts:
    """Six looks at it, by a clock that goes on only while nobody looks."""
    passed_s = [0.0]

    def sleep(seconds: float) -> None:
        passed_s[0] += seconds

    with serving(table, wants=wants) as url:
        asker = Asker(url, Login(token=key), advice="Give --api-key.")
        try:
            return observe(asker, 5.0, 1.0, sleep=sleep, clock=lambda: passed_s[0])
        finally:
            asker.close()


def numbers(*values: int) -> Iterator[int]:
    yield from values
    while True:
        yield values[-1]


def test_what_is_counted_while_it_is_watched() -> None:
    totals = count(1000, 10)

    def metrics(_: str) -> Reply:
        return text(
            f"vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nvllm:prompt_tokens_total {next(totals)}\n"
        )

    facts = watched({"/metrics": metrics, "/health": text("")})
    assert facts.source == "vllm"
    grown = facts.service.increase("prompt_tokens")
    assert grown == 50
    assert facts.client.network_probes == 6


def test_a_server_that_starts_again_while_it_is_watched() -> None:
    totals = numbers(500, 500, 510, 520, 5, 9)  # the first is asked for to find out where it tells

    def metrics(_: str) -> Reply:
        return text(f"vllm:num_requests_running 1\nvllm:prompt_tokens_total {next(totals)}\n")

    facts = watched({"/metrics": metrics})
    assert facts.restarts == 1
    assert facts.service.increase("prompt_tokens") == 29


def dying(answers: range, window: Iterator[int]) -> Facts:
    def metrics(_: str) -> Reply:
        if next(window) in answers:
            return text("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n")
        return 500, "text/plain", "gone"

    return watched({"/metrics": metrics, "/admin/config": json_of('{"slo_ttft": 0.5}'), "/health": text("")})


def test_a_server_that_dies_while_it_is_watched_is_not_well() -> None:
    facts = dying(range(4), count())
    diagnosis = diagnose(facts)
    assert facts.unseen == "it has not answered for the last 5 s"  # of six looks three, and two more
    assert (diagnosis.healthy, diagnosis.blind) == (False, facts.unseen)
    assert as_json(diagnosis, "server")["verdict"] == "cannot tell"
    said = words(diagnosis, "server")
    assert said.count("has not answered for the last 5 s") == 1
    assert "5 of 8 scrapes failed" in said
    assert facts.service.window_s == 2
    assert facts.client.network_probes == 3  # who is gone is not asked for more
    assert facts.promise.ttft_s == 0.5  # asked for while it was there


def test_a_server_that_misses_the_last_look_is_asked_again() -> None:
    facts = dying(range(1), numbers(0, 0, 0, 0, 0, 0, 9, 0))
    assert not facts.unseen
    assert facts.heard[""].looks == 7


def test_notes_are_told_of_one_that_is_well_too() -> None:
    made = making.facts(notes=("counters began again 1 times",))
    assert words(diagnose(made), "server").splitlines()[1:] == ["Note: counters began again 1 times."]


def test_a_scrape_that_fails_now_and_then_is_a_gap() -> None:
    turns = count()

    def metrics(_: str) -> Reply:
        if next(turns) % 3 == 2:
            return 500, "text/plain", "busy"
        return text("vllm:num_requests_running 1\n")

    facts = watched({"/metrics": metrics})
    assert facts.service.mean("running") == 1
    assert any("scrapes failed" in note for note in facts.notes)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "/metrics answers 404"),
        ({"/metrics": text("")}, "/metrics is empty"),
        ({"/metrics": text("python_gc_objects 3\n")}, "no name that is known"),
        ({"/metrics": (200, "text/html", "<html>a page</html>")}, "no name that is known"),
    ],
)
def test_a_server_without_metrics_is_told_so_and_what_helps(table: Table, says: str) -> None:
    facts = watched(table)
    diagnosis = diagnose(facts)
    assert diagnosis.blind
    said = words(diagnosis, "server")
    assert "cannot tell" in said
    assert says in said
    assert "headway bench" in said
    assert facts.client.network_s is not None  # this much can be told


def test_load_in_json_will_do() -> None:
    load = '{"running": 3, "waiting": 2, "step_tokens": 1, "kv_blocks_total": 10, "kv_blocks_used": 5}'
    facts = watched({"/load": json_of(load)})
    assert facts.service.mean("waiting") == 2
    assert facts.service.mean("kv_ratio") == 0.5
    assert any(line.startswith("ttft_s") for line in facts.missing)


def test_limits_and_promises_that_it_tells() -> None:
    table = {
        "/metrics": text("headway_sequences_running 1\nheadway_max_num_seqs 8\n"),
        "/admin/config": json_of('{"slo_ttft": 0.5, "slo_itl": 0.1, "max_num_seqs": 8, "kv_full": "wait"}'),
        "/v1/models": json_of('{"data": [{"id": "m", "max_model_len": 4096}]}'),
    }
    facts = watched(table)
    assert (facts.promise.ttft_s, facts.promise.itl_s, facts.promise.said) == (0.5, 0.1, True)
    assert facts.settings.max_num_seqs == 8
    assert facts.settings.max_model_len == 4096
    assert facts.settings.kv_full == "wait"


@pytest.mark.parametrize("answer", ["[]", "null", "{", '{"data": [3]}', '{"data": {"x": 1}}', '{"slo_ttft": "soon"}'])
def test_nonsense_beside_the_metrics_changes_nothing(answer: str) -> None:
    table = {name: json_of(answer) for name in ("/admin/config", "/v1/models", "/get_server_info", "/load", "/slots")}
    facts = watched({"/metrics": text("vllm:num_requests_running 1\n"), **table})
    assert not facts.promise.said
    assert facts.service.mean("running") == 1


def test_a_key_that_is_wanted() -> None:
    table = {"/metrics": text("vllm:num_requests_running 1\n")}
    with pytest.raises(Unauthorised, match=r"401.*wants a login.*Give --api-key"):
        watched(table, wants="Bearer secret")
    with pytest.raises(Unauthorised, match="not accepted") as error:
        watched(table, wants="Bearer secret", key="wrong-key")
    assert "wrong-key" not in error.value.message
    assert watched(table, wants="Bearer secret", key="secret").service.mean("running") == 1


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match="nothing listens there"):
        observe(Asker(f"http://127.0.0.1:{port}"), 0.5, 0.1)


def test_somebody_there_who_does_not_speak() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asker = Asker(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)
        with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s"):
            observe(asker, 0.5, 0.1)
        asker.close()


@pytest.mark.parametrize("url", ["ftp://host", "http://user:pw@host", "http://", "http://h o st"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        Asker(url)
    assert "pw" not in error.value.message


def test_the_address_of_the_page_itself_will_do() -> None:
    assert Asker("http://host:8000/metrics").url == "http://host:8000"


def test_json_says_what_is_unknown() -> None:
    diagnosis = diagnose(watched({"/metrics": text("vllm:num_requests_running 1\n")}))
    told = as_json(diagnosis, "server")
    assert told["ttft"]["queue_s"] is None
    assert told["verdict"] in ("cannot tell", "healthy")
