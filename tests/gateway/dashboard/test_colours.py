"""Colours that stand side by side on the dashboard can be told apart by colour-blind readers, in both themes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from headway.gateway.dashboard.page import page
from headway.metrics.palette import COLOURS, PARTS

Colour = npt.NDArray[np.float64]

# How the colour-blind see (linear RGB): Machado, Oliveira, Fernandes 2009, severity 1.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# From linear sRGB to CIE XYZ, over D65's white.
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
JUST_SEEN = 2.3  # of CIE76's difference; plots want several times that
APART = 4 * JUST_SEEN
# Drawn in one plot, beside the parts of a call's time.
TOGETHER = [PARTS, ("tokenise", "gateway", "decode"), ("prefill", "queue"), ("worker", "decode"), ("kv", "tokenise")]


def linear(colour: str) -> Colour:
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: Colour) -> Colour:
    xyz = XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("names", TOGETHER, ids="-".join)
def test_neighbours_can_be_told_apart(names: tuple[str, ...], side: int, sight: str) -> None:
    seen = {name: lab(SIGHT[sight] @ linear(COLOURS[name][side])) for name in names}
    for one, other in combinations(names, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= APART, f"{one} and {other}"


def test_the_scripts_know_the_parts_in_their_order() -> None:
    listed = ", ".join(f'"{name}"' for name in PARTS)
    assert f"const PARTS = [{listed}]" in page().text.decode()
