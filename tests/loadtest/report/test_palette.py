"""Colours can be told from what they stand on, in both themes."""

from __future__ import annotations

import re

import pytest

from headway.loadtest.record import Fate
from headway.loadtest.report.palette import COLOURS, GROUNDS, SERIES, TEXTS, paint, style


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(set(COLOURS) - set(GROUNDS)))
def test_contrast(name: str, side: int) -> None:
    least = 4.5 if name in TEXTS else 3.0
    for ground in ("panel", "page") if name in TEXTS else ("panel",):
        assert contrast(COLOURS[name][side], COLOURS[ground][side]) >= least


def test_every_fate_has_a_colour() -> None:
    assert {fate.value for fate in Fate} <= set(COLOURS)
    assert set(SERIES) <= set(COLOURS)


def test_the_style_sheet_has_all_of_both_themes() -> None:
    sheet = style()
    for name, (light, dark) in COLOURS.items():
        assert len(re.findall(rf"--{name}:{light};", sheet)) == 1 + 2 * (light == dark)
        assert len(re.findall(rf"--{name}:{dark};", sheet)) == 2 + (light == dark)


def test_a_misspelt_colour_is_noticed() -> None:
    with pytest.raises(AssertionError):
        paint("ttfd")
