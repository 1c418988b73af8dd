"""Where and how a run was made: the server, this client, the settings. What the next run needs to be the same."""

from __future__ import annotations

from headway.loadtest.report.tables import Table, facts, promises
from headway.loadtest.report.wording import UNKNOWN, duration, per_second, percent, size, spread
from headway.loadtest.result import Environment, Run


def environment(run: Run) -> Table:
    found = run.environment
    device = " × ".join(str(part) for part in (found.device_count, found.device or UNKNOWN) if part is not None)
    rows = {
        "Model": found.model or run.target.model,
        "Precision": found.precision or UNKNOWN,
        "Quantisation": found.quantisation or UNKNOWN,
        "Device": device,
        "Memory": size(found.memory_bytes),
        "Framework": found.framework or UNKNOWN,
        "Endpoint": f"{run.target.url} ({run.target.endpoint})",
        **{f"noted: {name}": value for name, value in found.noted.items()},
        **{f"flag: {name}": value for name, value in found.flags.items()},
    }
    return facts("Server", rows, "As the server told, or as was noted with --note. «–»: it did not tell.")


def environment_line(run: Run) -> str:
    """The server on one line: what is known of it."""
    found: Environment = run.environment
    parts = (found.model or run.target.model, found.precision, found.quantisation, found.framework, found.device)
    return " · ".join(part for part in parts if part) + f" · {run.target.url}"


def client(run: Run) -> Table:
    made = run.client
    rows = {
        "Processes": f"{made.processes}",
        "CPU of the busiest": f"{percent(made.cpu_ratio)} of a core",
        **({"Kept by its host": f"{percent(made.stolen_ratio)} of this machine's time"} if made.stolen_ratio else {}),
        "Schedule lag": spread(made.lag),
        "Event loop lag": spread(made.loop_lag),
        **run.environment.client,
    }
    return facts("This client", rows)


def settings(run: Run) -> Table:
    made = run.load
    rows = {
        "Profile": made.profile,
        "Loop": made.loop,
        "Rate": per_second(made.rate, "req") if made.rate is not None else "",
        "Concurrency": f"{made.concurrency:,}" if made.concurrency is not None else "",
        "Duration": duration(made.duration_s) if made.duration_s is not None else "",
        "Requests": f"{made.requests:,}" if made.requests is not None else "",
        "Warm-up": f"{made.warmup_requests:,} requests" if made.warmup_requests else duration(made.warmup_s),
        "Cool-down": duration(made.cooldown_s),
        "Seed": str(made.seed),
        "Ended early": run.ended_early,
        "SLO": promises(run.slo) or "none",
        **made.settings,
    }
    return facts("Settings", rows)
