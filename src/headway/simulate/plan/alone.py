"""What no number of replicas can help: a promise that one request breaks which has a whole replica to itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headway.core.pace import chunk_attention
from headway.executors.simulated import StepCost
from headway.simulate.plan.candidate import Candidate, Limits
from headway.simulate.plan.promise import Promise, duration
from headway.simulate.plan.traffic import Traffic
from headway.simulate.plan.trial import Trial, settings_of, tried
from headway.workload.item import Arrival, Item


def broken_alone(
    candidate: Candidate, traffic: Traffic, promise: Promise, *, max_model_len: int, budget: int
) -> list[str]:
    """Each promise that breaks alone, in one sentence with its numbers. Empty when it is a matter of load."""
    lengths, q, tail = traffic.lengths, promise.percentile, promise.tail
    prompt = lengths.prompt_at(q)
    alone = _Alone(candidate, promise, Limits(1, budget), max_model_len)
    said: list[str] = []
    # Prompts that begin alike are partly computed before: how long one takes is a matter of what came before it.
    if promise.ttft_s is not None and not lengths.shared:
        what = f"one prefill of {tail} length ({prompt:,} tokens) takes {{}}"
        said += alone.over("ttft", promise.ttft_s, what, Item(prompt, 1))
    if promise.itl_s is not None and int(lengths.output.max()) > 1:
        typical = Item(max(1, round(float(np.median(lengths.prompt)))), max(2, round(float(np.median(lengths.output)))))
        said += alone.over("itl", promise.itl_s, "one decode step at batch 1 takes {}", typical)
    if promise.e2e_s is not None and not lengths.shared:
        place = _tail_request(candidate.costs.usual, traffic, q)
        item = Item(int(lengths.prompt[place]), int(lengths.output[place]))
        what = f"one request at {tail} ({item.input_tokens:,} tokens in, {item.output_tokens:,} out) takes {{}}"
        said += alone.over("e2e", promise.e2e_s, what, item)
    return said


class _Alone:
    def __init__(self, candidate: Candidate, promise: Promise, limits: Limits, max_model_len: int) -> None:
        self._candidate = candidate
        self._promise = promise
        self._limits = limits
        self._max_model_len = max_model_len

    def over(self, name: str, limit_s: float, what: str, item: Item) -> Iterator[str]:
        usual_s = self._takes(name, item, self._candidate.costs.usual)
        if usual_s <= limit_s:
            return
        fast_s = self._takes(name, item, self._candidate.costs.fast)
        alone = f"{duration(usual_s)} alone" if name != "itl" else duration(usual_s)
        at_best = f" ({duration(fast_s)} at best)" if fast_s < 0.99 * usual_s else ""
        yield f"{what.format(alone)}{at_best}, the promise is {duration(limit_s)}"

    def _takes(self, name: str, item: Item, cost: StepCost) -> float:
        worker = self._candidate.worker(self._limits, self._max_model_len, cost)
        trial: Trial = tried(
            [Arrival(0, item)], settings_of(worker, 1), self._promise, request_ns=self._candidate.request_ns
        )
        return trial.at(name, self._promise.percentile)


def _tail_request(cost: StepCost, traffic: Traffic, percentile: float) -> int:
    """Which of the typical requests is the one at this percentile, by how long each takes alone."""
    lengths = traffic.lengths
    took_ns = [
        cost.step_ns
        + cost.prefill_token_ns * prompt
        + cost.prefill_attention_ns * chunk_attention(0, prompt)
        + cost.of_decode(1, prompt, max(0, output - 1))
        for prompt, output in zip(lengths.prompt.tolist(), lengths.output.tolist(), strict=True)
    ]
    return int(np.argsort(took_ns)[int(percentile / 100 * (len(took_ns) - 1))])
