"""The three regimes of attention over tokens and horizon, with context windows and heads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from altair.typing import ChartType

from esscher.core.validation import Array
from esscher.math.theory.regimes import CONTEXT_WINDOWS, REGIMES
from esscher.show.chart import bands, figure, guides, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLACK, BLUE, ORANGE, PALE, SHADES, VERMILION, limits

#: Range of n, and places along it.
FIRST, LAST, PLACES = 1e2, 1e12, 80
#: Range of horizons and strengths without heads.
LOW, HIGH = 0.2, 10.0
#: Local exponents whose lines are drawn in the stable regime of one direction.
EXPONENTS = (0.1, 0.2, 0.3, 0.4)
#: What a plane shows, and its axis.
PLANES = {
    "H": ("one direction (S = H)", "horizon H"),
    "S": ("many directions, H up to 1", "typical tilt S = √(F² + |τ|²)"),
}
REGIME = Series("regime", REGIMES, colours=(BLUE, ORANGE, PALE))
MARKED = "this head"
#: Points that a panel needs to stand beside another.
WIDE, HEIGHT = 200.0, 170.0


def draw_regimes(
    heads: Mapping[str, pd.DataFrame] | None = None,
    marked: tuple[float, float] | None = None,
    title: str = "",
    *,
    windows: Mapping[str, float] = CONTEXT_WINDOWS,
) -> Plot:
    """Draw the regimes over (n, H) and over (n, S), with the heads of models beside them.

    Parameters
    ----------
    heads
        By model: a table with the horizon ``H`` and the typical strength ``S`` of every head.
    marked
        Horizon and strength of a single head, drawn as a line.
    title
        Above everything.
    windows
        Context windows by name, drawn as vertical lines.
    """
    models = dict(heads or {})
    known = [LOW, HIGH, *(marked or ())]
    for table in models.values():
        known += [float(value) for name in PLANES for value in table[name]]
    ends = limits(known, log=True)
    panels = []
    for place, (name, (what, about)) in enumerate(PLANES.items()):
        y = Axis("value", about, log=True, limits=ends)
        panels.append(_plane(name, y, windows, None if marked is None else marked[place], what))
        if models:
            panels.append(_heads(models, name, y))
    return Plot(figure(panels, title, least=WIDE, apart=True))


def _plane(
    name: str, y: Axis, windows: Mapping[str, float], marked: float | None, title: str
) -> ChartType:
    """Regimes as bands, lines of the local exponent or the burn-in, and context windows."""
    n = np.geomspace(FIRST, LAST, PLACES)
    x = Axis("n", "tokens n", log=True, limits=(FIRST, LAST))
    assert y.limits is not None
    low, high = (np.full(PLACES, end) for end in y.limits)
    edges = (low, *edges_of(name, n), high)
    regions = [
        {"regime": regime, "n": size, "low": below, "high": above}
        for i, regime in enumerate(REGIMES)
        for size, below, above in zip(n, edges[i], edges[i + 1], strict=True)
    ]
    curves = _lines(name, n)
    if marked is not None:
        curves[MARKED] = (np.full(PLACES, marked), VERMILION)
    drawn = [
        {"line": line, "n": size, "value": value}
        for line, (values, _) in curves.items()
        for size, value in zip(n, values, strict=True)
    ]
    series = Series("line", list(curves), colours=[colour for _, colour in curves.values()])
    return panel(
        bands(regions, x, y, REGIME),
        guides([{"at": at, "name": word} for word, at in windows.items()], x, y, upright=True),
        lines(drawn, x, y, series),
        title=title,
        height=HEIGHT,
    )


def edges_of(name: str, n: Array) -> tuple[Array, Array]:
    """Return where the stable and the frozen regime begin at n tokens, in H (S = H) or S (H < 1).

    A query of strength s is at the position ``s / sqrt(2 ln n)``; in one direction rarer queries
    carry the error from H = 1 on.
    """
    frozen = np.sqrt(2 * np.log(n))
    stable = np.minimum(frozen / 2, 1.0) if name == "H" else frozen / 2
    return np.asarray(stable), np.asarray(frozen)


def _lines(name: str, n: Array) -> dict[str, tuple[Array, str]]:
    """Lines by name, with their colours."""
    if name == "S":
        return {"burn-in": (np.sqrt(np.log(n)), BLACK)}
    strongest = np.sqrt(2 * np.log(n))
    return {
        f"error ~ n^-{beta:g}": (
            np.minimum(np.sqrt((1 - beta) / beta), (1 - beta) * strongest), SHADES[2 * i]
        )
        for i, beta in enumerate(EXPONENTS)
    }  # fmt: skip


def _heads(models: Mapping[str, pd.DataFrame], name: str, y: Axis) -> ChartType:
    """One point per head in order of size, a curve per model; hollow beyond a horizon of 1."""
    rows = []
    for model, table in models.items():
        ordered = table.sort_values(name)
        for i, (value, horizon) in enumerate(zip(ordered[name], ordered["H"], strict=True)):
            share = (i + 0.5) / len(ordered)
            rows.append({"model": model, "share": share, "value": value, "hollow": horizon > 1})
    x = Axis("share", "share of heads below", limits=(0.0, 1.0))
    return panel(points(rows, x, y, Series("model", list(models))), title="heads", height=HEIGHT)
