"""The front of a gateway, told again what its decision log says that it was told."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec

from headway.core.decisions import Decision
from headway.core.errors import HeadwayError
from headway.core.fleet.worker import Signal, WorkerLoad
from headway.core.front.front import Front
from headway.core.front.ladder import Level, Mode
from headway.core.front.ledger import Amounts
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.front.treatment import Asked
from headway.core.request import IllegalMove, Request, Slo, State, Usage
from headway.engine.journal import decision_line
from headway.simulate.log_lines import Line, admission_of, degradation_of, limits_of, spec_of, tenant_of


class FleetCore:
    """A front as the log's header describes it, and what it decides."""

    def __init__(self, header: Line) -> None:
        self.made: list[Line] = []
        self._tenants = Tenants(tenant_of(header["default_limits"]), _tenants_of(header["tenants"]))
        self._shadow = header["shadow"]
        self.front = Front(
            admission_of(header["admission"]),
            limits_of(header["limits"]),
            tenants=self._tenants,
            degradation=degradation_of(header["degradation"]),
            remote=True,
            listener=self._decided,
        )

    def _decided(self, decision: Decision) -> None:
        line = decision_line(decision)
        if self._shadow:
            line["shadow"] = True
        # Through JSON and back, as the logged ones went.
        self.made.append(msgspec.json.decode(msgspec.json.encode(line)))

    def run(self, stimuli: Iterable[Line]) -> list[Line]:
        """What was decided. A refusal is among the decisions; that a front told otherwise could not do is left out."""
        for line in stimuli:
            with suppress(HeadwayError, KeyError, IllegalMove):  # of one that is not here, or not that far
                getattr(self, "_" + line["stimulus"])(line, line["now_ns"])
        return self.made

    # -- requests --------------------------------------------------------------------------------------------------

    def _door(self, line: Line, now: int) -> None:
        self.front.check_door(now, line["tenant"])

    def _treat(self, line: Line, now: int) -> None:
        names = ("tenant", "prompt_tokens", "max_tokens", "priority", "batch", "optional")
        self.front.treat(Asked(id=line["request"], **{name: line[name] for name in names}), now)

    def _divert(self, line: Line, now: int) -> None:
        """The front has no part in it."""

    def _submit(self, line: Line, now: int) -> None:
        requests = [
            Request(
                one["request"],
                range(one["prompt_tokens"]),
                one["max_tokens"],
                priority=one["priority"],
                tenant=one["tenant"],
                model=one["model"],
                pool=one["pool"],
                prefix=tuple(one["prefix"]),
                streams=one["streams"],
                slo=Slo(**one["slo"]),
            )
            for one in line["requests"]
        ]
        self.front.submit_all(requests, now)

    def _plan(self, _: Line, now: int) -> None:
        self.front.plan(now)

    def _began(self, line: Line, now: int) -> None:
        self.front.began(line["request"], now)

    def _settle(self, line: Line, now: int) -> None:
        usage, end = Usage(**line["usage"]), State(line["end"])
        self.front.settle(line["request"], usage, now, end=end, failed=line["failed"])

    def _lost(self, line: Line, now: int) -> None:
        self.front.lost(line["request"], now, began=line["began"], usage=Usage(**line["usage"]))

    def _cancel(self, line: Line, now: int) -> None:
        self.front.cancel(line["request"], now)

    _turn_away = _cancel

    # -- workers ---------------------------------------------------------------------------------------------------

    def _add_worker(self, line: Line, now: int) -> None:
        self.front.add_worker(spec_of(line["spec"]), now)

    def _remove_worker(self, line: Line, now: int) -> None:
        self.front.remove_worker(line["worker"], now)

    def _drain_worker(self, line: Line, now: int) -> None:
        self.front.fleet.drain(line["worker"], now, draining=line["draining"])

    def _observe(self, line: Line, now: int) -> None:
        said = {name: Signal(**signal) for name, signal in line["load"].items() if signal is not None}
        self.front.observe(line["worker"], WorkerLoad(**said), now)

    def _health(self, line: Line, now: int) -> None:
        self.front.fleet.health(line["worker"], now, well=line["well"])

    def _serves(self, line: Line, _: int) -> None:
        worker = self.front.fleet.workers[line["worker"]]
        worker.spec = replace(worker.spec, models=frozenset(line["models"]))

    # -- limits ----------------------------------------------------------------------------------------------------

    def _reconfigure(self, line: Line, _: int) -> None:
        admission, limits = admission_of(line["admission"]), limits_of(line["limits"])
        self.front.reconfigure(admission, limits, degradation_of(line["degradation"]))

    def _tenants_changed(self, line: Line, _: int) -> None:
        self._tenants.set(tenant_of(line["default_limits"]), _tenants_of(line["tenants"]))

    def _levels(self, line: Line, now: int) -> None:
        self.front.set_levels({Level[name.upper()]: Mode(mode) for name, mode in line["modes"].items()}, now)

    def _adapt(self, line: Line, now: int) -> None:
        self.front.adapt(now, slo_met_ratio=line["slo_met_ratio"])

    def _allow(self, line: Line, now: int) -> None:
        self.front.admission.ledger.allow(line["tenant"], Amounts(**line["more"]), now)

    def _refill(self, line: Line, now: int) -> None:
        self.front.admission.ledger.set_refill_ratio(line["ratio"], now)

    def _ledger(self, line: Line, _: int) -> None:
        for name in ("refill_ratio", "closed", "unanswered"):
            if name in line:
                setattr(self.front.admission.ledger, name, line[name])

    def _drain(self, _: Line, __: int) -> None:
        self.front.draining = True

    def _closed(self, line: Line, _: int) -> None:
        self.front.draining, self.front.closed = True, line["reason"]


def _tenants_of(said: Line) -> dict[str, TenantLimits]:
    return {name: tenant_of(one) for name, one in said.items()}
