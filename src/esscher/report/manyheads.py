"""The heads of each layer together: correlations of errors, effective number, exponents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from esscher.probing import Probe

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
#: Layers whose matrices are drawn.
SHOWN = 6


def draw_layers(found: Probe) -> Figure:
    """Draw what a probe knows about heads together: matrices above, numbers by layer below."""
    layers = [layer for layer in found.results["layers"] if layer["heads_together"] is not None]
    table = found.layers_frame()
    at = np.unique(np.linspace(0, len(layers) - 1, min(SHOWN, len(layers))).astype(int))
    chosen = [layers[i] for i in at]
    figure = Figure(figsize=(12.0, 7.2), layout="constrained", dpi=150)
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.25))
    above, below = parts
    panels = above.subplots(1, len(chosen), squeeze=False)[0]
    image: Any = None
    for axis, layer in zip(panels, chosen, strict=True):
        image = _draw_correlations(axis, layer)
    above.colorbar(image, ax=list(panels), shrink=0.8).ax.tick_params(labelsize=7)
    above.suptitle(
        "correlation of errors at the largest n; above the diagonal: vectors behind the output "
        "projection, below: magnitudes",
        fontsize=9,
    )
    left, middle, right = below.subplots(1, 3)
    _draw_effective(left, table)
    _draw_amplification(middle, table)
    _draw_exponents(right, table)
    for axis in (left, middle, right):
        axis.set_xlabel("layer", fontsize=8)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, frameon=False)
    configuration = found.results["configuration"]
    figure.suptitle(
        f"Many heads: {configuration['model']['name']} on {configuration['text']}, "
        f"{configuration['mode']}, n up to {configuration['sizes'][-1]}",
        fontsize=10,
    )
    return figure


def _draw_correlations(axis: Any, layer: dict[str, Any]) -> Any:
    found = layer["heads_together"]
    vectors = np.asarray(found["correlation"])
    magnitudes = np.asarray(found["magnitudes"]["correlation"])
    both = np.triu(vectors, 1) + np.tril(magnitudes, -1)
    np.fill_diagonal(both, np.nan)
    image = axis.imshow(both, cmap="PuOr_r", vmin=-1, vmax=1)
    axis.set_xticks(range(len(both)), [str(head) for head in found["heads"]])
    axis.set_yticks(range(len(both)), [str(head) for head in found["heads"]])
    axis.tick_params(labelsize=5)
    axis.set_title(f"layer {layer['layer']}", fontsize=8)
    return image


def _errorbar(axis: Any, table: Any, column: str, shift: float, **style: Any) -> None:
    value = table[column].to_numpy(dtype=float)
    ends = [table[f"{column}_{side}"].to_numpy(dtype=float) for side in ("low", "high")]
    error = np.nan_to_num(np.abs(np.array(ends) - value))
    axis.errorbar(
        table["layer"] + shift, value, yerr=error, fmt="o", markersize=4, capsize=2, **style
    )


def _draw_effective(axis: Any, table: Any) -> None:
    _errorbar(axis, table, "effective_heads", -0.12, color=BLUE, label="errors of the mean")
    _errorbar(axis, table, "effective_heads_map", 0.0, color=ORANGE, label="errors of queries")
    _errorbar(axis, table, "effective_magnitudes", 0.12, color=GREEN, label="magnitudes")
    axis.axhline(float(table["heads"].max()), color=GREY, linestyle="--", linewidth=1)
    axis.set_ylim(bottom=0)
    axis.set_title("effective number of independent heads", fontsize=9)


def _draw_amplification(axis: Any, table: Any) -> None:
    _errorbar(axis, table, "amplification", -0.08, color=BLUE, label="errors of the mean")
    _errorbar(axis, table, "amplification_map", 0.08, color=ORANGE, label="errors of queries")
    axis.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    axis.set_ylim(bottom=0)
    axis.set_title("squared error of the sum / sum of squared errors", fontsize=9)


def _draw_exponents(axis: Any, table: Any) -> None:
    axis.plot(table["layer"], table["heads_mean"], "-", color=GREY, label="mean of the heads")
    axis.plot(table["layer"], table["heads_worst"], ":", color=GREY, label="worst head")
    _errorbar(axis, table, "side_by_side", -0.08, color=BLUE, label="heads side by side")
    _errorbar(axis, table, "projected", 0.08, color=ORANGE, label="behind the output projection")
    axis.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    axis.set_title("exponent of the mean error", fontsize=9)
