"""`headway keys`: the API keys of a gateway's tenants."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from headway.core.errors import ConfigError
from headway.gateway.tenancy.keys import Key, KeyFile

SECONDS_PER_DAY = 86_400
MAX_DAYS = 36_500

app = App(name="keys")

File = Annotated[Path, Parameter(help="The file of keys, as `headway serve --api-keys` takes it.")]


@app.command
def create(
    tenant: Annotated[str, Parameter(help="Its name, as in the tables of the configuration file.")],
    /,
    *,
    api_keys: File,
    label: Annotated[str, Parameter(help="What the key is for.", show_default=False)] = "",
    expires_in_days: Annotated[
        float | None, Parameter(help="When it ends by itself; left out, never.", show_default=False)
    ] = None,
    admin: Annotated[
        bool, Parameter(negative="", show_default=False, help="For the admin API from elsewhere, and nothing else.")
    ] = False,
) -> None:
    """Make a key for a tenant and print it: it is shown once, and only its hash is kept."""
    now_s = time.time()
    if expires_in_days is not None and not 0 < expires_in_days <= MAX_DAYS:  # NaN is neither
        raise ConfigError(
            f"--expires-in-days must be above 0 and at most {MAX_DAYS:,}, not {expires_in_days:g}.",
            param="expires_in_days",
        )
    expires_at_s = now_s + expires_in_days * SECONDS_PER_DAY if expires_in_days is not None else 0.0
    key, presented = KeyFile(api_keys).create(tenant, now_s, label=label, expires_at_s=expires_at_s, admin=admin)
    print(presented)
    use = "the admin API" if admin else f"the tenant {tenant}"
    print(f"{key.id} is for {use}. Keep the key now: it cannot be shown again.", file=sys.stderr)


@app.command(name="list")
def list_keys(
    *,
    api_keys: File,
    tenant: Annotated[str | None, Parameter(help="Only this tenant's.", show_default=False)] = None,
) -> None:
    """Show every key there is or was, without the keys themselves."""
    now_s = time.time()
    keys = [key for key in KeyFile(api_keys).read() if tenant is None or key.tenant == tenant]
    rows = [("ID", "TENANT", "ENDS WITH", "STATE", "CREATED", "EXPIRES", "LABEL"), *(_row(key, now_s) for key in keys)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command
def revoke(
    which: Annotated[str, Parameter(help="Its id, as `headway keys list` shows it.")], /, *, api_keys: File
) -> None:
    """End a key. A running gateway that reads this file refuses it within seconds."""
    key = KeyFile(api_keys).revoke(which, time.time())
    print(f"{key.id} of the tenant {key.tenant} is revoked.")


def _row(key: Key, now_s: float) -> tuple[str, ...]:
    kind = f"{key.state(now_s)}, admin" if key.admin else key.state(now_s)
    return (key.id, key.tenant, f"…{key.ends_with}", kind, _day(key.created_at_s), _day(key.expires_at_s), key.label)


def _day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%d %H:%M") if at_s else "never"
