"""The command line: the only place where parts are assembled. One file per command.

Commands are named by import path, so `headway --help` loads none of them.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from headway.cli.complaints import complaint
from headway.core.errors import ConfigError, HeadwayError
from headway.loadtest.errors import InvalidPlan, LoadTestError
from headway.workload.errors import WorkloadError

USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130
_OUTPUTS = frozenset({"--json", "--csv", "--html"})


def version() -> str:
    return importlib.metadata.version("headway")


app = App(
    name="headway",
    help="LLM serving: who runs, how many tokens each step carries, who waits, who is turned away.",
    version=version,
    help_format="plaintext",
    result_action="return_value",
)
app.command("headway.cli.serve:app", name="serve", help="Serve a model behind OpenAI's API.", sort_key=1)
app.command("headway.cli.generate:app", name="generate", help="Complete one prompt on the terminal.", sort_key=2)
app.command(
    "headway.cli.fetch:app", name="fetch", help="Fetch and check a model, so that serving needs no network.", sort_key=3
)
app.command(
    "headway.cli.bench:app", name="bench", help="Measure a server that speaks OpenAI's API under load.", sort_key=4
)
app.command("headway.cli.batch:app", name="batch", help="Answer every line of a file, once.", sort_key=4)
app.command("headway.cli.keys:app", name="keys", help="Create, list and revoke API keys.", sort_key=6)
app.command("headway.cli.kv:app", name="kv", help="Size a KV cache, and what fits into a device.", sort_key=5)
app.command("headway.cli.fit:app", name="fit", help="Fit how long steps take, from logs or from a device.", sort_key=7)
app.command("headway.cli.simulate:app", name="simulate", help="Predict what a load meets.", sort_key=7)
app.command("headway.cli.plan:app", name="plan", help="Say what a promise takes: replicas and money.", sort_key=8)
app.command(
    "headway.cli.tune:app", name="tune", help="Find a server's settings inside a promise, and prove them.", sort_key=8
)
app.command("headway.cli.explain:app", name="explain", help="Tell what a metric, lane, code or flag means.", sort_key=9)
app.command("headway.cli.top:app", name="top", help="Watch a server in the terminal, from its metrics.", sort_key=9)
app.command("headway.cli.doctor:app", name="doctor", help="Say why a server is slow, and what to change.", sort_key=9)
app.command("headway.cli.check:app", name="check", help="Answer the ten questions before a launch.", sort_key=9)


@app.command(name="version", show=False)
def _version() -> None:
    print(version())


@app.command(name="help", show=False)
def _help(*command: str) -> None:
    app.help_print(list(command))


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 when the work failed, 2 when it was asked for wrongly."""
    sys.exit(status(sys.argv[1:] if arguments is None else arguments))


def _with_dashes(arguments: Sequence[str]) -> list[str]:
    """`--json -` as `--json=-`: the parser takes a dash for a flag of its own."""
    given: list[str] = []
    for word in arguments:
        if word == "-" and given and given[-1] in _OUTPUTS:
            given[-1] += "=-"
        else:
            given.append(word)
    return given


def status(arguments: Sequence[str]) -> int:
    """The exit status of a command line. What went wrong is one line on stderr, never a traceback."""
    try:
        code = app(_with_dashes(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"headway: {complaint(error)}", file=sys.stderr)
        return USAGE_ERROR
    except HeadwayError as error:
        print(f"headway: {error.message}", file=sys.stderr)
        return USAGE_ERROR if isinstance(error, ConfigError) else FAILURE
    except (LoadTestError, WorkloadError) as error:
        print(f"headway: {error}", file=sys.stderr)
        return USAGE_ERROR if isinstance(error, (InvalidPlan, WorkloadError)) else FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `headway generate … | head`
        sys.stderr.close()
        return FAILURE
    return code if isinstance(code, int) else 0
