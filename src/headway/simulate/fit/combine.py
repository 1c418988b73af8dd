"""`fit`: one step-time model from whatever there is: step logs, observed requests, a belief, or all of them.

A step log's equations are known; those of observed servers follow from simulations with the coefficients so far
(`inside`). All are solved together (`regression`), until nothing changes. A belief alone is a fit too: of a roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core.errors import ConfigError
from headway.core.pace import Shape
from headway.simulate.fit.inside import equations_of
from headway.simulate.fit.model import Coefficient, Residual, Server, StepFit, Valid
from headway.simulate.fit.prior import Belief
from headway.simulate.fit.records import Observed
from headway.simulate.fit.regression import Misfit, Solution, solve
from headway.simulate.fit.served import Demand, Served, serve
from headway.simulate.fit.settings import candidates, server_of, with_setting
from headway.simulate.fit.step_log import StepLog, valid_of
from headway.simulate.fit.terms import COLUMNS, WIDTH, Equations, Floats, step_cost

MOST_ROUNDS, TRIAL_ROUNDS = 8, 3
SETTLED = 0.003  # of what the equations' stretches take, from one round to the next
# Simulated beyond what was seen to start, so that the last ones seen meet the crowd they met.
_BEYOND = 0.15

# Told what is being done, and which of how many rounds.
Progress = Callable[[str, int, int], None]


def fit(
    logs: Sequence[StepLog] = (),
    observed: Sequence[Observed] = (),
    belief: Belief | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> StepFit:
    """Fit a model. `given`: fields of `Server` that are known, whatever the sources say.

    Raises:
        ConfigError: nothing to fit, requests that never finished, or settings that contradict each other.
    """
    return _Fitting(
        list(logs), list(observed), belief, given=dict(given or {}), progress=progress or _quiet, seed=seed
    ).run()


def _quiet(_doing: str, _done: int, _of: int) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class _Case:
    """An observed server, as it is understood so far."""

    observed: Observed
    server: Server
    demand: Demand
    served: Served | None = None

    def equations(self, values: Floats, server: Server | None = None) -> Equations:
        self.served = serve(self.demand, server or self.server, step_cost(values))
        return equations_of(self.observed, self.served)


class _Fitting:
    def __init__(
        self,
        logs: list[StepLog],
        observed: list[Observed],
        belief: Belief | None,
        *,
        given: dict[str, Any],
        progress: Progress,
        seed: int,
    ) -> None:
        if not logs and not observed and belief is None:
            raise ConfigError("nothing to fit: give a step log, requests, a bench result, or a config.json and a GPU")
        self.logs = logs
        self.cases = [_Case(one, server_of(one, given), _relevant(one)) for one in observed]
        self.belief = belief
        self.given = given
        self.progress = progress
        self.seed = seed
        self._fixed = [log.equations for log in logs]
        self._prior = belief.prior if belief is not None else None

    def run(self) -> StepFit:
        if not self.logs and not self.cases:
            return self._of_belief()
        values = self._first_guess()
        if self.cases:
            values = self._simulated(values)
        return self._result(solve(self._equations(values), self._prior, bounds=True, seed=self.seed))

    # -- observed servers ------------------------------------------------------------------------------------------

    def _simulated(self, values: Floats) -> Floats:
        values = self._round(values)
        for case in self.cases:
            for name, options in candidates(case.server, stamped=case.observed.stamped):
                case.server = self._best(case, name, options, values)
        for number in range(1, MOST_ROUNDS):
            self.progress("simulating what was observed", number, MOST_ROUNDS)
            equations = self._equations(values)
            better = solve(equations, self._prior).values
            change = np.median(np.abs(equations.matrix @ (better - values)) / equations.ns)
            values = better
            if change < SETTLED:
                break
        return values

    def _round(self, values: Floats) -> Floats:
        return solve(self._equations(values), self._prior).values

    def _equations(self, values: Floats) -> Equations:
        return Equations.joined([*self._fixed, *(case.equations(values) for case in self.cases)])

    def _best(self, case: _Case, name: str, options: Sequence[Any], values: Floats) -> Server:
        """The setting with which a simulation, fitted anew, is nearest to what was seen."""
        if len(options) == 1:
            return with_setting(case.server, name, options[0], "assumed")
        losses = []
        for number, option in enumerate(options):
            self.progress(f"trying {name} = {option}", number, len(options))
            server, tried = with_setting(case.server, name, option, "inferred"), values
            for _ in range(TRIAL_ROUNDS):  # coefficients found under another setting speak for that one
                solution = solve(Equations.joined([*self._fixed, case.equations(tried, server)]), self._prior)
                tried = solution.values
            losses.append(solution.loss)
        return with_setting(case.server, name, options[int(np.argmin(losses))], "inferred")

    def _first_guess(self) -> Floats:
        if self.logs:
            return solve(Equations.joined(self._fixed), self._prior).values
        if self.belief is not None:
            return self.belief.prior.values
        return _guess(self.cases[0].observed)

    # -- results -----------------------------------------------------------------------------------------------------

    def _result(self, solution: Solution) -> StepFit:
        servers = [log.server for log in self.logs] + [case.server for case in self.cases]
        valid = _widest([log.valid for log in self.logs] + [_seen(case) for case in self.cases])
        notes = []
        if self.belief is None and valid.min_decode_seqs > 4:
            notes.append(
                f"no step of fewer than {valid.min_decode_seqs} sequences was seen: what a step costs whatever it "
                "carries is told apart from what a sequence costs by little; a config.json and a GPU would help"
            )
        return StepFit(
            model=next((log.model for log in self.logs), "") or self._model(),
            device=next((log.device for log in self.logs), "") or (self.belief.device if self.belief else ""),
            sources=[log.name for log in self.logs]
            + [case.observed.name for case in self.cases]
            + ([f"roofline of {self.belief.model} on {self.belief.device}"] if self.belief else []),
            coefficients=_coefficients(solution),
            residuals=_residuals(solution.misfits),
            valid=valid,
            server=_given(servers[0], self.given),
            notes=notes,
        )

    def _model(self) -> str:
        told = next((str(case.observed.meta.get("model") or "") for case in self.cases), "")
        return told or (self.belief.model if self.belief is not None else "")

    def _of_belief(self) -> StepFit:
        assert self.belief is not None
        solution, valid = self.belief.laid(), self.belief.valid
        return StepFit(
            model=self.belief.model,
            device=self.belief.device,
            sources=[f"roofline of {self.belief.model} on {self.belief.device}"],
            coefficients=_coefficients(solution),
            residuals=_residuals(solution.misfits),
            valid=Valid(
                steps=0,
                max_prefill_tokens=valid.max_num_batched_tokens,
                min_decode_seqs=1,
                max_decode_seqs=valid.max_num_seqs,
                max_context_tokens=valid.max_num_seqs * valid.max_context,
                max_attention_tokens=valid.max_num_batched_tokens * valid.max_context,
            ),
            server=_given(Server(), self.given),
            notes=["nothing was measured: bounds are those of what well and badly tuned engines reach"],
        )


def _relevant(observed: Observed) -> Demand:
    """Those who can have met anybody who was seen to start: all before, and some after."""
    started = np.isfinite(observed.scheduled_s) | np.isfinite(observed.first_s)
    if not np.any(started):
        raise ConfigError(f"{observed.name}: no request was seen to start")
    last = int(np.flatnonzero(started)[-1]) + 1
    return observed.demand.first(min(len(observed), last + int(_BEYOND * last) + 8))


def _guess(observed: Observed) -> Floats:
    """Something to begin with: half of a token's usual gap is the step, prefill what the fastest prompts took."""
    gaps = (observed.last_s - observed.first_s) / np.maximum(1, observed.output_tokens - 1)
    gap_ns = float(np.nanmedian(gaps[observed.output_tokens > 1])) * 1e9
    since = observed.scheduled_s if observed.stamped else observed.arrival_s
    prefill = (observed.first_s - since) / observed.prompt_tokens
    token_ns = float(np.nanpercentile(prefill, 10)) * 1e9
    values = np.zeros(WIDTH)
    values[:3] = 0.5 * gap_ns, 0.5 * token_ns, 0.01 * gap_ns
    return values


