"""`diagnose`: all rules over the facts, and the first cause before its symptoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.doctor.facts import Facts
from headway.doctor.finding import Change, Finding, in_effect
from headway.doctor.rules import RULES
from headway.doctor.rules.case import Case, study
from headway.doctor.split import Split
from headway.metrics.server_flags import in_words_of

# Requests below which health is not told from a percentile: one beyond the p95. What is wrong shows in fewer, though
# not in a few: the first ones of a server are slow.
LEAST_REQUESTS = 20
LEAST_TO_BLAME = 5
LEAST_SAMPLES = 10  # of gauges: of fewer, what happens in between is not seen
# What is known without a request.
_BY_ITSELF = ("network-delay",)


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """`findings`, the first cause first. `blind`: nothing can be said, and why; empty when something can."""

    facts: Facts
    split: Split
    findings: tuple[Finding, ...]
    blind: str = ""

    @property
    def healthy(self) -> bool:
        return not self.findings and not self.blind


def diagnose(facts: Facts) -> Diagnosis:
    """What is wrong, if anything."""
    case = study(facts)
    found = _believed(case, _first_causes([finding for rule in RULES if (finding := rule(case)) is not None]))
    found = [replace(one, changes=_advised(one.changes, facts)) for one in found]
    if found and facts.unseen:
        facts = facts.with_notes(facts.unseen)
    return Diagnosis(facts, case.split, tuple(found), "" if found else _blind(case))


def _advised(changes: Sequence[Change], facts: Facts) -> tuple[Change, ...]:
    """Those that are not in effect already, in the words of the server; what nobody can set there is left out."""
    said = [(one, in_words_of(facts.speaks, one.words)) for one in changes if not in_effect(one, facts.settings)]
    return tuple(replace(one, words=words) for one, words in said if words is not None)


def _believed(case: Case, found: list[Finding]) -> list[Finding]:
    """As sure as so many samples and requests allow. Those that wait tell something before one of them is served."""
    if 2 < len(case.service.times_s) < LEAST_SAMPLES:
        found = [_doubted(finding) for finding in found]
    requests = case.facts.requests
    if requests is None or requests >= LEAST_REQUESTS or (case.service.mean("waiting") or 0.0) >= 1:
        return found
    if requests < LEAST_TO_BLAME:
        stuck = ("engine-stalls",) if not requests else ()  # those who run have no first token yet
        return [finding for finding in found if finding.cause in (*_BY_ITSELF, *stuck)]
    return [_doubted(finding) for finding in found]


def _doubted(finding: Finding) -> Finding:
    return finding if finding.cause in _BY_ITSELF else replace(finding, confidence="low")


def _blind(case: Case) -> str:
    facts, service = case.facts, case.service
    if not (service.gauges or service.totals or service.spreads or facts.client.ttft_s):
        return "the server tells nothing of its load"
    if facts.unseen:
        return facts.unseen
    if facts.idle:
        return f"nothing was asked of it {case.window}"
    if case.ttft is None and case.waited is None:
        return "neither TTFT nor a queue is told"
    if case.ttft is None and case.itl is None and not case.late:
        return "hardly anybody waits, but neither TTFT nor ITL is told: whether requests are slow cannot be seen"
    requests = facts.requests
    if requests is not None and requests < LEAST_REQUESTS and not (service.mean("waiting") or 0.0) >= 1:
        return f"only {requests:.0f} requests {case.window}: too few to judge"
    return _unexplained(case)


def _unexplained(case: Case) -> str:
    """What is worse than accepted, and no rule could say why: it is no health."""
    if not case.missed:
        return ""
    ask = f"; {case.ask_workers}" if case.facts.is_gateway else ""
    return f"{'; '.join(case.missed)}, which is later than promised, and what is told does not say why{ask}"


def _first_causes(found: list[Finding]) -> list[Finding]:
    """One finding a cause; those that another explains after it; else by what they cost."""
    by_cause: dict[str, Finding] = {}
    for finding in found:
        other = by_cause.get(finding.cause)
        if other is None or finding.cost_s > other.cost_s:
            by_cause[finding.cause] = finding
    explained = {symptom for finding in by_cause.values() for symptom in finding.explains}
    # Two that explain each other: the costlier is the cause.
    for finding in by_cause.values():
        mutual = [
            by_cause[name] for name in finding.explains if name in by_cause and finding.cause in by_cause[name].explains
        ]
        if finding.cause in explained and mutual and all(finding.cost_s >= other.cost_s for other in mutual):
            others = {s for f in by_cause.values() if f not in mutual and f is not finding for s in f.explains}
            if finding.cause not in others:
                explained.discard(finding.cause)
    return sorted(by_cause.values(), key=lambda finding: (finding.cause in explained, -finding.cost_s))
