"""The heads of each layer together: correlations of errors, effective number, exponents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from esscher.core.errors import InputError
from esscher.show.heatmaps import draw_cells
from esscher.show.style import (
    BLUE,
    DOUBLE,
    GREEN,
    GREY,
    GUIDE,
    NOTE,
    SIGNED,
    SMALL,
    TEXT,
    TINY,
    VERMILION,
    columns,
    error_bars,
    finish,
    new_figure,
    panels,
    styled,
)
from esscher.show.titles import title_of

if TYPE_CHECKING:
    from esscher.studies.probe import Probe
    from esscher.studies.probe.records import ProbeLayer

#: Layers whose matrices are drawn.
SHOWN = 6


@styled
def draw_layers(found: Probe, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw what a probe knows about heads together: matrices above, numbers by layer below."""
    layers = [layer for layer in found.layers if layer.heads_together is not None]
    if not layers:
        raise InputError("no layer has more than one head to compare, on at least 4 replicates")
    table = found.layers_table()
    at = np.unique(np.linspace(0, len(layers) - 1, min(SHOWN, len(layers))).astype(int))
    chosen = [layers[i] for i in at]
    across, below_across = columns(width, len(chosen), 1.1), columns(width, 3, 1.9)
    size = min(width / across, 1.9)
    heights = (0.55 + size * -(-len(chosen) // across), 2.35 * -(-3 // below_across))
    name = title_of(found.to_dict(), title)
    figure = new_figure(width, 0.3 + sum(heights), name)
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    above, below = parts
    axes = panels(above, len(chosen), across)
    image: Any = None
    for axis, layer in zip(axes, chosen, strict=True):
        image = _draw_correlations(axis, layer)
    bar = above.colorbar(image, ax=axes, shrink=0.7, aspect=25, pad=0.01)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    bar.outline.set_linewidth(0.5)
    n = found.sizes[-1]
    breaks = "\n" if width < 5 else " "
    above.suptitle(
        f"correlation of the errors of heads at n = {n}{breaks}"
        "(above the diagonal: vectors, below: magnitudes)",
        fontsize=TEXT,
    )
    left, middle, right = panels(below, 3, below_across)
    _draw_effective(left, table)
    _draw_amplification(middle, table)
    _draw_exponents(right, table)
    for axis, words in (
        (left, "independent heads"),
        (middle, "squared error of sum / sum of squared"),
        (right, "exponent of the mean error"),
    ):
        finish(axis, "layer", "", words)
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axis.legend(
            loc="upper center", bbox_to_anchor=(0.45, -0.22), ncols=2, fontsize=NOTE,
            columnspacing=0.8, handletextpad=0.4,
        )  # fmt: skip
    return figure


def _draw_correlations(axis: Any, layer: ProbeLayer) -> Any:
    found = layer.heads_together
    assert found is not None
    vectors = np.asarray(found.correlation)
    magnitudes = np.asarray(found.magnitudes.correlation)
    both = np.triu(vectors, 1) + np.tril(magnitudes, -1)
    np.fill_diagonal(both, np.nan)
    shown = np.ma.masked_invalid(both)
    image = draw_cells(axis, shown, square=True, cmap=SIGNED, vmin=-1, vmax=1)
    step = 1 if len(both) <= 4 else 2 if len(both) <= 12 else 4 if len(both) <= 24 else 8
    ticks = range(0, len(both), step)
    names = [str(found.heads[i]) for i in ticks]
    axis.set_xticks(list(ticks), names)
    axis.set_yticks(list(ticks), names)
    finish(axis, "", "", f"layer {layer.layer}", grid=None)
    axis.title.set_fontsize(SMALL)
    axis.tick_params(labelsize=TINY, length=1.5)
    return image


def _points(axis: Any, table: Any, column: str, shift: float, **style: Any) -> None:
    ends = [table[f"{column}_{side}"].to_numpy(dtype=float) for side in ("low", "high")]
    error_bars(axis, table["layer"] + shift, table[column], ends, **style)


def _draw_effective(axis: Any, table: Any) -> None:
    _points(axis, table, "effective_heads", -0.2, color=BLUE, label="errors of the mean")
    _points(
        axis, table, "effective_heads_map", 0.0, color=VERMILION, marker="s",
        label="errors of queries",
    )  # fmt: skip
    _points(axis, table, "effective_magnitudes", 0.2, color=GREEN, marker="^", label="magnitudes")
    axis.axhline(
        float(table["heads"].max()), color=GREY, linestyle="--", linewidth=GUIDE, label="all heads"
    )
    axis.set_ylim(bottom=0)


def _draw_amplification(axis: Any, table: Any) -> None:
    _points(axis, table, "amplification", -0.12, color=BLUE, label="errors of the mean")
    _points(
        axis, table, "amplification_map", 0.12, color=VERMILION, marker="s",
        label="errors of queries",
    )  # fmt: skip
    axis.axhline(1.0, color=GREY, linestyle="--", linewidth=GUIDE, label="independent heads")
    axis.set_ylim(bottom=0)


def _draw_exponents(axis: Any, table: Any) -> None:
    axis.plot(
        table["layer"], table["heads_mean"], "-", color=GREY, linewidth=GUIDE, label="mean head"
    )
    axis.plot(
        table["layer"], table["heads_worst"], ":", color=GREY, linewidth=GUIDE, label="worst head"
    )
    _points(axis, table, "side_by_side", -0.12, color=BLUE, label="heads side by side")
    _points(axis, table, "projected", 0.12, color=VERMILION, marker="s", label="output projection")
    axis.axhline(0.5, color=GREY, linestyle="--", linewidth=GUIDE)
