"""`candidates_of`: models, fits, and devices with their prices, as candidates of a plan."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.cli.kv import read_shape
from headway.cli.plan.flags import HardwareOptions
from headway.core.errors import ConfigError
from headway.core.scheduler.policies import POLICIES
from headway.simulate.fit import StepFit, load_fit
from headway.simulate.fit.read import json_of
from headway.simulate.plan import Candidate, measured, rated
from headway.simulate.plan.candidate import check_price
from headway.simulate.sizing import Hardware, MemorySettings, ModelShape, engine_named, hardware_named

_SPEC = re.compile(r"(?:(?P<devices>\d{1,4})\s*[x×]\s*)?(?P<name>[^=]+)=(?P<price>[^=]*)")
_FIELDS = {"name", "price_per_hour", "devices", "memory_gib"}
EXAMPLE = "such as H100=2.50 or 2xL40S=0.90"


@dataclass(frozen=True, slots=True)
class Offer:
    """A device, how many make a replica, and what an hour of one costs."""

    name: str
    price_per_hour: float
    devices: int = 1
    memory_gib: float | None = None

    @property
    def told(self) -> str:
        return f"{self.devices} × {self.name}" if self.devices > 1 else self.name


def candidates_of(sources: Sequence[str], options: HardwareOptions) -> list[Candidate]:
    """One for each device. Raises `ConfigError`: nothing given, an unknown device (with the nearest names), …"""
    shape, fit = _read(sources)
    offers = [*map(parse_offer, options.hardware), *_of_file(options.hardware_file)]
    if not offers:
        raise ConfigError(f"there is nothing to plan with: give --hardware NAME=PRICE, {EXAMPLE}", param="hardware")
    if options.memory_gib is not None:
        offers = [replace(offer, memory_gib=offer.memory_gib or options.memory_gib) for offer in offers]
    found = [_candidate(offer, shape, fit, options, alone=len(offers) == 1) for offer in offers]
    seqs, budget = options.max_num_seqs, options.max_num_batched_tokens
    return [replace(candidate, seqs=seqs, budget=budget) for candidate in found]


def parse_offer(text: str) -> Offer:
    """NAME=PRICE or 2xNAME=PRICE. Raises `ConfigError`."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--hardware takes NAME=PRICE, {EXAMPLE}, not {text[:60]!r}", param="hardware")
    try:
        price = float(match["price"])
    except ValueError:
        raise ConfigError(
            f"--hardware {text[:60]}: {match['price'].strip()!r} is no price; it takes a number, per device and hour",
            param="hardware",
        ) from None
    return _checked(Offer(match["name"].strip(), price, int(match["devices"] or 1)))


def _checked(offer: Offer) -> Offer:
    check_price(offer.name, offer.price_per_hour)
    if offer.devices < 1:
        raise ConfigError(
            f"--hardware {offer.devices}x{offer.name}: a replica is at least one device", param="hardware"
        )
    return offer


def _of_file(path: str | None) -> Iterator[Offer]:
    if path is None:
        return
    where = Path(path).expanduser()
    try:
        text = where.read_text(encoding="utf-8")
        content: Any = json.loads(text) if where.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}", param="hardware_file") from error
    except ValueError as error:
        kind = "JSON" if where.suffix == ".json" else "TOML"
        raise ConfigError(f"{where}: no {kind}: {error}", param="hardware_file") from error
    rows = content.get("hardware") if isinstance(content, Mapping) else None
    if not isinstance(rows, list) or not rows:
        raise ConfigError(
            f"{where}: it needs a list `hardware`, each with `name` and `price_per_hour`", param="hardware_file"
        )
    for number, row in enumerate(rows, 1):
        yield _of_row(row, f"{where}: hardware {number}")


