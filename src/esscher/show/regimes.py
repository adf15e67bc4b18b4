"""The three regimes of attention over tokens and horizon, with context windows and heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from esscher.core.validation import Array
from esscher.math.theory.regimes import CONTEXT_WINDOWS, positions
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREY,
    GUIDE,
    MARKERS,
    NOTE,
    ORANGE,
    PALE,
    SMALL,
    VERMILION,
    columns,
    escape,
    finish,
    logarithmic,
    new_figure,
    styled,
)

#: Range of n.
FIRST, LAST = 1e2, 1e12
#: Colours of the regimes, as light backgrounds.
BACKGROUNDS = (BLUE, ORANGE, PALE)
#: Local exponents whose contours are drawn in the stable regime of one direction.
CONTOURS = (0.1, 0.2, 0.3, 0.4)
#: Range of horizons and strengths without heads.
LOW, HIGH = 0.2, 10.0
#: Points of the grid on either axis.
GRID = 320


@styled
def draw_regimes(
    heads: Mapping[str, pd.DataFrame] | None = None,
    marked: Sequence[tuple[float, float]] = (),
    title: str | None = None,
    *,
    windows: Mapping[str, float] = CONTEXT_WINDOWS,
    width: float = DOUBLE,
) -> Figure:
    """Draw the regimes over (n, H) and over (n, S), heads beside them.

    Parameters
    ----------
    heads
        By model: a table with the horizon ``H`` and the typical strength ``S`` of every head.
    marked
        Horizon and strength of single heads, drawn as lines.
    title
        Above everything.
    windows
        Context windows by name, drawn as vertical lines.
    width
        Of the figure, in inches.
    """
    models = dict(heads or {})
    everything = [np.concatenate([t["H"], t["S"]]) for t in models.values()]
    everything += [np.array(pair) for pair in marked]
    values = np.concatenate([*everything, [LOW, HIGH]])
    low, high = 0.8 * float(values[values > 0].min()), 1.25 * float(values.max())
    across = columns(width, 2, 3.0)
    rows = 2 // across
    figure = new_figure(width, 0.3 + 3.1 * rows, title)
    strip = 0.14 * max(len(models), 1)
    axes: Any = figure.subplots(
        rows, 2 * across, sharey=True, squeeze=False,
        width_ratios=[1.0, strip if models else 0.01] * across,
    )  # fmt: skip
    planes = axes.reshape(2, 2)
    for (plane, beside), column in zip(planes, ("H", "S"), strict=True):
        _draw_plane(plane, column, low, high, windows)
        for h, s in marked:
            plane.axhline(h if column == "H" else s, color=VERMILION, linewidth=GUIDE, zorder=4)
        _draw_heads(beside, models, column)
    return figure


def _draw_plane(
    axis: Any, column: str, low: float, high: float, windows: Mapping[str, float]
) -> None:
    """Regions, their boundaries, contours of the local exponent and context windows."""
    n = np.geomspace(FIRST, LAST, GRID)
    y = np.geomspace(low, high, GRID)
    # one direction: S = H; over S the horizon is taken below 1
    horizon = y[:, None] if column == "H" else np.zeros((GRID, 1))
    x = positions(horizon, y[:, None], n)
    axis.contourf(n, y, x, levels=[-1.0, 0.5, 1.0, 1e9], colors=BACKGROUNDS, alpha=0.22)
    axis.contour(n, y, x, levels=[1.0], colors=BLACK, linewidths=GUIDE)
    if column == "H":
        axis.axhline(1.0, color=BLACK, linewidth=GUIDE)
    else:
        axis.contour(n, y, x, levels=[0.5], colors=BLACK, linewidths=GUIDE)
        axis.plot(n, np.sqrt(np.log(n)), color=BLACK, linewidth=GUIDE, linestyle="--")
        axis.text(3e9, 3.95, "burn-in", fontsize=NOTE, va="center", ha="center")
    for beta in CONTOURS if column == "H" else ():
        curve = np.minimum(np.sqrt((1 - beta) / beta), (1 - beta) * np.sqrt(2 * np.log(n)))
        axis.plot(n, curve, color=GREY, linewidth=0.6, linestyle=":")
        axis.annotate(
            rf"$n^{{-{beta:g}}}$", (LAST, float(curve[-1])), textcoords="offset points",
            xytext=(2, -2), fontsize=NOTE, color=GREY, annotation_clip=False,
        )  # fmt: skip
    for name, tokens in windows.items():
        axis.axvline(tokens, color=GREY, linewidth=0.6, alpha=0.8)
        axis.annotate(
            name, (tokens, 0.0), xycoords=("data", "axes fraction"), textcoords="offset points",
            xytext=(1, 2), ha="left", va="bottom", fontsize=NOTE, color=GREY, rotation=90,
        )  # fmt: skip
    stable = (3e2, 1.75) if column == "H" else (1.2e8, 5.35)
    for name, place in (
        ("frozen", (3e2, 0.75 * high)),
        ("stable", stable),
        ("parametric", (3e2, 0.75)),
    ):
        axis.text(*place, name, ha="left", va="center", fontsize=SMALL, fontweight="bold")
    axis.set_xlim(FIRST, LAST)
    axis.set_ylim(low, high)
    logarithmic(axis, "x")
    logarithmic(axis, "y")
    label = "horizon H" if column == "H" else r"typical tilt $S = \sqrt{F^2 + |\tau|^2}$"
    what = "one direction (S = H)" if column == "H" else "many directions, H up to 1"
    finish(axis, "tokens n", label, what, grid=None)
    axis.tick_params(labelleft=True)


def _draw_heads(axis: Any, models: Mapping[str, pd.DataFrame], column: str) -> None:
    """One point per head, one column per model; hollow beyond a horizon of 1."""
    axis.set_xlim(-0.5, max(len(models), 1) - 0.5)
    for place, table in enumerate(models.values()):
        values = np.asarray(table[column], dtype=np.float64)
        beyond = np.asarray(table["H"], dtype=np.float64) > 1
        offset = place + _spread(values)
        style = {"linestyle": "none", "marker": MARKERS[place % len(MARKERS)], "markersize": 1.9}
        for chosen, face in ((~beyond, BLUE), (beyond, "white")):
            axis.plot(
                offset[chosen], values[chosen], **style, markeredgecolor=BLUE,
                markeredgewidth=0.5, markerfacecolor=face, alpha=0.8,
            )  # fmt: skip
    axis.set_xticks(
        range(len(models)),
        [escape(name) for name in models],
        rotation=90,
    )
    finish(axis, grid=None)
    axis.tick_params(labelleft=False, left=False, bottom=False, which="both")
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)
    if not models:
        axis.set_axis_off()


def _spread(values: Array) -> Array:
    """Small sideways offsets that keep points of similar value apart, the same every time."""
    order = np.argsort(np.argsort(values))
    return np.asarray(0.32 * (((order * 0.618034) % 1.0) * 2 - 1))
