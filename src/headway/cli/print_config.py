"""`--print-config`: all that holds, as a configuration file that says the same when it is read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from headway.cli.config import GROUPS, Key
from headway.cli.goals import GOALS, Choice
from headway.cli.layers import KEYS, Effective
from headway.cli.toml_file import toml
from headway.workers.quota_url import PASSWORD_ENV, without_password

WIDTH = 110


def printed(effective: Effective) -> str:
    """What `--goal` sets has a comment that says why; what is left out has its default in one."""
    goal = effective.config.goal
    choices = GOALS[goal].of("gateway" if effective.is_gateway else "engine") if goal is not None else {}
    lines, group = [_heading(goal)], ""
    tables = dict(effective.raw_tables)
    if "worker" in tables:  # a file names its workers in one way; those of the command line join them
        tables["worker"] = [{"url": url} for url in effective.config.worker] + tables["worker"]
    order = list(GROUPS)
    for name, key in sorted(KEYS.items(), key=lambda one: order.index(one[1].setting.group)):
        if key.setting.group != group:
            group = key.setting.group
            lines += ["", f"# -- {group}"]
        if name not in tables:
            lines += _setting(key, effective.value(name), choices.get(name))
    for table, found in tables.items():
        for one in found:
            lines += ["", f"[[{table}]]", *(f"{key} = {toml(value)}" for key, value in one.items())]
    return "\n".join(lines) + "\n"


def _heading(goal: str | None) -> str:
    if goal is None:
        return "# What holds. Read it with `headway serve --config FILE`."
    return f"# What holds for the goal {goal}: {GOALS[goal].about}. Read it with `headway serve --config FILE`."


def _setting(key: Key, value: Any, choice: Choice | None) -> Iterator[str]:
    if choice is not None:
        said = "set by the goal" if value == choice.value else f"the goal would set {toml(choice.value)}"
        yield from textwrap.wrap(f"{said}: {choice.why}", WIDTH, initial_indent="# ", subsequent_indent="# ")
    if key.field == "quota_store" and value is not None and value != without_password(value):
        value = without_password(value)
        yield f"# its password is not shown; give it in {PASSWORD_ENV}"
    if value is None:
        yield f"# {key.name}: {key.setting.default or toml(key.default)}"
    else:
        yield f"{key.name} = {toml(value)}"
