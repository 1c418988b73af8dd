"""The lines of a decision log, read: the last run of a file, and the settings that its header and stimuli hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headway.core.errors import ConfigError
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.front.replicas import ReplicaLimits
from headway.core.front.tenants import TenantLimits
from headway.core.front.treatment import Degradation
from headway.core.lanes import LaneLimits
from headway.engine.journal import VERSION

Line = dict[str, Any]

decode = msgspec.json.Decoder(Line).decode


def last_run(path: Path) -> tuple[Line, list[Line]]:
    """The last header and the lines after it, up to one that a crash or a full disk cut short."""
    header: Line | None = None
    lines: list[Line] = []
    try:
        with path.open("rb") as file:
            whole = True
            for text in filter(bytes.strip, file):
                try:
                    line = decode(text)
                except msgspec.DecodeError:
                    whole = False
                    continue
                if line.get("kind") == "header":
                    header, lines, whole = line, [], True
                elif whole:
                    lines.append(line)
    except OSError as error:
        raise ConfigError(f"The decision log {str(path)!r} cannot be read: {error.strerror}.") from error
    if header is None or header.get("log") != "decision" or header.get("version") != VERSION:
        raise ConfigError(f"{str(path)!r} is not a decision log of version {VERSION}.")
    return header, lines


def admission_of(said: Line) -> AdmissionLimits:
    return AdmissionLimits(**said)


def limits_of(said: Line) -> FrontLimits:
    lanes = tuple(LaneLimits(**lane) for lane in said["lanes"])
    return FrontLimits(**{**said, "lanes": lanes, "replicas": ReplicaLimits(**said["replicas"])})


def degradation_of(said: Line) -> Degradation:
    return Degradation(**said)


def tenant_of(said: Line) -> TenantLimits:
    return TenantLimits(**{**said, "lanes": tuple(said["lanes"])})


def spec_of(said: Line) -> WorkerSpec:
    return WorkerSpec(**{**said, "models": frozenset(said["models"])})
