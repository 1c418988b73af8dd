"""`Tuning`: the closed loop. Probe, fit, search on virtual time, test the best for real, keep the winner or restore.

It blocks, so that Ctrl-C is an exception wherever it comes; before it returns, the server has its old settings again.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from headway.core.errors import HeadwayError
from headway.loadtest.bench.options import Burst, Mixed, Options, Rate, Trace
from headway.loadtest.bench.profiles import Offered
from headway.loadtest.bench.tester import OnProgress, Result, Tester
from headway.loadtest.errors import InvalidPlan, LoadTestError, Unreachable
from headway.loadtest.result import Load, Run, Slo, Word
from headway.simulate import Stuck
from headway.simulate.fit import StepFit
from headway.tune.advice import advice_of
from headway.tune.feasible import alone, check
from headway.tune.judge import Gain, gain, good_share, order_of_tests
from headway.tune.predict import Build, Prediction, World
from headway.tune.probe import LogMark, Probed, fit_of, prober, server_facts, stages
from headway.tune.report import Decision, Report, Trial, Tried, figures_of
from headway.tune.search import NEAR, WHOLE, Climb, Grid, Point, Progress, Search
from headway.tune.settings import Settings
from headway.tune.target import NotRestored, Target
from headway.tune.workload import Outside, Workload

EASIER = 0.9  # of equal goodput: by so much the nearest promise must be further from breaking to be worth a test
APART = 2.0  # candidates for the live tests differ by this factor in one limit, where there are such
OFF = 0.25  # a prediction of what was measured that is further off is worth a word
OpenProfile = Rate | Mixed | Burst | Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked. Without `fixed_rate` the highest rate is searched at which `good` of the requests keep all."""

    profile: OpenProfile
    options: Options
    fixed_rate: bool = True
    good: float = 0.95
    live_tests: int = 5
    probe_s: float = 24.0
    fit: StepFit | None = None  # None: a probing load makes one
    step_log: str | None = None  # where the server writes it, if that is not what it says itself
    grid: Grid = WHOLE
    keep: bool = True  # the winner; else what was there is put back whatever won

    @property
    def slo(self) -> Slo:
        """The promises."""
        promise = self.options.promise
        return Slo(ttft_s=promise.slo_ttft, itl_s=promise.slo_itl, e2e_s=promise.slo_e2e)

    def check(self) -> None:
        """Raises `InvalidPlan`."""
        slo = self.slo
        if slo.ttft_s is None and slo.itl_s is None and slo.e2e_s is None:
            raise InvalidPlan("Nothing is promised: give --slo-ttft, --slo-itl or --slo-e2e, or there is no goodput.")
        if self.live_tests < 2:
            raise InvalidPlan(f"--live-tests is {self.live_tests}: at least 2 are needed to compare anything.")
        if not self.fixed_rate and not isinstance(self.profile, Rate | Mixed):
            raise InvalidPlan("The highest load is searched by rate: give --request-rate, or the profile rate or mix.")
        if isinstance(self.profile, Mixed) and self.profile.concurrency is not None:
            raise InvalidPlan("tune needs an open loop: a mix with --request-rate, not with --concurrency.")


@dataclass(frozen=True, slots=True)
class Audience:
    """Who sees how it goes on: a live test or a stage of the probing load, and the search."""

    watch: Callable[[str, Load], AbstractContextManager[OnProgress | None]]
    search: Callable[[], AbstractContextManager[Progress]]


def silent() -> Audience:
    """Nobody sees anything."""
    return Audience(
        lambda _what, _load: contextlib.nullcontext(),
        lambda: contextlib.nullcontext(lambda _doing, _done, _of: None),
    )