def _seen(case: _Case) -> Valid:
    """The steps of the simulation that was fitted."""
    assert case.served is not None
    return valid_of(case.served.prefix.shapes)


def _widest(parts: Sequence[Valid]) -> Valid:
    return Valid(
        steps=sum(part.steps for part in parts),
        max_prefill_tokens=max(part.max_prefill_tokens for part in parts),
        min_decode_seqs=min(part.min_decode_seqs for part in parts),
        max_decode_seqs=max(part.max_decode_seqs for part in parts),
        max_context_tokens=max(part.max_context_tokens for part in parts),
        max_attention_tokens=max(part.max_attention_tokens for part in parts),
    )


def _coefficients(solution: Solution) -> dict[str, Coefficient]:
    columns = zip(COLUMNS, solution.values, solution.low, solution.high, strict=True)
    return {name: Coefficient(value=float(v), low=float(low), high=float(high)) for name, v, low, high in columns}


def _residuals(found: Sequence[Misfit]) -> list[Residual]:
    return [
        Residual(kind=m.kind, count=m.count, bias=m.bias, median_error=m.median_error, p95_error=m.p95_error)
        for m in found
    ]


def _given(server: Server, given: Mapping[str, Any]) -> Server:
    for name, value in given.items():
        server = with_setting(server, name, value, "given")
    return server


def covers(fit: StepFit, served: Served) -> float:
    """Which share of a simulation's steps is like steps that the fit saw."""
    shapes = [Shape(*(int(count) for count in row)) for row in served.prefix.shapes]
    return sum(map(fit.valid.covers, shapes)) / max(1, len(shapes))
