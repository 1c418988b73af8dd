"""Does `headway doctor` name the cause? Twelve ways to be slow and four to be well, each seen three ways.

On virtual time each is scraped as headway and as vLLM (each with its own scheduling, where the pathology is not the
scheduling), and headway's step log is kept. The readers and rules are those of the command. With --real, a slow
tokenizer, a delaying proxy, a slot limit and a healthy server are real processes that are asked over HTTP:

    python -m benchmarks.doctor --json results/doctor.json
    python -m benchmarks.doctor --real
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.pathologies import CONTROLS, PATHOLOGIES, SCENARIOS, Scenario, watch
from benchmarks.watched import Dialect, Watched
from headway.doctor.diagnose import diagnose
from headway.doctor.facts import Client, Facts
from headway.doctor.recorder import Recorder
from headway.doctor.scrape import read_scrape
from headway.doctor.step_log import read_steps

DIALECTS: tuple[Dialect, ...] = ("headway", "vllm")
VIEWS = (*DIALECTS, "step log")
TARGET, FALSE_ALARMS = 0.95, 0
# What an engine's own log cannot know of: it begins at the engine's door, and knows one engine.
BEYOND_A_LOG = ("slow tokenizer", "network delay", "hot worker", "even fleet")


@dataclass(frozen=True, slots=True)
class Seen:
    """One scenario by one view and seed. `right`: its cause first, or for a control nothing."""

    name: str
    view: str
    seed: int
    wanted: str
    found: tuple[str, ...]
    blind: str = ""

    @property
    def right(self) -> bool:
        return self.found[:1] == ((self.wanted,) if self.wanted else ()) and not (self.blind and not self.wanted)


def facts_of(scenario: Scenario, seed: int, dialect: Dialect, every_s: float = 1.0) -> dict[str, Facts]:
    """By view, by the readers of the command. Headway's scrapes and its step log are of one run."""
    watched = watch(scenario, seed, dialect, every_s)
    watched.run()
    recorder = Recorder()
    for page in watched.pages:
        if page.at_s >= scenario.from_s:
            recorder.add(read_scrape(page.text), page.at_s)
    client = Client(network_s=scenario.network_s, network_probes=5)
    views: dict[str, Facts] = {dialect: replace(recorder.facts(), client=client)}
    if dialect == "headway" and scenario.name not in BEYOND_A_LOG:
        assert isinstance(watched, Watched)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps.jsonl"
            path.write_text(watched.step_log())
            views["step log"] = read_steps(path, scenario.window_s)
    return views


def seen(scenario: Scenario, seed: int, dialect: Dialect) -> list[Seen]:
    """One scenario, by each view of one run."""
    found = []
    for view, facts in facts_of(scenario, seed, dialect).items():
        diagnosis = diagnose(facts)
        causes = tuple(finding.cause for finding in diagnosis.findings)
        found.append(Seen(scenario.name, view, seed, scenario.cause, causes, diagnosis.blind))
    return found


def _task(task: tuple[int, int, Dialect]) -> list[Seen]:
    place, seed, dialect = task
    return seen(SCENARIOS[place], seed, dialect)


def all_seen(seeds: int, only: str, jobs: int) -> Iterator[Seen]:
    tasks: list[tuple[int, int, Dialect]] = [
        (place, seed, dialect)
        for place, scenario in enumerate(SCENARIOS)
        if only in scenario.name
        for dialect in DIALECTS
        for seed in range(seeds)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for several in pool.map(_task, tasks):
            for one in several:
                mark = "right" if one.right else "WRONG"
                print(
                    f"{mark}  {one.name:26} {one.view:9} seed {one.seed}: {', '.join(one.found) or 'healthy'}",
                    flush=True,
                )
                yield one


def figures(found: list[Seen]) -> dict[str, Any]:
    """The two figures, over all views and for each."""
    sick = {scenario.name for scenario in PATHOLOGIES}
    well = {scenario.name for scenario in CONTROLS}
    told: dict[str, Any] = {}
    for view in ("all", *VIEWS, "real"):
        mine = [one for one in found if view in ("all", one.view)]
        cases = [one for one in mine if one.name in sick or (one.view == "real" and one.wanted)]
        controls = [one for one in mine if one.name in well or (one.view == "real" and not one.wanted)]
        if mine:
            told[view] = {
                "first_right": sum(one.right for one in cases),
                "cases": len(cases),
                "ratio": sum(one.right for one in cases) / len(cases) if cases else None,
                "false_alarms": sum(bool(one.found) for one in controls),
                "controls": len(controls),
            }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    parser.add_argument("--real", action="store_true", help="real servers over HTTP instead of virtual time")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.real:
        from benchmarks.doctor_real import real

        found = [Seen(name, "real", seed, wanted, causes) for name, wanted, seed, causes in real(given.seeds)]
    else:
        found = list(all_seen(given.seeds, given.only, given.jobs))
    told = figures(found)
    for view, row in told.items():
        print(
            f"{view:9} first finding right {row['first_right']} of {row['cases']}"
            + (f" ({row['ratio']:.1%}, target {TARGET:.0%})" if row["ratio"] is not None else "")
            + f"; false alarms {row['false_alarms']} of {row['controls']} controls (target {FALSE_ALARMS})"
        )
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(one) | {"right": one.right} for one in found]
        given.json.write_text(json.dumps({"figures": told, "seen": rows}, indent=2))


if __name__ == "__main__":
    main()