def _of_row(row: Any, where: str) -> Offer:
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        raise ConfigError(f"{where}: it needs a `name`", param="hardware_file")
    if unknown := sorted(row.keys() - _FIELDS):
        raise ConfigError(
            f"{where}: no field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}", param="hardware_file"
        )
    numbers = {"price_per_hour": row.get("price_per_hour"), "devices": row.get("devices", 1)}
    if "memory_gib" in row:
        numbers["memory_gib"] = row["memory_gib"]
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{where}: {name} is {value!r}, and must be a number", param="hardware_file")
    if numbers["devices"] != int(numbers["devices"]):
        raise ConfigError(f"{where}: devices is {numbers['devices']}, and must be whole", param="hardware_file")
    offer = Offer(row["name"], float(numbers["price_per_hour"]), int(numbers["devices"]), numbers.get("memory_gib"))
    try:
        return _checked(offer)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", param="hardware_file") from None


def _read(sources: Sequence[str]) -> tuple[ModelShape | None, StepFit | None]:
    shapes: list[ModelShape] = []
    fits: list[StepFit] = []
    for source in sources:
        path = Path(source).expanduser()
        if path.suffix == ".json" and path.is_file() and "coefficients" in json_of(path):
            fits.append(load_fit(path))
        else:
            shapes.append(read_shape(source))
    for what, count in (("models", len(shapes)), ("fits", len(fits))):
        if count > 1:
            raise ConfigError(f"{count} {what} are given; a plan is for one model, and from one fit at most")
    if not shapes and not fits:
        raise ConfigError("what is to be served? Give the model's config.json, or a file that `headway fit` wrote")
    return (shapes[0] if shapes else None), (fits[0] if fits else None)


def _candidate(
    offer: Offer, shape: ModelShape | None, fit: StepFit | None, options: HardwareOptions, *, alone: bool
) -> Candidate:
    there = _device(fit) if fit is not None else None
    if fit is not None and (shape is None or _is_measured(offer, there)):
        _check_same(offer, fit, there, alone=alone)
        found = measured(
            fit,
            offer.told,
            offer.price_per_hour * offer.devices,
            context_tokens=shape.context_tokens if shape is not None else None,
        )
        return found if options.policy is None else replace(found, policy=POLICIES[options.policy])
    assert shape is not None
    if fit is not None and there is None:
        raise ConfigError(
            f"the fit is of {fit.device or 'a device that it does not name'}, which is not in the table, so it says "
            f"nothing of {offer.name}. Leave it out, or fit again with --gpu.",
            param="hardware",
        )
    policy = options.policy or (fit.server.policy if fit is not None else "vllm")
    return rated(
        shape,
        hardware_named(offer.name, memory_gib=offer.memory_gib),
        offer.price_per_hour,
        engine=engine_named(options.engine),
        settings=MemorySettings(
            tensor_parallel=offer.devices,
            kv_cache_dtype=options.kv_cache_dtype,
            gpu_memory_utilization=options.gpu_memory_utilization,
        ),
        policy=POLICIES[policy],
        fit=fit,
        measured_on=there[1] if there is not None else None,
        ranks_measured=there[0] if there is not None else 1,
    )


def _device(fit: StepFit) -> tuple[int, Hardware] | None:
    """How many of what the fit is of; None where it is of nothing in the table."""
    match = re.fullmatch(r"(?:(\d+) × )?(.+)", fit.device)
    if match is None:
        return None
    try:
        return int(match[1] or 1), hardware_named(match[2], memory_gib=1.0)
    except ConfigError:
        return None


def _is_measured(offer: Offer, there: tuple[int, Hardware] | None) -> bool:
    if there is None:
        return False
    try:
        same = hardware_named(offer.name, memory_gib=1.0).name == there[1].name
    except ConfigError:
        return False
    return same and offer.devices == there[0]


def _check_same(offer: Offer, fit: StepFit, there: tuple[int, Hardware] | None, *, alone: bool) -> None:
    """A fit alone is of one server. Whatever its owner calls that is right, unless the table knows better."""
    if _is_measured(offer, there):
        return
    what = fit.device or "one server"
    if not alone:
        raise ConfigError(
            f"the fit is of {what}, and says nothing of {offer.told}: give the model as well (its config.json), so "
            "that it can be carried over",
            param="hardware",
        )
    if there is not None:
        hardware_named(offer.name, memory_gib=1.0)  # a name that is not in the table is told with the nearest
        raise ConfigError(
            f"the fit is of {what}, not of {offer.told}: give the model as well (its config.json)", param="hardware"
        )
