"""Errors by layer, exponents by layer, and what becomes of the end of a stack."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from esscher.depth import Depth
from esscher.depth.horizons import TERCILES
from esscher.report.exponents import plain_logarithmic

#: Okabe and Ito's palette: curves of a Gaussian stack, modes and terciles of a model.
COLOURS = {
    "map": "#0072B2", "mean": "#D55E00", "cov": "#009E73",
    "independent": "#0072B2", "shared": "#D55E00",
    "low": "#56B4E9", "middle": "#E69F00", "high": "#CC79A7",
}  # fmt: skip
NAMES = {"map": "map (rms)", "mean": "mean", "cov": "covariance"}


def draw_depth(found: Depth) -> Figure:
    """Draw a Gaussian stack (errors, growth, exponents, limit) or a model (errors, exponents, end).

    Error bars are 95% intervals, as the results have them.
    """
    figure = Figure(figsize=(10.0, 7.4), layout="constrained", dpi=150)
    panels = figure.subplots(2, 2).ravel()
    curve = "map" if found.is_gaussian else next(iter(found.layers[0]["error"]))
    _draw_errors(panels[0], found, curve)
    _draw_exponents(panels[1], found)
    configuration = found.results["configuration"]
    if found.is_gaussian:
        _draw_growth(panels[2], found)
        _draw_limit(panels[3], found)
        title = (
            f"Gaussian stack: {configuration['depth']} layers, d = {configuration['dim']}, "
            f"H = {configuration['horizon']:g}, residual {configuration['residual']:g}, "
            f"{configuration['replicates']} replicates"
        )
    else:
        damage = "kl" if "kl" in found.results["end"] else "cosine"
        _draw_end(panels[2], found, damage, list(found.layers[0]["error"]))
        _draw_terciles(panels[3], found, damage)
        title = (
            f"{configuration['model']['name']} on {configuration['text']}: "
            f"{configuration['passages']} passages of {configuration['context']} tokens, "
            f"{configuration['draws']} draws"
        )
    figure.suptitle(title, fontsize=10)
    return figure


def _draw_errors(axis: Any, found: Depth, curve: str) -> None:
    """Relative error against the layer, one colour per n; dashed: the other mode, middle n."""
    layers = [layer["layer"] for layer in found.layers]
    shades = colormaps["viridis"](np.linspace(0.0, 0.9, len(found.sizes)))
    for j, n in enumerate(found.sizes):
        values = [layer["error"][curve]["mean"][j] for layer in found.layers]
        ends = [layer["error"][curve]["interval"][j] for layer in found.layers]
        axis.errorbar(
            layers, values, yerr=_bars(values, ends), color=shades[j], marker="o", markersize=2.5,
            linewidth=1, label=f"{n}",
        )  # fmt: skip
    for other in found.layers[0]["error"] if not found.is_gaussian else ():
        if other != curve:
            middle = len(found.sizes) // 2
            values = [layer["error"][other]["mean"][middle] for layer in found.layers]
            axis.plot(
                layers, values, "--", color=shades[middle], linewidth=1,
                label=f"{found.sizes[middle]}, {other}",
            )  # fmt: skip
    plain_logarithmic(axis, "y")
    what = "token against its limit" if found.is_gaussian else f"tokens, {curve} samples"
    _finish(axis, "layer", "relative error", f"Error of the {what}")
    axis.legend(title="n", fontsize=6, title_fontsize=7, ncols=2, frameon=False)


def _draw_exponents(axis: Any, found: Depth) -> None:
    """Exponents by layer with intervals; hollow: not to be trusted."""
    for curve in found.layers[0]["fit"]:
        rows = [layer for layer in found.layers if layer["fit"][curve] is not None]
        fits = [layer["fit"][curve] for layer in rows]
        if not fits:
            continue
        at = np.array([layer["layer"] for layer in rows]) + 0.12 * _shift(curve)
        values = np.array([fit["exponent"] for fit in fits])
        bars = _bars(values, [fit["interval"] for fit in fits])
        trusted = np.array([fit["trusted"] for fit in fits])
        colour = COLOURS[curve]
        for chosen, fill in ((trusted, colour), (~trusted, "white")):
            if chosen.any():
                axis.errorbar(
                    at[chosen], values[chosen], yerr=None if bars is None else bars[:, chosen],
                    fmt="o", color=colour, markerfacecolor=fill, markersize=3.5, capsize=1.5,
                    linewidth=0.9,
                )  # fmt: skip
        axis.plot([], [], "o", color=colour, markersize=4, label=NAMES.get(curve, curve))
    axis.axhline(0.5, color="grey", linestyle=":", linewidth=1)
    axis.axhline(0.0, color="black", linewidth=0.5)
    _finish(axis, "layer", r"exponent $\beta$", "Exponents (hollow: not to be trusted)")
    axis.legend(fontsize=7, frameon=False)


def _draw_growth(axis: Any, found: Depth) -> None:
    """Ratio of the error to that of the layer before, at the largest n."""
    for curve in found.layers[0]["growth"]:
        steps = [(layer["layer"], layer["growth"][curve][-1]) for layer in found.layers]
        there = [(i, step) for i, step in steps if step is not None]
        if there:
            values = [step["factor"] for _, step in there]
            axis.errorbar(
                [i + 0.12 * _shift(curve) for i, _ in there], values,
                yerr=_bars(values, [step["interval"] for _, step in there]), fmt="o",
                color=COLOURS[curve], markersize=3.5, capsize=1.5, linewidth=0.9,
                label=NAMES[curve],
            )  # fmt: skip
    axis.axhline(1.0, color="black", linewidth=0.5)
    _finish(
        axis,
        "layer",
        "growth factor",
        f"Error over that of the layer before, n = {found.sizes[-1]}",
    )
    if len(found.layers) > 1:
        axis.legend(fontsize=7, frameon=False)


def _draw_limit(axis: Any, found: Depth) -> None:
    """Deviations of the measured limit from the recursion, in standard errors."""
    limits = [limit for limit in found.results["limit"] if limit["standard_error"] is not None]
    for limit in limits:
        scores = (np.array(limit["measured"]) - limit["exact"]) / limit["standard_error"]
        axis.plot(
            np.full(len(scores), limit["layer"]), scores, ".", color=COLOURS["map"], markersize=2.5
        )
    if limits:
        at = [limit["layer"] for limit in limits]
        for side in (1, -1):
            axis.plot(at, [side * limit["bound"] for limit in limits], color="grey", linewidth=1)
    axis.axhline(0.0, color="black", linewidth=0.5)
    _finish(
        axis, "layer", "standard errors",
        "Measured limit minus recursion (lines: 95% bound of the largest)",
    )  # fmt: skip


def _draw_end(axis: Any, found: Depth, damage: str, variants: list[str]) -> None:
    """Divergence of the model's end against the budget."""
    curves = found.results["end"].get(damage, {})
    for variant in variants:
        if variant not in curves:
            continue
        values, ends = _damage(curves[variant], damage)
        fit = curves[variant]["fit"]
        slope = "" if fit is None else rf", $n^{{-{fit['exponent']:.2f}}}$"
        axis.errorbar(
            found.sizes, values, yerr=_bars(values, ends), color=COLOURS[variant], marker="o",
            markersize=3.5, capsize=2, linewidth=1, label=f"{variant}{slope}",
        )  # fmt: skip
    plain_logarithmic(axis, "x")
    plain_logarithmic(axis, "y")
    label = "KL to the dense next-token law (nats)" if damage == "kl" else "1 - cosine to dense"
    _finish(axis, "keys drawn n", label, "End of the model, all heads sampled")
    axis.legend(fontsize=7, frameon=False)


