"""`headway doctor`: why a server is slow, from its metrics, a Prometheus, a step log or a load test."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headway.cli.key import key_of_environment

if TYPE_CHECKING:
    from headway.doctor.diagnose import Diagnosis
    from headway.doctor.facts import Facts
    from headway.wire.asker import Asker

HEALTHY, FOUND, CANNOT_TELL = 0, 3, 4
GONE = ()
EPILOGUE = (
    "Exit status: 0 healthy, 3 something was found, 4 cannot tell (no metrics, or too little traffic); 1 when "
    "the server could not be asked, 2 when it was asked for wrongly, 130 when it was interrupted."
)

app = App(name="doctor", help_epilogue=EPILOGUE)

Url = Annotated[
    str | None, Parameter(help="The server, such as http://localhost:8000: headway, vLLM, SGLang, llama.cpp or TGI.")
]
Prometheus = Annotated[str | None, Parameter(help="A Prometheus that scrapes the server: its history is judged.")]
Selector = Annotated[str, Parameter(help='Which of what it scrapes, as label matchers: job="vllm".')]
StepLog = Annotated[Path | None, Parameter(help="What `headway serve --step-log` wrote: every step and request.")]
Bench = Annotated[Path | None, Parameter(help="run.json of `headway bench`, or its folder.")]
Fit = Annotated[Path | None, Parameter(help="What `headway fit` wrote: changes are then simulated.")]
Window = Annotated[float, Parameter(help="Seconds for which a live server is watched.")]
Interval = Annotated[float, Parameter(help="Seconds between looks at it.")]
Since = Annotated[
    str | None, Parameter(help="How far back a Prometheus or a step log is read: 90s, 15m, 2h. By default 15m, or all.")
]
Watch = Annotated[bool, Parameter(negative="", show_default=False, help="Go on, and tell when the findings change.")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print one JSON object.")]
SloTtft = Annotated[
    float | None, Parameter(help="Seconds to a first token that are promised. Else the server's, or 1.")
]
SloItl = Annotated[
    float | None, Parameter(help="Seconds between tokens that are promised, for the p99. Else the server's, or 0.25.")
]
SloE2e = Annotated[float | None, Parameter(help="Seconds to the end of an answer that are accepted. Else 30.")]
ApiKey = Annotated[
    str | None, Parameter(show_default=False, help="Of the server. Else HEADWAY_API_KEY or OPENAI_API_KEY.")
]
User = Annotated[str | None, Parameter(help="Of the Prometheus; its password is in HEADWAY_PROMETHEUS_PASSWORD.")]
Simulate = Annotated[bool, Parameter(help="Simulate what each change would do, where steps are known.")]


@app.default
def doctor(
    url: Url = None,
    /,
    *,
    prometheus: Prometheus = None,
    selector: Selector = "",
    prometheus_user: User = None,
    step_log: StepLog = None,
    bench: Bench = None,
    fit: Fit = None,
    window: Window = 30.0,
    interval: Interval = 1.0,
    since: Since = None,
    watch: Watch = False,
    as_json: AsJson = False,
    slo_ttft: SloTtft = None,
    slo_itl: SloItl = None,
    slo_e2e: SloE2e = None,
    api_key: ApiKey = None,
    simulate: Simulate = True,
) -> int:
    """Say why a server is slow: which part of the time to a first token, whose fault, and what to change.

    A Prometheus that wants a bearer token finds it in HEADWAY_PROMETHEUS_TOKEN.
    """
    from headway.core.errors import ConfigError
    from headway.doctor.diagnose import diagnose
    from headway.doctor.effect import with_effects
    from headway.doctor.prometheus import QueryFailed
    from headway.wire.asker import Unreachable

    _check((url, prometheus, step_log, bench), window, interval, watch=watch, live=bool(url or prometheus))
    if since is not None and prometheus is None and step_log is None:
        raise ConfigError(
            "--since is how far back a Prometheus (--prometheus) or a step log (--step-log) is read; a live server has "
            "no history: --window says for how long it is watched from now on",
            param="since",
        )
    where = next(str(one) for one in (url, prometheus, step_log, bench) if one is not None)
    key = api_key or (key_of_environment(url) if url else None) or ""
    before: tuple[str, ...] | None = None  # `GONE` while it cannot be asked
    while True:
        try:
            facts = _gather(
                url, prometheus, step_log, bench,
                selector=selector, user=prometheus_user, window=window, interval=interval, since=since, key=key,
                said=before is not None,
            )  # fmt: skip
        except (Unreachable, QueryFailed) as error:
            if before is None:
                raise
            if before != GONE:
                print(f"{_stamp()}{error.message} It is asked again.", file=sys.stderr, flush=True)
            before = GONE
            time.sleep(interval)
            continue
        facts = _promised(_fitted(facts, fit), slo_ttft, slo_itl, slo_e2e)
        diagnosis = diagnose(facts)
        if simulate and diagnosis.findings:
            from dataclasses import replace

            diagnosis = replace(diagnosis, findings=with_effects(diagnosis.findings, diagnosis.facts))
        found = (*(finding.cause for finding in diagnosis.findings), diagnosis.blind)
        if not watch or found != before:
            _tell(diagnosis, where, as_json=as_json, stamped=watch)
        if not watch:
            return FOUND if diagnosis.findings else CANNOT_TELL if diagnosis.blind else HEALTHY
        before = found
        if url is None:
            time.sleep(window)


def _check(sources: Sequence[object], window: float, interval: float, *, watch: bool, live: bool) -> None:
    from headway.core.errors import ConfigError

    if not any(sources):
        raise ConfigError("nothing to look at: give the server's URL, --prometheus, --step-log or --bench")
    if not 2 <= window <= 86_400:
        raise ConfigError(f"--window is {window:g}, and must be between 2 and 86400 seconds", param="window")
    if not 0.1 <= interval <= window / 2:
        raise ConfigError(
            f"--interval is {interval:g}, and must be between 0.1 and half of --window ({window / 2:g})",
            param="interval",
        )
    if watch and not live:
        raise ConfigError("--watch wants a server or a Prometheus: files do not change", param="watch")


def _gather(
    url: str | None, prometheus: str | None, step_log: Path | None, bench: Path | None, *,
    selector: str, user: str | None, window: float, interval: float, since: str | None, key: str,
    said: bool,
) -> Facts:  # fmt: skip
    """From every source that was named; the one that knows most speaks first."""
    from headway.doctor.bench import read_result
    from headway.doctor.merge import merged
    from headway.doctor.prometheus import read_prometheus, seconds
    from headway.doctor.step_log import read_steps

    since_s = seconds(since) if since is not None else None
    found = []
    if step_log is not None:
        found.append(read_steps(step_log, since_s))
    if prometheus is not None:
        found.append(read_prometheus(_prometheus(prometheus, user), since_s or 900.0, selector))
    if url is not None:
        found.append(_watched(url, window, interval, key, said=said))
    if bench is not None:
        found.append(read_result(bench))
    return merged(found)


def _prometheus(url: str, user: str | None) -> Asker:
    from headway.wire.asker import Asker, Login

    token = os.environ.get("HEADWAY_PROMETHEUS_TOKEN", "")
    password = os.environ.get("HEADWAY_PROMETHEUS_PASSWORD", "")
    advice = (
        "Give --prometheus-user with the password in HEADWAY_PROMETHEUS_PASSWORD, or a bearer token in "
        "HEADWAY_PROMETHEUS_TOKEN."
    )
    login = Login(token="" if user else token, user=user or "", password=password)
    return Asker(url, login, timeout_s=60.0, what="Prometheus", advice=advice)


def _watched(url: str, window: float, interval: float, key: str, *, said: bool) -> Facts:
    """`said`: that it is watched is known."""
    from rich.console import Console

    from headway.doctor.live import observe
    from headway.wire.asker import Asker, Login

    asker = Asker(url, Login(token=key), advice="Give --api-key, or set HEADWAY_API_KEY.")
    console = Console(stderr=True)
    try:
        if not console.is_terminal:
            if not said:
                print(f"watching {asker.url} for {window:g} s", file=sys.stderr, flush=True)
            return observe(asker, window, interval)
        with console.status(f"watching {asker.url} for {window:g} s") as status:
            return observe(
                asker, window, interval,
                told=lambda passed: status.update(f"watching {asker.url}: {passed:.0f} of {window:g} s"),
            )  # fmt: skip
    finally:
        asker.close()


def _fitted(facts: Facts, fit: Path | None) -> Facts:
    """With the steps and limits that a fit knows."""
    if fit is None:
        return facts
    from dataclasses import replace

    from headway.simulate.fit import load_fit

    loaded = load_fit(fit)
    server, known = loaded.server, facts.settings
    tokens = server.num_blocks * server.block_size if server.num_blocks else None
    return replace(
        facts,
        step_time=loaded.cost.step_time,
        prefill_step_ns=loaded.cost.prefill_step_ns,
        settings=replace(
            known,
            max_num_seqs=known.max_num_seqs or server.max_num_seqs,
            max_num_batched_tokens=known.max_num_batched_tokens or server.max_num_batched_tokens,
            kv_tokens=known.kv_tokens or tokens,
            block_tokens=known.block_tokens or server.block_size,
            policy=known.policy or server.policy,
        ),
    )


def _promised(facts: Facts, ttft: float | None, itl: float | None, e2e: float | None) -> Facts:
    from dataclasses import replace

    from headway.core.errors import ConfigError
    from headway.doctor.facts import Promise

    for name, value in (("ttft", ttft), ("itl", itl), ("e2e", e2e)):
        if value is not None and not value > 0:
            raise ConfigError(f"--slo-{name} is {value:g}, and must be above 0 seconds", param=f"slo_{name}")
    return replace(facts, promise=Promise.of(ttft, itl, e2e, facts.promise))


def _tell(diagnosis: Diagnosis, where: str, *, as_json: bool, stamped: bool) -> None:
    from headway.doctor.report import as_json as to_json
    from headway.doctor.report import text

    stamp = _stamp() if stamped else ""
    if as_json:
        print(json.dumps(to_json(diagnosis, where), allow_nan=False))
    else:
        print(stamp + text(diagnosis, where))
    sys.stdout.flush()


def _stamp() -> str:
    return time.strftime("%H:%M:%S ")
