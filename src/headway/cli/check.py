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
Duration = Annotated[float, Parameter(help="Seconds of each.")]
Concurrency = Annotated[int, Parameter(help="Of the one at a fixed concurrency.")]
Rate = Annotated[float, Parameter(help="Of the one at a fixed rate, requests per second.")]
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
    duration: Duration = 20.0,
    concurrency: Concurrency = 4,
    rate: Rate = 1.0,
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
    if not 1 <= duration <= 3600:
        raise ConfigError(f"--duration is {duration:g}, and must be between 1 and 3600 seconds", param="duration")
    if concurrency < 1 or not rate > 0:
        raise ConfigError("--concurrency must be at least 1 and --rate above 0")
    key = "" if is_file else api_key or key_of_environment(target) or ""
    known = _of_file(path) if is_file else _of_server(target, key)
    tests = [read_test(one) for one in bench]
    if run:
        known = replace(known, refuses_overlong=_refuses_overlong(target, key, known))
        loops = {test.loop for test in tests}
        if "closed" not in loops:
            tests.append(_tested(target, "concurrency", ["--concurrency", str(concurrency)], duration, key))
        if "open" not in loops:
            tests.append(_tested(target, "rate", ["--request-rate", f"{rate:g}"], duration, key))
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
    """What `headway serve --config` would do, with the defaults of what the file leaves out."""
    from headway.cli.config import MODEL_KEY, SERVE_KEYS
    from headway.cli.config_file import config_in
    from headway.cli.toml_file import read_document
    from headway.doctor.checklist import Known

    document = read_document(path)
    said = config_in(document, (MODEL_KEY, *SERVE_KEYS))
    defaults = {key.name: key.default for key in SERVE_KEYS}
    config: dict[str, Any] = {**{name: value for name, value in defaults.items() if value}, **said}
    if "kv-cache-gib" not in said:
        config.pop("kv-cache-gib", None)  # its default is nobody's estimate
    workers, tenants = (_tables(document.keys.get(name)) for name in ("worker", "tenant"))
    return Known(
        str(path),
        "headway",
        config=config,
        pools=frozenset(str(one.get("pool", "online")) for one in workers),
        gateway=bool(workers or said.get("worker") or said.get("local-workers")),
        tenants=len(tenants),
        limits_output=bool(tenants) and all("max-output-tokens" in one for one in tenants),
        max_model_len=said.get("max-model-len"),
        max_num_seqs=config.get("max-num-seqs"),
    )


def _tables(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _tested(url: str, profile: str, flags: list[str], duration: float, key: str) -> LoadTest:
    """A load test in a process of its own, as a person would run it."""
    from headway.core.errors import HeadwayError
    from headway.doctor.inspect import read_test

    print(f"running: headway bench {profile} {' '.join(flags)} --duration {duration:g}", file=sys.stderr, flush=True)
    environment = {**os.environ, **({"HEADWAY_API_KEY": key} if key else {})}
    with tempfile.TemporaryDirectory(prefix="headway-check-") as folder:
        result = Path(folder) / "run.json"
        done = subprocess.run(
            [sys.executable, "-m", "headway", "bench", profile, url, *flags, "--duration", f"{duration:g}",
             "--json", str(result), "--quiet"],
            capture_output=True, text=True, env=environment, timeout=duration * 10 + 300, check=False,
        )  # fmt: skip
        if not result.is_file():
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise HeadwayError(f"The load test could not be made: {said[-1] if said else done.returncode}")
        return read_test(result)


def _refuses_overlong(url: str, key: str, known: Known) -> bool | None:
    """Ask for one token more than the context; whoever refuses it does no work for it."""
    from headway.wire.asker import Asker, Login, Unreachable

    if known.max_model_len is None:
        return None
    asker = Asker(url, Login(token=key), timeout_s=20.0)
    card = asker.try_get("/v1/models").json
    model = card["data"][0]["id"] if isinstance(card, dict) and card.get("data") else ""
    body = {"model": model, "prompt": "a", "max_tokens": int(known.max_model_len) + 1, "stream": True}
    try:
        status = asker.try_post(
            "/v1/completions", body, most_bytes=0
        ).status  # who does not refuse it is not kept at it
    except Unreachable:
        return None
    finally:
        asker.close()
    return True if status in (400, 413, 422) else False if status < 400 else None
