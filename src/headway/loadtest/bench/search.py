"""`find_stable`: the search for the stable region on a real server, in a folder that it can go on in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from pathlib import Path

import msgspec

from headway.loadtest.bench.files import Files, save, save_records_of
from headway.loadtest.bench.options import Concurrency, Options, Rate, WindowOptions
from headway.loadtest.bench.outputs import write_bytes
from headway.loadtest.bench.several import ASKING, Audience, Folder, Manifest, asked_facts, unreadable
from headway.loadtest.bench.template import template_of
from headway.loadtest.bench.tester import Result, Tester, new_text_seed
from headway.loadtest.errors import InvalidPlan, ResultFailed
from headway.loadtest.probe import Bound, Probe, Requirements, probe_of
from headway.loadtest.redact import Redactor
from headway.loadtest.report.json_file import ReportError, load_run
from headway.loadtest.result import Run
from headway.loadtest.runner.interrupts import keeping
from headway.loadtest.stable import NextProbe, Search, Stable, next_step

WARMUP_S, COOLDOWN_S = 10.0, 2.0  # of a probe, unless its window is short
KIND = "stable"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched: the highest rate of an open loop, or the highest concurrency of a closed one."""

    search: Search
    by: Rate | Concurrency


@dataclass(frozen=True, slots=True)
class Found:
    """`run` is the last probe's, which tells promises, server and settings; None when there was no probe at all."""

    stable: Stable | None  # None: it was broken off before there was an answer
    probes: list[Probe]
    run: Run | None

    @property
    def interrupted(self) -> bool:
        return self.stable is None


async def find_stable(url: str, wanted: Wanted, options: Options, *, folder: Path | None, seen_by: Audience) -> Found:
    """Search. With a `folder`, probes are kept there and not made again. Raises `LoadTestError`."""
    promise = options.promise
    if promise.slo_ttft is promise.slo_itl is promise.slo_e2e is None:
        raise InvalidPlan(
            "A stable region is one in which promises hold: give at least one of --slo-ttft, --slo-itl, --slo-e2e."
        )
    redactor = template_of(url, options.server, promise).redactor()
    facts = asked_facts(url, wanted.by, options, _facts(wanted.search), redactor)
    kept = None if folder is None else Folder(folder, KIND, facts)
    earlier = _earlier(kept, seen_by)
    probes, run = [probe for probe, _ in earlier.values()], next((one for _, one in reversed(earlier.values())), None)
    numbers = (number for number in count(1) if number not in earlier)
    with seen_by.wait(ASKING):
        tester = await Tester.meet(url, options)
    seen_by.tell(outlook(wanted.search, options.window, made=len(probes)))
    while isinstance(step := next_step(wanted.search, probes), NextProbe):
        number = next(numbers)
        with keeping() as interrupts:
            try:
                result = await _probe(tester, wanted, step, number, seen_by)
            except ResultFailed as failed:
                if kept is not None:
                    save_records_of(failed, _files(kept, number))
                raise
            run = result.run
            if run.interrupted:
                return Found(None, probes, run)
            probes.append(probe_of(run, step.load))
            if kept is not None:
                save(result, _files(kept, number))
                write_bytes(_path(kept, number), msgspec.json.encode(probes[-1]))
        if interrupts.absorbed:  # while the probe was kept
            return Found(None, probes, run)
    if step.bound == Bound.CLIENT.value:  # that load broke this machine, not the server: its border was not found
        step = msgspec.structs.replace(step, breaks_at=None, tolerance=None)
    if kept is not None:
        write_bytes(kept.path / f"{KIND}.json", msgspec.json.format(msgspec.json.encode(step)))
    return Found(step, probes, run)


def outlook(search: Search, window: WindowOptions, *, made: int = 0) -> str:
    """How long the search may take, in words: nobody knows how many probes it needs."""

    def lasts(window_s: float) -> str:
        whole_s = window_s + sum(_edges(window, window_s))
        return f"{whole_s:.0f} s" if whole_s >= 10 else f"{whole_s:.2g} s"

    said = f"each probe takes about {lasts(search.window_s)}"
    if search.sustain > 1:
        said += f" ({lasts(search.sustain * search.window_s)} where a load must hold for longer)"
    there = f", {made:,} of them made before" if made else ""
    return f"{said}; at most {search.most_probes:,} of them (--most-probes){there}"


