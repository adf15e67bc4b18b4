"""A plan in pictures: budgets, what they cost on unseen text, and how good the prediction was."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

#: Colours that people with colour-blindness tell apart (Okabe and Ito), by configuration.
COLOURS = {
    "planned": "#0072B2",
    "uniform": "#E69F00",
    "heavy": "#009E73",
    "recent": "#CC79A7",
}
NAMES = {
    "planned": "planned",
    "uniform": "uniform",
    "heavy": "heavy hitters",
    "recent": "sinks + recent",
}


def draw_plan(results: dict[str, Any], title: str) -> Figure:
    """Draw a plan; without a check only its budgets and predicted errors."""
    check = results["check"]
    columns = 2 if check is None else 4
    figure = Figure(figsize=(4.2 * columns, 4.4), layout="constrained", dpi=150)
    axes = figure.subplots(1, columns)
    _budgets(figure, axes[0], results)
    if check is None:
        _predicted(axes[1], results)
    else:
        _cost(axes[1], check)
        _layers(axes[2], check)
        _calibration(axes[3], check["heads"])
    figure.suptitle(title, fontsize=10)
    return figure


def _budgets(figure: Figure, axis: Axes, results: dict[str, Any]) -> None:
    budgets = np.asarray(results["budgets"], dtype=np.float64)
    norm = LogNorm(budgets.min(), max(budgets.max(), budgets.min() + 1))
    image = axis.imshow(budgets, cmap="viridis", norm=norm, aspect="auto", origin="lower")
    figure.colorbar(image, ax=axis, shrink=0.9, label="tokens")
    axis.set_xticks(range(budgets.shape[1]))
    axis.set(title="budgets", xlabel="key head", ylabel="layer")


def _predicted(axis: Axes, results: dict[str, Any]) -> None:
    errors = np.sort(np.asarray(results["predicted"]["head_error"]).ravel())
    axis.plot(errors, np.arange(1, len(errors) + 1) / len(errors), color=COLOURS["planned"])
    axis.set(
        title="predicted errors", xlabel="relative output error", ylabel="share of heads",
        xscale="log" if np.all(errors > 0) else "linear",
    )  # fmt: skip


def _cost(axis: Axes, check: dict[str, Any]) -> None:
    """Divergence from dense of every configuration, with interval."""
    decoder = "kl" in check["planned"]
    names = [name for name in NAMES if name in check]
    for i, name in enumerate(names):
        found = check[name]["kl" if decoder else "cosine"]
        value, ends = found["mean"], found["interval"] or [found["mean"]] * 2
        if not decoder:
            value, ends = 1 - value, [1 - ends[1], 1 - ends[0]]
        axis.bar(i, value, color=COLOURS[name], width=0.6)
        spread = [[max(value - ends[0], 0)], [max(ends[1] - value, 0)]]
        axis.errorbar(i, value, yerr=spread, color="black", capsize=4, linewidth=1)
        axis.text(i, ends[1], f" {value:.2g}", ha="center", va="bottom", fontsize=8)
    axis.set_xticks(range(len(names)), [NAMES[name] for name in names], fontsize=8, rotation=15)
    axis.set(
        title=f"unseen text, {check['passages']} passages",
        ylabel="KL to dense (nats per token)" if decoder else "1 - cosine to dense",
    )


def _layers(axis: Axes, check: dict[str, Any]) -> None:
    for name in (name for name in NAMES if name in check):
        values = check[name]["layer_error"]["mean"]
        axis.plot(range(len(values)), values, color=COLOURS[name], label=NAMES[name], linewidth=1.5)
    axis.set(
        title="error of attention outputs", xlabel="layer", ylabel="relative error", yscale="log"
    )
    axis.legend(fontsize=8)


def _calibration(axis: Axes, heads: dict[str, Any]) -> None:
    predicted, realised = (np.asarray(heads[k]).ravel() for k in ("predicted", "realised"))
    shown = (predicted > 0) & (realised > 0)
    axis.scatter(predicted[shown], realised[shown], s=10, color=COLOURS["planned"], alpha=0.7)
    if shown.any():
        ends = np.array([predicted[shown].min(), predicted[shown].max()])
        axis.plot(ends, ends, color="black", linewidth=1)
        factor = heads["factor"]
        axis.fill_between(ends, ends / factor, ends * factor, color="grey", alpha=0.2, linewidth=0)
        axis.set(xscale="log", yscale="log")
    within = heads["within_factor"]
    share = "" if within is None else f": {within:.0%} within a factor of {heads['factor']:g}"
    axis.set(
        title=f"heads{share}", xlabel="predicted relative error", ylabel="realised on unseen text"
    )
