"""A Prometheus with history, without any, with a login, with a wrong clock, and what is none at all."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headway.core.errors import ConfigError
from headway.doctor.facts import Facts
from headway.doctor.prometheus import QueryFailed, read_prometheus, seconds
from headway.wire.asker import Asker, Login, Unauthorised
from tests.doctor.serving import Reply, Table, json_of, serving, text

NAMES = {"vllm:num_requests_running": 3.0, "vllm:num_requests_waiting": 1.0}


def answering(series: list[dict[str, Any]], *, ahead_s: float = 0.0) -> Table:
    def query(path: str) -> Reply:
        asked = parse_qs(urlsplit(path).query)["query"][0]
        result = [time.time() + ahead_s, "0"] if asked == "time()" else series
        return json_of(json.dumps({"status": "success", "data": {"result": result}}))

    return {"/api/v1/query": query}


def history(instance: str, begin_s: float, every_s: float = 15.0, count: int = 20) -> list[dict[str, Any]]:
    at = [begin_s + every_s * number for number in range(count)]
    gauges: list[dict[str, Any]] = [
        {"metric": {"__name__": name, "instance": instance}, "values": [[one, str(value)] for one in at]}
        for name, value in NAMES.items()
    ]
    counter = {"__name__": "vllm:prompt_tokens_total", "instance": instance}
    return [*gauges, {"metric": counter, "values": [[one, str(100 * place)] for place, one in enumerate(at)]}]


def read(table: Table, since_s: float = 300.0, *, wants: str = "", login: Login | None = None) -> Facts:
    with serving(table, wants=wants) as url:
        asker = Asker(url, login, what="Prometheus", advice="Give --prometheus-user.")
        try:
            return read_prometheus(asker, since_s)
        finally:
            asker.close()


def test_history() -> None:
    facts = read(answering(history("a:8000", time.time() - 300)))
    assert facts.service.window_s == pytest.approx(285)
    assert facts.service.mean("running") == 3
    assert facts.service.increase("prompt_tokens") == 1900
    assert not facts.notes


def test_targets_scraped_at_moments_of_their_own_are_one_service() -> None:
    now = time.time() - 300
    facts = read(answering(history("a:8000", now) + history("b:8000", now + 4.0)))
    assert [part.name for part in facts.workers] == ["a:8000", "b:8000"]
    assert facts.service.mean("running") == pytest.approx(6, abs=0.4)


def test_vllm_s_names_at_a_headway_are_its_numbers_again_and_an_engine_s_are_its_own() -> None:
    now = time.time() - 300
    gateway = [{"metric": {"__name__": "headway_requests_waiting", "instance": "g:8000"}, "values": [[now, "7"]]}]
    facts = read(answering(gateway + history("g:8000", now) + history("a:8000", now)))
    running = {part.name: part.mean("running") for part in facts.workers}
    assert (running["a:8000"], running["g:8000"]) == (3, None)


def test_a_clock_that_is_wrong_is_noted_and_changes_nothing() -> None:
    facts = read(answering(history("a:8000", time.time() + 3_300), ahead_s=3_600))
    assert facts.service.window_s == pytest.approx(285)
    assert any("clock" in note and "ahead" in note for note in facts.notes)


def test_history_that_is_short_is_noted() -> None:
    facts = read(answering(history("a:8000", time.time() - 60, count=4)), since_s=900)
    assert any("45 of the 900 s" in note for note in facts.notes)


def test_a_login_that_is_wanted() -> None:
    table, basic = answering(history("a", time.time() - 300)), "Basic b3BlcmF0b3I6cHc="
    with pytest.raises(Unauthorised, match=r"Prometheus at .* answers 401.*--prometheus-user"):
        read(table, wants=basic)
    with pytest.raises(Unauthorised, match="not accepted"):
        read(table, wants=basic, login=Login(user="operator", password="wrong"))
    assert read(table, wants=basic, login=Login(user="operator", password="pw")).service.mean("running") == 3
    assert read(table, wants="Bearer t", login=Login(token="t")).service.mean("running") == 3


def test_a_prometheus_that_scrapes_something_else() -> None:
    with pytest.raises(QueryFailed, match="has nothing of a known server"):
        read(answering([]))


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (text("<html>log in</html>"), "is no Prometheus"),
        ((404, "text/plain", ""), "is no Prometheus.*404"),
        ((404, "application/json", '{"error": {"code": "not_found"}}'), "is no Prometheus.*404"),  # a model's server
        ((422, "application/json", '{"status": "error", "error": "too many samples"}'), "refuses.*too many samples"),
    ],
)
def test_what_is_no_prometheus(reply: Reply, says: str) -> None:
    with pytest.raises(QueryFailed, match=says):
        read({"/api/v1/query": reply})


def test_samples_that_are_no_numbers_are_gaps() -> None:
    series = history("a", time.time() - 300)
    series[0]["values"][3][1] = "NaN"
    facts = read(answering(series))
    assert facts.service.mean("running") == 3


@pytest.mark.parametrize(("said", "value"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)])
def test_times(said: str, value: float) -> None:
    assert seconds(said) == value


@pytest.mark.parametrize("said", ["", "m", "-5m", "0", "soon", "1w", "nan", "inf"])
def test_what_is_no_time(said: str) -> None:
    with pytest.raises(ConfigError, match="--since"):
        seconds(said)
