"""`Plan`: what `plan` gives back, and `headway plan --json` writes. `SCHEMA_VERSION` changes with a field's meaning.

Times are in s, rates per s, `price` in whatever currency the prices were in. Unknown is `null`, never 0.
"""

from __future__ import annotations

from html import escape
from typing import Literal

import msgspec

from headway.simulate.plan.curve import CurvePoint, Knee
from headway.simulate.plan.promise import Promise, duration

SCHEMA_VERSION = 1

Status = Literal["holds", "impossible", "too-large", "outside"]
WORDS: dict[Status, str] = {
    "holds": "holds",
    "impossible": "impossible",
    "too-large": "too large",
    "outside": "outside what was measured",
}


class Estimate(msgspec.Struct, kw_only=True, frozen=True):
    """A figure, between how fast and how slow steps may be and what chance does. `high` None: it has no end."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Cost(msgspec.Struct, kw_only=True, frozen=True):
    """Of all replicas, at the mean rate of the traffic."""

    per_hour: float
    per_million_output_tokens: float
    per_million_tokens: float  # prompts and outputs together


class Option(msgspec.Struct, kw_only=True, frozen=True):
    """One candidate. Where it does not hold, `why` says so, and there are no figures.

    `latencies`: "ttft", "itl", "e2e" at the promise's percentile, and "ttft_p50", "itl_p50", "e2e_p50".
    """

    name: str
    devices: int
    price_per_hour: float
    status: Status
    why: list[str] = []
    replicas: Estimate | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_tokens: int | None = None  # of one replica
    latencies: dict[str, Estimate] = {}
    kv_used_ratio: Estimate | None = None  # at the peak
    running: float | None = None  # sequences of one replica, at the peak
    busy_ratio: float | None = None  # of the time, a replica computes
    cost: Cost | None = None
    headroom_ratio: float | None = None  # so much more traffic would still keep the promise
    bound_by: list[str] = []
    advice: list[str] = []
    curve: list[CurvePoint] = []
    knee: Knee | None = None
    notes: list[str] = []

    @property
    def count(self) -> int:
        """Of replicas."""
        return int(self.replicas.value) if self.replicas is not None and self.replicas.value is not None else 0

    @property
    def flags(self) -> str:
        """As vLLM and `headway serve` take them."""
        return (
            f"--max-num-seqs {self.max_num_seqs} --max-num-batched-tokens {self.max_num_batched_tokens} "
            f"--max-model-len {self.max_model_len}"
        )


class Asked(msgspec.Struct, kw_only=True, frozen=True):
    """What was planned for."""

    traffic: str
    request_rate: float
    peak_request_rate: float  # of the busiest minute
    prompt_tokens_mean: float
    output_tokens_mean: float
    longest_request_tokens: int
    ttft_s: float | None
    itl_s: float | None
    e2e_s: float | None
    percentile: float
    seed: int

    @property
    def promise(self) -> Promise:
        return Promise(ttft_s=self.ttft_s, itl_s=self.itl_s, e2e_s=self.e2e_s, percentile=self.percentile)


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    """`options` in order of cost, those that do not hold at the end. `chosen`: the name of the cheapest that holds."""

    asked: Asked
    options: list[Option]
    chosen: str | None
    schema_version: int = SCHEMA_VERSION

    @property
    def best(self) -> Option | None:
        """The cheapest that holds."""
        return next((option for option in self.options if option.name == self.chosen), None)

    def _repr_html_(self) -> str:
        """For notebooks: one row for each candidate."""
        head = ("", "replicas", "settings", *(f"{name.upper()} {self.asked.promise.tail}" for name in ("ttft", "itl")))
        head += ("KV use", "headroom", "per hour", "per million output tokens")
        rows = "".join(f"<tr>{_cells(option)}</tr>" for option in self.options)
        columns = "".join(f"<th>{escape(name)}</th>" for name in head)
        asked = f"<p>{escape(self.asked.traffic)}; promised: {escape(str(self.asked.promise))}</p>"
        return f"{asked}<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(option: Option) -> str:
    if option.status != "holds" or option.cost is None:
        why = "; ".join([WORDS[option.status], *option.why])
        return f"<th>{escape(option.name)}</th><td colspan=8>{escape(why)}</td>"
    texts = [
        count_text(option),
        option.flags,
        *(told(option.latencies[name]) for name in ("ttft", "itl")),
        f"{(option.kv_used_ratio.value if option.kv_used_ratio else 0) or 0:.0%}",
        f"{option.headroom_ratio or 0:.0%}",
        f"{option.cost.per_hour:,.2f}",
        f"{option.cost.per_million_output_tokens:,.3f}",
    ]
    return f"<th>{escape(option.name)}</th>" + "".join(f"<td>{escape(text)}</td>" for text in texts)


def count_text(option: Option) -> str:
    """Replicas, and between which numbers they are as fast and as slow as steps may be."""
    found = option.replicas
    if found is None or found.value is None:
        return ""
    if found.low == found.high == found.value:
        return f"{found.value:.0f}"
    high = f"{found.high:.0f}" if found.high is not None else "no number is enough"
    return f"{found.value:.0f} ({found.low or 0:.0f} to {high})"


def told(found: Estimate) -> str:
    """A latency and its interval."""
    if found.value is None:
        return "no end"
    high = duration(found.high) if found.high is not None else "no end"
    return f"{duration(found.value)} ({duration(found.low or 0.0)} to {high})"


def plan_bytes(plan: Plan) -> bytes:
    """The JSON file's content; the version stands first."""
    fields = msgspec.structs.asdict(plan)
    ordered = {"schema_version": fields.pop("schema_version"), "kind": "plan", **fields}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n"