def _draw_terciles(axis: Any, found: Depth, damage: str) -> None:
    """The same with only a third of the heads sampled, by horizon."""
    terciles = found.results["terciles"]
    there = [name for name in TERCILES if name in found.results["end"].get(damage, {})]
    if terciles is None or not there:
        axis.set_axis_off()
        return
    _draw_end(axis, found, damage, there)
    for name, line in zip(there, axis.get_legend().get_texts(), strict=True):
        about = terciles["heads"][name]
        line.set_text(
            f"{line.get_text()} (H {about['horizon_min']:.1f} to {about['horizon_max']:.1f})"
        )
    axis.set_title(f"One third of the heads sampled, by horizon, {terciles['mode']}", fontsize=9)


def _damage(curve: dict[str, Any], damage: str) -> tuple[list[float], list[Any]]:
    """What falls to 0 as n grows, with its intervals."""
    if damage == "kl":
        return curve["mean"], curve["interval"]
    ends = [None if end is None else [1 - end[1], 1 - end[0]] for end in curve["interval"]]
    return [1 - value for value in curve["mean"]], ends


def _bars(values: Any, ends: list[Any]) -> Any:
    """Lengths of error bars, [2, points]; None if there are no intervals.

    A lower end at or below 0 is cut just above it, for logarithmic axes.
    """
    if any(end is None or None in end for end in ends):
        return None
    value, (low, high) = np.asarray(values), np.array(ends).T
    down = value - low
    return np.array([np.where(value > 0, np.minimum(down, 0.95 * value), down), high - value])


def _shift(curve: str) -> int:
    """Which way points of a curve are moved, so that bars do not hide each other."""
    return {"map": -1, "independent": -1, "shared": 1, "cov": 1}.get(curve, 0)


def _finish(axis: Any, xlabel: str, ylabel: str, title: str) -> None:
    axis.set_xlabel(xlabel, fontsize=8)
    axis.set_ylabel(ylabel, fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
