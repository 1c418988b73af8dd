"""A diagnosis in words, and as JSON. One line when all is well, and what there is to note of how it was seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from headway.doctor.diagnose import Diagnosis
from headway.doctor.finding import CHAPTERS, Finding
from headway.doctor.rules.case import tail
from headway.doctor.split import PARTS

SCHEMA_VERSION = 1
NAMES = {
    "network_s": "network",
    "preprocess_s": "pre-processing",
    "queue_s": "queue",
    "own_s": "own prefill",
    "interference_s": "interference",
}


def text(diagnosis: Diagnosis, where: str, *, verbose: bool = False) -> str:
    """All there is to say, ending without a newline."""
    if diagnosis.healthy and not verbose:
        return "\n".join((f"{where}: healthy. {_in_short(diagnosis)}", *_notes(diagnosis)))
    lines = list(_lines(diagnosis, where))
    return "\n".join(lines)


def _lines(diagnosis: Diagnosis, where: str) -> Iterator[str]:
    if diagnosis.blind:
        yield f"{where}: cannot tell: {diagnosis.blind}."
    elif diagnosis.healthy:
        yield f"{where}: healthy. {_in_short(diagnosis)}"
    for number, finding in enumerate(diagnosis.findings, 1):
        yield from _finding(number, finding)
        yield ""
    if (split := split_words(diagnosis)) and not diagnosis.blind:
        yield f"Time to first token: {split}"
    if not diagnosis.facts.promise.said and diagnosis.findings:
        promise = diagnosis.facts.promise
        yield (
            f"Judged by TTFT {promise.ttft_s:g} s and {promise.itl_s:g} s between tokens; promise others with "
            "--slo-ttft and --slo-itl."
        )
    for line in diagnosis.facts.missing:
        yield f"Not told: {line}"
    yield from _notes(diagnosis)


def _notes(diagnosis: Diagnosis) -> Iterator[str]:
    for note in diagnosis.facts.notes:
        yield f"Note: {note}."


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield f"{number}. {finding.title}  [{finding.cause}, confidence {finding.confidence}]"
    yield f"   asks: {CHAPTERS[finding.chapter]}"
    for line in finding.evidence:
        yield f"   seen: {line}"
    for change in finding.changes:
        yield f"   do:   {change.words}"
    for line in finding.effect:
        yield f"   then: {line}"


def split_words(diagnosis: Diagnosis) -> str:
    """`1.34 s = queue 0.84 + …`, of what is known; empty where nothing is."""
    split = diagnosis.split
    known = {name: value for name in PARTS if (value := getattr(split, name)) is not None}
    if split.own_s is None and split.prefill_s is not None:
        known["prefill_s"] = split.prefill_s
    if set(known) <= {"network_s"}:  # without the rest it is no time to a first token
        return ""
    parts = " + ".join(f"{NAMES.get(name, 'prefill')} {value:.2f}" for name, value in known.items())
    unknown = [
        NAMES[name]
        for name in PARTS
        if name not in known and not (name in ("own_s", "interference_s") and "prefill_s" in known)
    ]
    rest = f" (not told: {', '.join(unknown)})" if unknown else ""
    return f"{split.total_s:.2f} s on average, of which {parts} s{rest}"


def _in_short(diagnosis: Diagnosis) -> str:
    facts = diagnosis.facts
    parts = []
    found = tail(facts.ttft)
    if found is not None:
        parts.append(f"TTFT {found[0]} {found[1]:.2f} s")
    if (itl := facts.itl) is not None:
        parts.append(f"ITL p99 {itl.quantile(0.99) * 1e3:.0f} ms")
    for name, words in (("running", "running"), ("waiting", "waiting")):
        mean = facts.service.mean(name)
        if mean is not None:
            parts.append(f"{mean:.1f} {words}")
    over = f" over {facts.service.window_s:.0f} s" if facts.service.window_s else ""
    return ", ".join(parts) + over + "." if parts else ""


def as_json(diagnosis: Diagnosis, where: str) -> dict[str, Any]:
    """The same for programs. Times are seconds; what is unknown is null."""
    split, facts = diagnosis.split, diagnosis.facts
    return {
        "schema_version": SCHEMA_VERSION,
        "target": where,
        "source": facts.source,
        "window_s": facts.service.window_s,
        "requests": facts.requests,
        "verdict": "cannot tell" if diagnosis.blind else "healthy" if diagnosis.healthy else "findings",
        "blind": diagnosis.blind,
        "ttft": {"mean_s": split.total_s, **{name: getattr(split, name) for name in (*PARTS, "prefill_s")}},
        "promise": asdict(facts.promise),
        "findings": [
            {
                "cause": finding.cause,
                "title": finding.title,
                "chapter": finding.chapter,
                "confidence": finding.confidence,
                "evidence": list(finding.evidence),
                "changes": [asdict(change) for change in finding.changes],
                "effect": list(finding.effect),
                "cost_s": finding.cost_s,
            }
            for finding in diagnosis.findings
        ],
        "missing": list(facts.missing),
        "notes": list(facts.notes),
    }
