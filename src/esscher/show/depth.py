"""Errors by layer, exponents by layer, and what becomes of the end of a stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREY,
    GUIDE,
    METRIC_COLOURS,
    NOTE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    columns,
    error_bars,
    finish,
    logarithmic,
    new_figure,
    panels,
    shades,
    styled,
)
from esscher.show.titles import title_of
from esscher.studies.deep import Deep
from esscher.studies.deep.records import TERCILES, Curve

#: Curves of a Gaussian stack, modes and terciles of a model.
COLOURS = METRIC_COLOURS | {
    "independent": BLUE, "shared": VERMILION,
    "low": SKY, "middle": ORANGE, "high": PURPLE,
}  # fmt: skip
MARKERS = {"mean": "s", "cov": "^", "shared": "s", "middle": "s", "high": "^"}
NAMES = {"map": "map (rms)", "mean": "mean", "cov": "covariance"}


@styled
def draw_depth(found: Deep, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw a Gaussian stack (errors, growth, exponents, limit) or a model (errors, exponents, end).

    Error bars are 95% intervals, as the results have them.
    """
    parts = [draw_layer_errors, draw_layer_exponents]
    parts += [draw_growth, draw_limit] if found.is_gaussian else [draw_end, draw_terciles]
    shown = [part for part in parts if part is not draw_terciles or _terciles(found)]
    across = columns(width, len(shown), 3.0)
    height = 0.3 + 2.5 * -(-len(shown) // across)
    figure = new_figure(width, height, title_of(found.to_dict(), title))
    for axis, part in zip(panels(figure, len(shown), across), shown, strict=True):
        part(axis, found)
    return figure


def single(part: Callable[[Any, Deep], None]) -> Callable[..., Figure]:
    """A figure of one panel."""

    @styled
    def draw(found: Deep, title: str | None = None, *, width: float = DOUBLE) -> Figure:
        height = min(0.75 * width, 3.2)
        figure = new_figure(width, height + 0.2, title_of(found.to_dict(), title))
        part(figure.subplots(), found)
        return figure

    draw.__doc__ = part.__doc__
    return draw


def draw_layer_errors(axis: Any, found: Deep) -> None:
    """Relative error against the layer, one colour per n; dashed: the other mode, middle n."""
    curve = "map" if found.is_gaussian else next(iter(found.layers[0].error))
    layers = [layer.layer for layer in found.layers]
    colours = shades(len(found.sizes))
    for j, n in enumerate(found.sizes):
        values = [layer.error[curve].mean[j] for layer in found.layers]
        ends = [layer.error[curve].interval[j] for layer in found.layers]
        error_bars(
            axis, layers, values, _ends(values, ends), color=colours[j], markersize=2.4,
            linestyle="-", linewidth=0.9, capsize=0, label=f"{n}",
        )  # fmt: skip
    for other in found.layers[0].error if not found.is_gaussian else ():
        if other != curve:
            middle = len(found.sizes) // 2
            values = [layer.error[other].mean[middle] for layer in found.layers]
            axis.plot(
                layers, values, "--", color=colours[middle], linewidth=GUIDE,
                label=f"{found.sizes[middle]}, {other}",
            )  # fmt: skip
    logarithmic(axis, "y")
    what = "token against its limit" if found.is_gaussian else f"tokens, {curve} samples"
    _by_layer(axis, "relative error, 95% interval", f"error of the {what}")
    axis.legend(title="n", fontsize=NOTE - 0.5, title_fontsize=NOTE, ncols=2, columnspacing=0.8)


def draw_layer_exponents(axis: Any, found: Deep) -> None:
    """Exponents by layer with 95% intervals; hollow: not to be trusted."""
    for curve in found.layers[0].fit:
        by_layer = [(layer.layer, layer.fit[curve]) for layer in found.layers]
        known = [(at, fit) for at, fit in by_layer if fit is not None]
        if not known:
            continue
        fits = [fit for _, fit in known]
        at = np.array([at for at, _ in known]) + 0.18 * _shift(curve)
        values = [fit.exponent for fit in fits]
        error_bars(
            axis, at, values, _ends(values, [fit.interval for fit in fits]),
            hollow=[not fit.trusted for fit in fits], color=COLOURS[curve],
            marker=MARKERS.get(curve, "o"), markersize=2.8, capsize=0,
        )  # fmt: skip
        axis.plot(
            [], [], MARKERS.get(curve, "o"), color=COLOURS[curve], label=NAMES.get(curve, curve)
        )
    axis.axhline(0.5, color=GREY, linestyle=":", linewidth=GUIDE)
    axis.axhline(0.0, color=BLACK, linewidth=0.5)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.12 * (high - low))  # room for the legend
    _by_layer(axis, r"exponent $\beta$", "exponents (hollow: not to be trusted)")
    axis.legend(fontsize=NOTE, ncols=3, loc="upper center", columnspacing=0.8, handletextpad=0.2)


