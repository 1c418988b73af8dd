"""A Prometheus with history, without any, with a login, with a wrong clock, and what is none at all."""

from __future__ import annotations

import json
import math
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


def test_two_samples_at_one_moment_count_once() -> None:
    series = history("a:8000", time.time() - 300)
    for one in series:
        one["values"][5:5] = [[one["values"][5][0] - 0.1, one["values"][5][1]]]
    facts = read(answering(series))
    assert (facts.service.most("running"), facts.service.increase("prompt_tokens")) == (3, 1900)


@pytest.mark.parametrize("missing", [slice(19, 20), slice(9, 10), slice(9, 12)])
def test_a_target_that_is_not_seen_for_a_moment_takes_nothing_with_it(missing: slice) -> None:
    """Nor is what comes after a burst. Targets are scraped at moments of their own: at the end it is usual."""
    now = time.time() - 300
    one, other = history("a:8000", now), history("b:8000", now)
    for series in one:
        del series["values"][missing]
    facts = read(answering(one + other))
    steps = facts.service.steps_of("prompt_tokens").tolist()
    seen = [100] * 18 if missing.stop == 20 else [200] * 19
    assert steps[: len(seen)] == pytest.approx([200] * len(seen))
    assert facts.service.increase("prompt_tokens") == pytest.approx(3700 if missing.stop == 20 else 3800)
    assert facts.service.gauge("running").tolist() == [6] * 20
    by_name = {part.name: part for part in facts.workers}
    assert math.isnan(by_name["a:8000"].gauge("running")[missing.start])  # of itself it is unknown


def gateway(instance: str, begin_s: float, waiting: tuple[float, float], grown: float) -> list[dict[str, Any]]:
    """Of two workers, at which so many wait."""
    at = [begin_s + 15.0 * number for number in range(20)]

    def series(name: str, values: list[float], **labels: str) -> dict[str, Any]:
        metric = {"__name__": f"headway_{name}", "instance": instance, "job": "gateway", **labels}
        return {"metric": metric, "values": [[when, str(value)] for when, value in zip(at, values, strict=True)]}

    growing = [grown * place for place in range(20)]
    made = [
        series("sequences_running", [4.0] * 20),
        series("requests_waiting", [sum(waiting)] * 20),
        series("decode_tokens_total", growing),
    ]
    for name, inside in zip(("w0", "w1"), waiting, strict=True):
        made.append(series("worker_running", [2.0] * 20, worker=name))
        made.append(series("worker_waiting", [inside] * 20, worker=name))
        made.append(series("worker_output_tokens_total", [one / 2 for one in growing], worker=name))
    return made


def told(facts: Facts) -> tuple[float | None, ...]:
    service = facts.service
    return service.mean("running"), service.mean("waiting"), service.increase("generation_tokens")


def test_a_gateway_is_no_place_beside_its_workers() -> None:
    """The same numbers as of its page: nothing is counted twice, and it is no worker."""
    facts = read(answering(gateway("g:8000", time.time() - 300, (8.0, 0.0), 100.0)))
    assert told(facts) == (4, 8, 1900)
    assert [part.name for part in facts.workers] == ["w0", "w1"]


def test_gateways_add_up_and_the_workers_that_they_share_do_not() -> None:
    now = time.time() - 300
    both = gateway("g:8000", now, (8.0, 0.0), 100.0) + gateway("h:8000", now, (8.0, 0.0), 300.0)
    facts = read(answering(both))
    assert told(facts) == (8, 16, 7600)
    workers = {part.name: (part.mean("waiting"), part.increase("generation_tokens")) for part in facts.workers}
    assert workers == {"w0": (8, 3800), "w1": (0, 3800)}


def test_engines_behind_a_gateway_that_are_scraped_as_well_count_once() -> None:
    now = time.time() - 300
    engines = history("a:8000", now) + history("b:8000", now)
    facts = read(answering(gateway("g:8000", now, (8.0, 0.0), 100.0) + engines))
    assert told(facts) == (4, 8, 1900)
    assert facts.service.increase("prompt_tokens") == 3800  # which the gateway here does not tell
    assert [part.name for part in facts.workers] == ["w0", "w1"]
    assert any("a:8000, b:8000" in note and "behind the gateway" in note for note in facts.notes)


def up(instance: str, begin_s: float, answered: str) -> dict[str, Any]:
    """One letter for each look: 1, 0, or a blank where it was not looked at."""
    at = [(begin_s + 15.0 * place, one) for place, one in enumerate(answered)]
    return {
        "metric": {"__name__": "up", "instance": instance},
        "values": [[when, one] for when, one in at if one != " "],
    }


def until(series: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [{**one, "values": one["values"][:count]} for one in series]


@pytest.mark.parametrize(
    ("looks", "unseen"),
    [
        ("1" * 12 + "0" * 8, "b:8000 has not answered for the last 120 s"),
        ("1" * 12 + "0" + " " * 7, ""),  # it was taken away
        ("", "b:8000 has not answered for the last 120 s"),  # nobody says whether it was
    ],
)
def test_a_target_that_dies(looks: str, unseen: str) -> None:
    now = time.time() - 290
    series = history("a:8000", now) + until(history("b:8000", now), 12)
    facts = read(answering([*series, up("a:8000", now, "1" * 20), *([up("b:8000", now, looks)] if looks else [])]))
    assert facts.unseen == unseen
    assert facts.service.rate("prompt_tokens") == pytest.approx(3000 / 285)


@pytest.mark.parametrize("told", [True, False])
def test_the_only_target_dies(told: bool) -> None:
    now = time.time() - 290
    series = until(history("a:8000", now), 10)
    facts = read(answering([*series, *([up("a:8000", now, "1" * 10 + "0" * 10)] if told else [])]))
    assert "it has not answered for the last 150 s" in facts.unseen
    assert facts.service.rate("prompt_tokens") == pytest.approx(100 / 15)


def test_whether_targets_answered_is_asked_by_their_names() -> None:
    asked = []

    def query(path: str) -> Reply:
        asked.append(parse_qs(urlsplit(path).query)["query"][0])
        result = history('a-1.b:80"', time.time() - 290) if len(asked) > 1 else [time.time(), "0"]
        return json_of(json.dumps({"status": "success", "data": {"result": result}}))

    read({"/api/v1/query": query})
    assert asked[2] == r'up{instance=~"a\\-1\\.b:80\""}[300s]'


def test_one_rank_of_an_engine_counts() -> None:
    now = time.time() - 290
    ranks = [
        {**one, "metric": {**one["metric"], "tp_rank": str(rank)}}
        for rank in (1, 0, 2)
        for one in history("a:8000", now)
    ]
    facts = read(answering(ranks))
    assert (facts.service.mean("running"), facts.service.increase("prompt_tokens")) == (3, 1900)


def test_engines_of_one_instance_are_told_apart() -> None:
    series = [
        {**one, "metric": {**one["metric"], "engine": engine}}
        for engine in ("0", "1")
        for one in history("a:8000", time.time() - 300)
    ]
    facts = read(answering(series))
    assert facts.service.mean("running") == 6
    assert [part.name for part in facts.workers] == ["0 a:8000", "1 a:8000"]


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
