"""`headway check`: the ten questions before a launch, answered from a live server or a configuration file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from headway.cli.key import key_of_environment

if TYPE_CHECKING:
    from headway.doctor.checklist import Known, LoadTest

READY, LACKING, CANNOT_TELL = 0, 3, 4
# Of what it did at the fixed concurrency: a rate that it holds, with room for chance.
HELD = 0.7
USUAL_RATE = 1.0  # where that is not known
EPILOGUE = (
    "Exit status: 0 ten times yes, 3 at least one no, 4 no no, and something that cannot be told; 1 when the server "
    "could not be asked, 2 when it was asked for wrongly."
)

app = App(name="check", help_epilogue=EPILOGUE)

Target = Annotated[str, Parameter(help="A server's URL, or a configuration file of `headway serve`.")]
Bench = Annotated[
    tuple[Path, ...],
    Parameter(negative="", show_default=False, help="A result of `headway bench`; may be repeated."),
]
Run = Annotated[
    bool, Parameter(negative="", show_default=False, help="Run the load tests that are missing, one after the other.")
]
Duration = Annotated[
    float | None,
    Parameter(help="Seconds of each; shorter ones may have too few requests to tell. Else as long as a p95 needs."),
]
Concurrency = Annotated[int, Parameter(help="Of the one at a fixed concurrency.")]
Rate = Annotated[
    float | None,
    Parameter(help="Of the one at a fixed rate, requests per second. Else 0.7 of what the other one reached, or 1."),
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print one JSON object.")]
Html = Annotated[Path | None, Parameter(name="--html", help="File for the answers as a page.")]
ApiKey = Annotated[
    str | None, Parameter(show_default=False, help="Of the server. Else HEADWAY_API_KEY or OPENAI_API_KEY.")
]


@app.default
def check(
    target: Target,
    /,
    *,
    bench: Bench = (),
    run: Run = False,
    duration: Duration = None,
    concurrency: Concurrency = 4,
    rate: Rate = None,
    as_json: AsJson = False,
    html: Html = None,
    api_key: ApiKey = None,
) -> int:
    """Answer the ten questions before a launch: yes, no or cannot tell, each with evidence and what to do."""
    from dataclasses import replace

    from headway.core.errors import ConfigError
    from headway.doctor import check_report
    from headway.doctor.checklist import checklist
    from headway.doctor.inspect import read_test

    path = Path(target).expanduser()
    is_file = path.suffix == ".toml" or path.is_file()
    if run and is_file:
        raise ConfigError("--run wants a running server: give its URL", param="run")
    if duration is not None and not 1 <= duration <= 3600:
        raise ConfigError(f"--duration is {duration:g}, and must be between 1 and 3600 seconds", param="duration")
    if concurrency < 1 or (rate is not None and not rate > 0):
        raise ConfigError("--concurrency must be at least 1 and --rate above 0")
    key = "" if is_file else api_key or key_of_environment(target) or ""
    known = _of_file(path) if is_file else _of_server(target, key)
    tests = [read_test(one) for one in bench]
    if run:
        known = replace(known, refuses_overlong=_refuses_overlong(target, key, known))
        tests = _with_those_missing(tests, target, key, concurrency=concurrency, rate=rate, duration=duration)
    items = checklist(replace(known, tests=tuple(tests)))
    if html is not None:
        try:
            html.write_text(check_report.page(items, known.where), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {html}: {error.strerror or error}", param="html") from error
    if as_json:
        print(json.dumps(check_report.as_json(items, known.where)))
    else:
        print(check_report.text(items, known.where))
    verdicts = {item.verdict for item in items}
    return LACKING if "no" in verdicts else CANNOT_TELL if "cannot tell" in verdicts else READY


def _of_server(url: str, key: str) -> Known:
    from headway.doctor.inspect import inspect
    from headway.wire.asker import Asker, Login

    asker = Asker(url, Login(token=key), advice="Give --api-key, or set HEADWAY_API_KEY.")
    try:
        return inspect(asker)
    finally:
        asker.close()


def _of_file(path: Path) -> Known:
    """What `headway serve --config` would do, with its goal and the defaults of what the file leaves out."""
    from headway.cli.config_file import config_in
    from headway.cli.goals import GOALS
    from headway.cli.layers import KEYS
    from headway.cli.toml_file import read_document
    from headway.doctor.checklist import Known

    document = read_document(path)
    said = config_in(document, list(KEYS.values()))
    workers, tenants = (_tables(document.keys.get(name)) for name in ("worker", "tenant"))
    remote = bool(workers or said.get("worker"))
    gateway = remote or bool(said.get("local-workers"))
    chosen = GOALS[said["goal"]].of("gateway" if gateway else "engine") if "goal" in said else {}
    config: dict[str, Any] = {key.name: key.default for key in KEYS.values() if key.default}
    config.pop("kv-cache-gib")  # its default is nobody's estimate
    config |= {KEYS[field].name: choice.value for field, choice in chosen.items()} | said
    if gateway and not said.get("local-workers"):  # without engines of its own it looks at none of their settings
        for name in ("kv-cache-gib", "max-model-len", "max-num-seqs"):
            config.pop(name, None)
    return Known(
        str(path),
        "headway",
        config=config,
        pools=frozenset(str(one.get("pool", "online")) for one in workers),
        gateway=gateway,
        workers=tuple(str(url) for url in (*said.get("worker", ()), *(one.get("url", "") for one in workers)) if url),
        limited=any(one.get(key) for one in tenants for key in _RATES),
        longest_input=_of_all(tenants, "max-input-tokens"),
        limits_output=_of_all(tenants, "max-output-tokens") is not None,
        max_model_len=config.get("max-model-len"),
        max_num_seqs=config.get("max-num-seqs"),
    )


_RATES = ("max-concurrency", "requests-per-minute", "tokens-per-minute")


def _of_all(tenants: list[dict[str, Any]], key: str) -> int | None:
    """The largest limit, if every tenant has one, of its own or as everybody."""
    from headway.cli.fleet.tables import EVERYBODY

    everybody: dict[str, Any] = next((one for one in tenants if one.get("name") == EVERYBODY), {})
    limits = [one.get(key, everybody.get(key)) for one in tenants]
    known = [limit for limit in limits if isinstance(limit, int) and limit]
    return max(known) if known and len(known) == len(limits) else None


def _tables(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _with_those_missing(
    tests: list[LoadTest], url: str, key: str, *, concurrency: int, rate: float | None, duration: float | None
) -> list[LoadTest]:
    """One of each loop, the closed one first: what it reached says which rate the server holds."""
    made = list(tests)
    if "closed" not in {test.loop for test in made}:
        made.append(_tested(url, ["concurrency", "--concurrency", str(concurrency)], key, duration, _CLOSED_LASTS))
    if "open" not in {test.loop for test in made}:
        reached = next((test.request_rate for test in reversed(made) if test.loop == "closed"), None)
        chosen = rate or (float(f"{HELD * reached:.2g}") if reached else USUAL_RATE)
        made.append(_tested(url, ["rate", "--request-rate", f"{chosen:g}"], key, duration, _open_lasts(chosen)))
    return made


# Nobody knows how fast a server is in a closed loop before it is tried.
_CLOSED_LASTS = "for 1 to 10 minutes, until a p95 can be told"


def _open_lasts(rate: float) -> str:
    from headway.loadtest.bench.profiles import PERCENTILE, length_s

    return f"for {length_s(PERCENTILE, rate):.0f} s, which a p95 needs"


def _tested(url: str, load: list[str], key: str, duration: float | None, lasts: str) -> LoadTest:
    """A load test in a process of its own, as a person would run it. `lasts`: how long, where nobody said."""
    from headway.core.errors import HeadwayError
    from headway.doctor.inspect import read_test

    command = ["bench", load[0], url, *load[1:], *(["--duration", f"{duration:g}"] if duration is not None else [])]
    said = f"running {lasts}" if duration is None else "running"
    print(f"{said}: headway {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {**os.environ, **({"HEADWAY_API_KEY": key} if key else {})}
    with tempfile.TemporaryDirectory(prefix="headway-check-") as folder:
        result = Path(folder) / "run.json"
        done = subprocess.run(
            [sys.executable, "-m", "headway", *command, "--json", str(result), "--quiet"],
            capture_output=True, text=True, env=environment, timeout=(duration or 1800.0) * 10 + 300, check=False,
        )  # fmt: skip
        if not result.is_file():
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise HeadwayError(f"The load test could not be made: {words[-1] if words else done.returncode}")
        return read_test(result)


def _refuses_overlong(url: str, key: str, known: Known) -> bool | None:
    """Whether one token more than the context is refused where a single one is not. None: that cannot be told."""
    from headway.doctor.inspect import first_object
    from headway.wire.asker import Asker, Login, Unreachable

    if known.max_model_len is None:
        return None
    asker = Asker(url, Login(token=key), timeout_s=20.0)

    def status_of(max_tokens: int) -> int:
        body = {"model": model, "prompt": "a", "max_tokens": max_tokens, "stream": True}
        return asker.try_post("/v1/completions", body, most_bytes=0).status  # who does not refuse is not kept at it

    try:
        model = first_object(asker.json_of("/v1/models").get("data")).get("id", "")
        if status_of(1) >= 400:
            return None  # that says nothing about length
        status = status_of(int(known.max_model_len) + 1)
    except Unreachable:
        return None
    finally:
        asker.close()
    return True if status in (400, 413, 422) else False if status < 400 else None