def draw_growth(axis: Any, found: Deep) -> None:
    """Ratio of the error to that of the layer before, at the largest n."""
    for curve in found.layers[0].growth:
        steps = [(layer.layer, layer.growth[curve][-1]) for layer in found.layers]
        there = [(i, step) for i, step in steps if step is not None]
        if there:
            values = [step.factor for _, step in there]
            error_bars(
                axis, [i + 0.18 * _shift(curve) for i, _ in there], values,
                _ends(values, [step.interval for _, step in there]), color=COLOURS[curve],
                marker=MARKERS.get(curve, "o"), markersize=2.8, capsize=0,
                label=NAMES.get(curve, curve),
            )  # fmt: skip
    axis.axhline(1.0, color=BLACK, linewidth=0.5)
    _by_layer(axis, "growth factor", f"error / error one layer before, n = {found.sizes[-1]}")
    if len(found.layers) > 1:
        axis.legend(fontsize=NOTE)


def draw_limit(axis: Any, found: Deep) -> None:
    """Deviations of the measured limit from the recursion, in standard errors."""
    limits = [limit for limit in found.limit if limit.standard_error is not None]
    for limit in limits:
        scores = limit.deviations
        axis.plot(
            np.full(len(scores), limit.layer), scores, ".", color=COLOURS["map"], markersize=2
        )
    if limits:
        at = [limit.layer for limit in limits]
        for side in (1, -1):
            bound = [side * (limit.bound or np.nan) for limit in limits]
            words = "95% bound of the largest" if side > 0 else None
            axis.plot(at, bound, color=GREY, linewidth=GUIDE, label=words)
        low, high = axis.get_ylim()
        axis.set_ylim(low, high + 0.15 * (high - low))
        axis.legend(fontsize=NOTE, loc="upper right")
    axis.axhline(0.0, color=BLACK, linewidth=0.5)
    _by_layer(axis, "standard errors", "measured limit minus recursion")


def draw_end(axis: Any, found: Deep) -> None:
    """Divergence of the model's end from dense against the keys drawn, all heads sampled."""
    variants = list(found.layers[0].error)
    _draw_damage(axis, found, {name: name for name in variants})
    axis.set_title("end of the model, all heads sampled")


def draw_terciles(axis: Any, found: Deep) -> None:
    """The same with only a third of the heads sampled, by horizon."""
    terciles = found.terciles
    assert terciles is not None  # or the figure is not offered
    names = {
        name: f"{name} H ({_shown(about.horizon_min)} to {_shown(about.horizon_max)})"
        for name, about in terciles.heads.items()
        if name in _terciles(found)
    }
    _draw_damage(axis, found, names)
    axis.set_title(f"one third of the heads sampled, {terciles.keys}")


def _shown(horizon: float | None) -> str:
    return "?" if horizon is None else f"{horizon:.1f}"


def _terciles(found: Deep) -> list[str]:
    """Terciles that were measured."""
    if found.terciles is None:
        return []
    return [name for name in TERCILES if name in found.end.damage]


def _draw_damage(axis: Any, found: Deep, variants: dict[str, str]) -> None:
    curves, is_kl = found.end.damage, bool(found.end.kl)
    for variant, words in variants.items():
        if variant not in curves:
            continue
        values, ends = _damage(curves[variant], is_kl)
        fit = curves[variant].fit
        slope = "" if fit is None else rf": $n^{{-{fit.exponent:.2f}}}$"
        error_bars(
            axis, found.sizes, values, _ends(values, ends), color=COLOURS[variant],
            marker=MARKERS.get(variant, "o"), linestyle="-", label=f"{words}{slope}",
        )  # fmt: skip
    logarithmic(axis, "x")
    logarithmic(axis, "y")
    label = "KL to dense (nats per token)" if is_kl else "1 - cosine to dense"
    finish(axis, "keys drawn n", label)
    axis.legend(fontsize=NOTE)


def _damage(curve: Curve, is_kl: bool) -> tuple[list[float], list[Any]]:
    """What falls to 0 as n grows, with its intervals."""
    if is_kl:
        return list(curve.mean), list(curve.interval)
    ends = [None if end is None else [1 - end[1], 1 - end[0]] for end in curve.interval]
    return [1 - value for value in curve.mean], ends


def _ends(values: Any, ends: list[Any]) -> Any:
    """Ends of intervals, [2, points]; ``nan`` where there is none.

    A lower end at or below 0 is cut just above it, for logarithmic axes.
    """
    known = [(None, None) if end is None else tuple(end) for end in ends]
    low, high = np.array(known, dtype=np.float64).reshape(-1, 2).T
    value = np.asarray(values, dtype=np.float64)
    return [np.where(value > 0, np.maximum(low, 0.05 * value), low), high]


def _shift(curve: str) -> int:
    """Which way points of a curve are moved, so that bars do not hide each other."""
    return {"map": -1, "independent": -1, "shared": 1, "cov": 1}.get(curve, 0)


def _by_layer(axis: Any, ylabel: str, title: str) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    finish(axis, "layer", ylabel, title)


draw_errors_figure = single(draw_layer_errors)
draw_exponents_figure = single(draw_layer_exponents)
draw_growth_figure = single(draw_growth)
draw_limit_figure = single(draw_limit)
draw_end_figure = single(draw_end)
draw_terciles_figure = single(draw_terciles)