@dataclass(slots=True)
class Tuning:
    """One tuning; `run` it once. `build`: how the server is simulated, given what it told of itself."""

    target: Target
    tester: Tester
    wanted: Wanted
    build: Callable[[Target], Build]
    seen_by: Audience
    report: Report = field(init=False)
    _runs: dict[Settings, list[Run]] = field(default_factory=dict)
    _search: Search = field(init=False)
    _offered: Offered = field(init=False)
    _keeps: bool = False

    def __post_init__(self) -> None:
        address = self.tester.template.address
        self.report = Report(
            started_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            url=address.url,
            kind=self.target.kind,
            model=self.tester.template.model,
            slo=self.wanted.slo,
            current=self.target.current,
        )

    def run(self) -> Report:
        """The server has the winner's settings afterwards, or its old ones.

        Raises `LoadTestError` and `HeadwayError` for what is wrong before the first live test. Later failures, and
        Ctrl-C, are in the report with what was measured until then.
        """
        raised: Exception | None = None
        try:
            self.wanted.check()
            self._prepare()
            self._live()
        except KeyboardInterrupt:
            self.report.interrupted = True
        except (LoadTestError, HeadwayError, Stuck) as error:
            raised = error
            self.report.failed = str(getattr(error, "message", error))
        finally:
            with _undisturbed():
                self._put_back()
        if raised is not None and not self.report.trials and not self.report.not_restored:
            raise raised
        return self.report

    def _put_back(self) -> None:
        if self._keeps:
            return
        try:
            self.target.restore()
            self.report.restored = True if self.target.changes else None
            self.report.decision.kept = self.target.current
        except NotRestored as error:
            self.report.restored, self.report.not_restored = False, str(error)

    # -- on virtual time -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        offered = asyncio.run(self.tester.offer(self.wanted.profile))
        Workload.of(offered, self.wanted.slo, Outside(), by_promise=False, drain_s=0.0)  # what is wrong is said at once
        probed = self._probed(offered)
        world = World(probed.fit, self.build(self.target))
        self.report.fit, self.report.fitted_from = probed.fit, probed.source
        self.report.notes += [*probed.fit.notes]
        if self.report.current is None:
            server = probed.fit.server
            self.report.current = Settings(server.max_num_seqs, server.max_num_batched_tokens)
            self.target.current = self.report.current
            self.report.notes.append(f"the server does not tell its limits; from the fit: {self.report.current.label}")
        load = self._workload(offered, world, probed.outside)
        self.report.alone = alone(probed.fit, load)
        self.report.notes += check(self.report.alone, 0.0 if self.wanted.fixed_rate else self.wanted.good)
        with self.seen_by.search() as progress:
            if not self.wanted.fixed_rate:
                offered, load = self._highest(world, probed.outside, load, progress)
            lanes = _lane_tokens(self.target.config)
            self._search = Search(world, load, progress, lanes, world.doubt(probed.outside), self.wanted.grid)
            ranked = self._search.run(self.report.current)
        self._offered = offered
        self.report.load, self.report.rate = offered.described.description, load.rate
        self.report.objective = f"goodput at {offered.described.rate or load.rate:.3g} req/s" + (
            "" if self.wanted.fixed_rate else f", the highest of which {self.wanted.good:.0%} keep every promise"
        )
        self.report.searched = [Tried(settings=one.settings, predicted=one.predicted) for one in ranked]

    def _workload(self, offered: Offered, world: World, outside: Outside) -> Workload:
        client = self.wanted.options.client
        drain_s = client.timeout if client.drain is None else client.drain
        return Workload.of(
            offered,
            self.wanted.slo,
            outside,
            by_promise=world.by_promise,
            drain_s=drain_s,
            kv_tokens=world.kv_tokens,
        )

    def _probed(self, offered: Offered) -> Probed:
        if self.wanted.fit is not None:
            return Probed(self.wanted.fit, Outside(self.wanted.fit.request_ns), "a file of `headway fit`")
        config = self.target.widen()
        mark = LogMark.of(self.wanted.step_log or self.target.config.get("step_log"))
        tester = prober(self.tester, 2 * self.wanted.probe_s)
        results: list[Result] = []
        for stage in stages(offered, self.wanted.probe_s):
            with self.seen_by.watch("first, to know the server", stage.described) as on_progress:
                results.append(_whole(asyncio.run(tester.measure(stage, on_progress=on_progress))))
        environment = results[-1].run.environment
        self.report.framework = environment.framework
        with self.seen_by.search() as progress:
            progress("fitting", 0, 0)
            return fit_of(results, mark, server_facts(config, environment, self.target.kind))

    def _highest(self, world: World, outside: Outside, load: Workload, progress: Progress) -> tuple[Offered, Workload]:
        """The load at which all are compared."""
        profile = self.wanted.profile
        assert isinstance(profile, Rate | Mixed)
        options = self.wanted.options
        if options.window.duration is None and options.window.requests is None:
            options = replace(options, window=replace(options.window, duration=60.0))

        def offered_at(rate: float) -> Offered:
            return asyncio.run(self.tester.offer(replace(profile, request_rate=rate), options))

        def load_at(rate: float) -> Workload:
            return self._workload(offered_at(rate), world, outside)

        climb = Climb(world, load_at, self.wanted.good, progress, world.doubt(outside), self.wanted.grid)
        rate = climb.run(self.report.current, start=load.rate)
        if rate is None:
            raise InvalidPlan(
                f"No settings give {self.wanted.good:.0%} of the requests every promise at any rate that was "
                "simulated. Promise more time, send shorter requests, or lower --good."
            )
        return offered_at(rate), load_at(rate)

    # -- for real --------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        current = self.report.current
        assert current is not None
        if not self.target.changes:
            self._advise_only(current)
            return
        self._test(current)
        tried, rounds = order_of_tests(len(self._candidates(current)), self.wanted.live_tests)
        candidates: list[Settings] = []
        for _ in range(tried):  # each is chosen with what those before it taught
            following = [one.settings for one in self._candidates(current) if one.settings not in self._runs]
            if following:
                candidates.append(following[0])
                self._test(following[0])
        if not candidates:
            self.report.decision.why = "no settings that were simulated are better than what the server has"
            self._finish(current)
            return
        best = max(candidates, key=lambda settings: good_share(self._runs[settings][0]))
        for _ in range(rounds):
            if self._gain(current, best).change <= 0:
                break  # more tests would not make it better
            self._test(current)
            self._test(best)
        self._decide(current, best)

    def _decide(self, current: Settings, best: Settings) -> None:
        found = self._gain(current, best)
        shares = [sum(map(good_share, runs)) / len(runs) for runs in (self._runs[current], self._runs[best])]
        words = f"{shares[1]:.1%} of the requests kept every promise, {shares[0]:.1%} with what the server had"
        interval = f"{found.change:+.1%}, 95% interval {found.low:+.1%} to {found.high:+.1%}"
        decision = self.report.decision = Decision(winner=best if found.certain else current, gain=found)
        if not found.certain:
            decision.why = f"not better by more than noise: {words} ({interval})"
        elif not self.wanted.keep:
            decision.why = f"better: {words} ({interval}); put back, as was asked"
        else:
            decision.why = f"better: {words} ({interval})"
            self.target.apply(best)
            decision.kept, self._keeps = best, True
        self._finish(decision.winner or current)

    def _gain(self, current: Settings, best: Settings) -> Gain:
        return gain(self._runs[current], self._runs[best], list(self._runs.values()))

    def _finish(self, winner: Settings) -> None:
        self.report.decision.winner = winner
        self.report.flags = winner.flags(self.target.kind)
        self.report.notes += [*_off(self.report.trials), *_limited(self._runs)]

    def _advise_only(self, current: Settings) -> None:
        """A server that cannot be changed from here: what it does now is measured, the rest predicted."""
        self._test(current)
        found = self._candidates(current)
        winner = found[0].settings if found else current
        now, then = (self._search.predict(each) for each in (current, winner))
        self.report.decision.why = (
            f"predicted only, this server is not changed from here: {then.good_ratio:.1%} of the requests would keep "
            f"every promise, {now.good_ratio:.1%} with what it has"
            if found
            else "no settings that were simulated are better than what the server has"
        )
        self._finish(winner)

    def _candidates(self, current: Settings) -> list[Point]:
        """Those predicted to be better than what is there, the best first; unlike what was tested, where possible."""
        now = self._search.predict(current)
        ahead = [point for point in self._search.ranked if point.settings != current and _better(point, now)]
        ahead = [point for place, point in enumerate(ahead) if not _alike(point, ahead[:place])]
        tested = [settings for settings in self._runs if settings != current]
        apart = [point for point in ahead if all(_apart(point.settings, other) for other in tested)]
        return [*apart, *(point for point in ahead if point not in apart)]

    def _test(self, settings: Settings) -> None:
        """One live test. Raises KeyboardInterrupt when it was interrupted, `Unreachable` when the server is gone."""
        self.target.apply(settings)
        number = len(self.report.trials) + 1
        with self.seen_by.watch(f"live test {number}: {settings.label}", self._offered.described) as on_progress:
            run = _whole(asyncio.run(self.tester.measure(self._offered, on_progress=on_progress))).run
        self.report.framework = run.environment.framework or self.report.framework
        predicted, measured = self._search.predicted_at_first(settings), figures_of(run)
        self._search.doubt = self._search.doubt.after(predicted, measured)
        self._runs.setdefault(settings, []).append(run)
        self.report.trials.append(
            Trial(
                number=number,
                settings=settings,
                current=settings == self.report.current,
                predicted=predicted,
                measured=measured,
                verdict=run.verdict.name,
                started_at=run.started_at,
                error=predicted.goodput / measured.goodput - 1 if measured.goodput else None,
            )
        )
        fit = self.report.fit
        if fit is not None and (settings == self.report.current) and number == 1:
            self.report.advice = advice_of(settings, run, fit, self.wanted.slo, self._search.workload)
        if not self.target.answers():
            errors = "; ".join(list(run.summary.errors)[:1])
            where = self.tester.template.address.authority
            raise Unreachable(f"{where} does not answer any more, after live test {number}. {errors}".strip())


