"""Layer by head: one number per cell, for the heads of a model."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

#: Column of the table, title, colour map, limits (None: from the data), logarithmic.
PANELS = (
    ("mean", "exponent of the mean error", "viridis", (0.2, 0.6), False),
    ("map", "exponent of the map error", "viridis", (0.0, 0.6), False),
    ("H", "horizon H", "magma", None, True),
    ("khat", "one-pass k-hat", "magma", (0.0, 1.0), False),
    ("tokens_10", "tokens for 10% output error", "magma", None, True),
    ("lost", "attention in sinks and delimiters", "magma", (0.0, 1.0), False),
)


def draw_heads(table: pd.DataFrame, title: str) -> Figure:
    """Draw heatmaps of a probe's table; a cross marks a cell without a number."""
    table = table.assign(lost=table["sinks"] + table["delimiters"])
    layers, heads = sorted(table["layer"].unique()), sorted(table["head"].unique())
    tall = len(layers) / max(len(heads), 1)
    figure = Figure(figsize=(12.0, min(max(5.5, 6.5 * tall), 14.0)), layout="constrained", dpi=150)
    for axis, (column, name, colours, limits, logarithmic) in zip(
        figure.subplots(2, 3).ravel(), PANELS, strict=True
    ):
        grid = np.full((len(layers), len(heads)), np.nan)
        for row in table.itertuples():
            value = getattr(row, column)
            value = np.nan if value is None else float(value)
            if logarithmic and np.isfinite(value):
                value = np.log10(value)
            grid[layers.index(row.layer), heads.index(row.head)] = value
        low, high = (np.nanmin(grid), np.nanmax(grid)) if limits is None else limits
        image = axis.imshow(
            grid, cmap=colours, vmin=low, vmax=max(high, low + 1e-9), aspect="auto", origin="lower"
        )
        for i, j in zip(*np.nonzero(~np.isfinite(grid)), strict=True):
            axis.text(j, i, "x", ha="center", va="center", fontsize=7, color="grey")
        bar = figure.colorbar(image, ax=axis, shrink=0.9)
        if logarithmic:
            bar.ax.set_ylabel("power of 10", fontsize=7)
        bar.ax.tick_params(labelsize=7)
        step = max(1, len(layers) // 12)
        axis.set_yticks(
            range(0, len(layers), step), [str(layers[i]) for i in range(0, len(layers), step)]
        )
        axis.set_xticks(range(len(heads)), [str(head) for head in heads])
        axis.tick_params(labelsize=7)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("head", fontsize=8)
        axis.set_ylabel("layer", fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure
