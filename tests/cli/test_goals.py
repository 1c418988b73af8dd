"""`--goal` and `--print-config`: what a goal sets holds unless overruled, and what is printed says the same again."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli import status
from headway.cli.config import MODEL_KEY, SERVE_KEYS
from headway.cli.goals import GOALS
from headway.cli.layers import KEYS, Effective, Layers
from headway.cli.print_config import printed
from headway.core.errors import ConfigError

WORKERS = {"engine": {}, "gateway": {"worker": ("http://127.0.0.1:1", "http://127.0.0.1:2")}}


def same(one: Effective, other: Effective) -> bool:
    return (one.model, one.config, one.tables) == (other.model, other.config, other.tables)


def read_again(effective: Effective, folder: Path) -> Effective:
    path = folder / "printed.toml"
    path.write_text(printed(effective))
    return Layers(path=path).read()


@pytest.mark.parametrize("body", ["engine", "gateway"])
@pytest.mark.parametrize("goal", GOALS)
def test_what_is_printed_says_the_same_when_it_is_read(tmp_path: Path, goal: str, body: str) -> None:
    effective = Layers(flags={"goal": goal, **WORKERS[body]}).read()
    for name, choice in GOALS[goal].of(body).items():  # type: ignore[arg-type]
        assert effective.value(name) == choice.value
        assert effective.layers[name] == "goal"
    again = read_again(effective, tmp_path)
    assert same(again, effective)
    assert printed(again) == printed(effective)
    assert len(re.findall("^# set by the goal: ", printed(again), re.MULTILINE)) == len(GOALS[goal].of(body))  # type: ignore[arg-type]


def test_every_goal_is_of_settings_that_there_are_and_changes_something() -> None:
    defaults = Layers().read()
    for goal in GOALS.values():
        for name, choice in goal.choices.items():
            assert choice.value != defaults.value(name) or name in ("overlong", "queue_timeout", "prefix_cache_scope")
            assert choice.why


def test_without_a_goal_everything_is_printed_as_it_is(tmp_path: Path) -> None:
    effective = Layers().read()
    keys = tomllib.loads(printed(effective))
    assert {key.name for key in KEYS.values() if effective.value(key.field) is not None} == set(keys)
    assert same(read_again(effective, tmp_path), effective)


def test_a_flag_and_the_file_overrule_the_goal(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('goal = "chat"\nmax-waiting = 7\n')
    effective = Layers(path=path, flags={"slo_ttft": 3.0}).read()
    assert (effective.config.engine.max_waiting, effective.config.engine.slo_ttft) == (7, 3.0)
    assert effective.config.engine.slo_itl == GOALS["chat"].choices["slo_itl"].value
    assert "# the goal would set 256: more would only wait" in printed(effective)
    assert Layers(path=path, flags={"goal": "offline"}).read().config.engine.max_num_seqs == 256
    assert same(read_again(effective, tmp_path), effective)


# Whatever texts there are, TOML says them as they are.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    flags=st.fixed_dictionaries(
        {},
        optional={
            "served_model_name": texts,
            "scale_hook": texts,
            "goal": st.sampled_from(list(GOALS)),
            "slo_ttft": st.floats(0, 3600),
            "threads": st.integers(1, 1024),
            "pace": st.booleans(),
            "kv_cache_dtype": st.sampled_from(["bf16", "u8", "f32"]),
            "ladder": st.lists(st.sampled_from(["clamp_output=on", "demote_long=off"]), max_size=2).map(tuple),
        },
    ),
    model=st.one_of(st.none(), texts),
    tenant=texts,
)
def test_any_settings_come_back(tmp_path_factory: pytest.TempPathFactory, flags, model, tenant) -> None:
    folder = tmp_path_factory.mktemp("printed")
    effective = Layers(model, None, flags).read()
    effective = Effective(
        effective.model, effective.config, effective.tables, effective.layers, {"tenant": [{"name": tenant}]}
    )
    again = read_again(effective, folder)
    assert (again.model, again.config) == (effective.model, effective.config)
    assert list(again.tables.limits) == [tenant] * (tenant != "*")
    assert printed(again) == printed(effective)


def test_workers_of_flags_and_of_a_file_are_printed_together(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[worker]]\nurl = "http://127.0.0.1:1"\nid = "one"\napi-key-env = "HOME"\n')
    effective = Layers(path=path, flags={"worker": ("http://127.0.0.1:2",)}).read()
    again = read_again(effective, tmp_path)
    assert [worker.spec.id for worker in again.tables.workers] == ["127.0.0.1:2", "one"]
    assert printed(again) == printed(effective)


def test_it_is_printed_by_the_command_and_nothing_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["serve", "some/model", "--goal", "chat", "--print-config", "--port", "1"]) == 0
    said = tomllib.loads(capsys.readouterr().out)
    assert (said["model"], said["goal"], said["port"]) == ("some/model", "chat", 1)


def test_what_does_not_go_together_is_said_with_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("# ours\n\nmax-num-seqs = 512\n")
    with pytest.raises(ConfigError) as refused:
        Layers(path=path).read()
    assert refused.value.message.startswith(f"{path}:3: max_num_seqs is 512")
    with pytest.raises(ConfigError, match=r"\(--goal offline sets max_num_batched_tokens\)"):
        Layers(flags={"goal": "offline", "max_num_seqs": 4096}).read()
    path.write_text('port = 1\nladder = ["clamp=on"]\n')
    with pytest.raises(ConfigError, match=re.escape(f"{path}:2: ladder: 'clamp=on' is no LEVEL=MODE")):
        Layers(path=path).read()


@given(data=st.data())
def test_each_setting_is_from_the_first_layer_that_has_it(tmp_path_factory, data) -> None:
    goal = data.draw(st.sampled_from(list(GOALS)))
    numbers = {"max_waiting": st.integers(1, 9), "slo_ttft": st.integers(1, 9), "queue_timeout": st.integers(1, 9)}
    flags = data.draw(st.fixed_dictionaries({}, optional=numbers))
    filed = data.draw(st.fixed_dictionaries({}, optional=numbers))
    path = tmp_path_factory.mktemp("layers") / "c.toml"
    path.write_text("\n".join(f"{KEYS[name].name} = {value}" for name, value in filed.items()))
    effective = Layers(path=path, flags={"goal": goal, **flags}).read()
    chosen = {name: choice.value for name, choice in GOALS[goal].of("engine").items()}
    defaults = {key.field: key.default for key in (MODEL_KEY, *SERVE_KEYS)}
    for name in numbers:
        assert effective.value(name) == {**defaults, **chosen, **filed, **flags}[name]