def _whole(result: Result) -> Result:
    """Raises KeyboardInterrupt for one that was interrupted."""
    if result.run.interrupted:
        raise KeyboardInterrupt
    return result


def _better(point: Point, now: Prediction) -> bool:
    """More good requests; or as many, with the nearest promise further from breaking."""
    then = point.predicted
    more = then.good_ratio > now.good_ratio * (1 + NEAR)
    return more or (
        then.good_ratio >= now.good_ratio * (1 - NEAR) and then.load_on_promises < EASIER * now.load_on_promises
    )


def _alike(point: Point, others: Sequence[Point]) -> bool:
    """Whether it would serve exactly as one of the others."""
    return any(point.predicted == other.predicted for other in others)


def _apart(one: Settings, other: Settings) -> bool:
    pairs = ((one.max_num_seqs, other.max_num_seqs), (one.max_num_batched_tokens, other.max_num_batched_tokens))
    return any(max(pair) >= APART * min(pair) for pair in pairs)


def _lane_tokens(config: Mapping[str, object]) -> tuple[int, int] | None:
    found = [config.get(name) for name in ("long_prompt_tokens", "long_output_tokens")]
    prompts, outputs = found
    return (prompts, outputs) if isinstance(prompts, int) and isinstance(outputs, int) else None


def _off(trials: Sequence[Trial]) -> list[str]:
    """Where a prediction was far from what was measured."""
    return [
        f"test {trial.number}: the simulation was {trial.error:+.0%} off in goodput; what was measured counts"
        for trial in trials
        if trial.error is not None and abs(trial.error) > OFF
    ]


def _limited(runs: Mapping[Settings, Sequence[Run]]) -> list[str]:
    """Where this machine was too slow to test another."""
    late = [run for each in runs.values() for run in each if run.verdict.name == Word.CLIENT_LIMITED]
    if not late:
        return []
    of, why = sum(map(len, runs.values())), late[0].verdict.findings[0].evidence.rstrip(".")
    return [f"{len(late)} of {of} live tests were limited by this machine, one for this: {why}"]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait: what is done here takes moments, and a server must not be left half way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    earlier = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