def _edges(window: WindowOptions, window_s: float) -> tuple[float, float]:
    """Warm-up and cool-down of a probe, in seconds."""
    return (
        min(WARMUP_S, window_s / 3) if window.warmup is None else window.warmup,
        min(COOLDOWN_S, window_s / 10) if window.cooldown is None else window.cooldown,
    )


async def _probe(tester: Tester, wanted: Wanted, step: NextProbe, number: int, seen_by: Audience) -> Result:
    options = tester.options
    window = options.window
    warmup_s, cooldown_s = _edges(window, step.window_s)
    # Probes are independent of each other only with times of their own.
    seed = (window.seed or 0) * 1000 + number
    lasts = replace(
        window,
        duration=warmup_s + step.window_s + cooldown_s,
        requests=None,
        warmup=warmup_s,
        cooldown=cooldown_s,
        seed=seed,
    )
    mine = replace(options, window=lasts)
    profile = (
        replace(wanted.by, concurrency=round(step.load))
        if isinstance(wanted.by, Concurrency)
        else replace(wanted.by, request_rate=step.load)
    )
    offered = await tester.offer(profile, mine)
    with seen_by.watch(f"probe {number}: {step.load:g} {wanted.search.unit}", offered.described) as on_progress:
        text_seed = new_text_seed(options, number)
        return await tester.measure(offered, mine, text_seed=text_seed, on_progress=on_progress)


def _facts(search: Search) -> dict[str, object]:
    """What the search itself was told. How many probes it may take can change when it goes on."""
    names = ("start", "tolerance", "window_s", "sustain", "repeats", "lowest", "highest")
    return {f"search {name}": getattr(search, name) for name in names} | {
        f"wanted {name}": value for name, value in asdict(search.wanted).items()
    }


def _path(kept: Folder, number: int) -> Path:
    return kept.path / f"probe-{number:03}.json"


def _files(kept: Folder, number: int) -> Files:
    """Of the probe's run."""
    path = _path(kept, number)
    return Files(csv=path.with_suffix(".csv"), json=path.with_suffix(".run.json"))


def _earlier(kept: Folder | None, seen_by: Audience) -> dict[int, tuple[Probe, Run]]:
    """By number: the probes that a search made before it was broken off, and their runs. The next step follows from the
    probes alone, so one that cannot be read is only made again where it is still needed.
    """
    found: dict[int, tuple[Probe, Run]] = {}
    paths = sorted(kept.path.glob("probe-*.json")) if kept is not None else []
    for path in paths:
        number = path.stem.removeprefix("probe-")
        if not number.isdecimal():  # `.run.json`
            continue
        try:
            found[int(number)] = (_read_probe(path), load_run(path.with_suffix(".run.json")))
        except ReportError as error:
            seen_by.warn(f"{unreadable(error)} So probe {int(number)} is made again, if it is still needed.")
    return found


@dataclass(frozen=True, slots=True)
class Kept:
    """What a search left in its folder. `stable` is None while it has not ended."""

    stable: Stable | None
    probes: int
    run: Run  # of its last probe
    wanted: Requirements


def is_search(folder: Path) -> bool:
    return (folder / f"{KIND}.manifest.json").exists()


def read_search(folder: Path) -> Kept:
    """A search that was kept. Raises `ReportError` where a file is damaged, or there is no probe yet."""
    runs = sorted(folder.glob("probe-*.run.json"))
    if not runs:
        raise ReportError(f"{folder} holds a search for the stable region that has measured nothing yet.")
    answer, manifest = folder / f"{KIND}.json", folder / f"{KIND}.manifest.json"
    try:
        asked = msgspec.json.decode(manifest.read_bytes(), type=Manifest).asked
        wanted = Requirements(
            **{one.name: float(asked[told]) for one in fields(Requirements) if (told := f"wanted {one.name}") in asked}
        )
        stable = msgspec.json.decode(answer.read_bytes(), type=Stable) if answer.exists() else None
    except (OSError, ValueError) as error:
        raise ReportError(f"{folder}: its {KIND}.json or {manifest.name} cannot be read: {error}.") from None
    return Kept(None if stable is None else Redactor().struct(stable), len(runs), load_run(runs[-1]), wanted)


def _read_probe(path: Path) -> Probe:
    try:
        return Redactor().struct(msgspec.json.decode(path.read_bytes(), type=Probe))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read: {error}.") from None
