"""What the first live test says of the settings that were there, in the words that an operator would use."""

from __future__ import annotations

import numpy as np

from headway.loadtest.result import Run, Slo
from headway.simulate.advice import Facts, Latency, advise
from headway.simulate.fit import StepFit
from headway.simulate.slots import Steps
from headway.tune.settings import Settings
from headway.tune.workload import Workload

TAIL = "95"


def advice_of(settings: Settings, run: Run, fit: StepFit, slo: Slo, load: Workload) -> list[str]:
    """Sentences with their numbers; empty where nothing asks for a change."""
    window = run.summary.window_s
    running = [value for _, value in run.signals.within("running", window)]
    waiting = [value for _, value in run.signals.within("waiting", window)]
    preemptions = run.signals.preemptions(window)
    prompts, outputs = np.array(load.lengths, np.float64).T
    facts = Facts(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        running=float(np.percentile(running, 95)) if running else None,
        waiting=float(np.mean(waiting)) if waiting else None,
        kv_used_ratio=run.signals.kv_used_ratio(window),
        preemptions=round(preemptions) if preemptions is not None else None,
        requests=run.summary.overall.requests,
        ttft=_latency(run, "ttft", slo.ttft_s),
        itl=_latency(run, "itl", slo.itl_s),
        e2e=_latency(run, "e2e", slo.e2e_s),
        steps=Steps(
            fit.cost.step_time, float(np.mean(prompts + outputs / 2)), float(prompts.max()), fit.cost.prefill_step_ns
        ),
    )
    return [str(finding) for finding in advise(facts)]


def _latency(run: Run, name: str, promise_s: float | None) -> Latency | None:
    found = run.summary.overall.distributions.get(name)
    tail = found.percentiles.get(TAIL) if found is not None else None
    value = tail.known if tail is not None else None
    return Latency(value, promise_s) if value is not None else None
