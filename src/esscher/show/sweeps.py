"""A sweep in pictures: errors with fitted laws and predicted curves, exponents by horizon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from esscher.core.errors import InputError
from esscher.show.exponents import draw_exponents, draw_study
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREY,
    GUIDE,
    METRIC_NAMES,
    NOTE,
    VERMILION,
    columns,
    error_bars,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    panels,
    shades,
    styled,
)
from esscher.studies.sweep import Sweep

#: Laws of bounded tokens, whose asymptotic exponents are 1/2, and laws without a limit.
BOUNDED, WITHOUT_LIMIT = ("sphere", "cube", "signs", "finite"), ("laplace", "student")


def title_of_sweep(curve: Sweep, title: str | None = None) -> str:
    """What was measured, unless a title is given."""
    if title is not None:
        return title
    head = curve.study.head_record
    horizons = f"H = {curve.horizons[0]:.3g}"
    if len(curve.horizons) > 1:
        horizons = f"H = {curve.horizons.min():.3g} to {curve.horizons.max():.3g}"
    state = "" if curve.complete else " (not complete)"
    law = head.tokens
    return (
        f"{law[:1].upper()}{law[1:]} tokens, d = {head.key_dim}, {horizons}, "
        f"{curve.replicates} replicates{state}"
    )


def rates(curve: Sweep) -> pd.DataFrame:
    """Fitted exponents beside predicted ones, one row per scale and metric."""
    if not curve.has_fits:
        raise InputError("the sweep has no rates: it takes a replicate and at least 2 sizes")
    rows = []
    for s, horizon in enumerate(curve.horizons):
        for metric in METRIC_NAMES:
            rate = curve.rate(metric, s)
            low, high = rate.interval
            rows.append(
                {
                    "H": float(horizon),
                    "metric": metric,
                    "exponent": rate.exponent,
                    "low": low,
                    "high": high,
                    "predicted": np.nan if rate.predicted is None else rate.predicted,
                    "trusted": rate.trusted,
                }
            )
    return pd.DataFrame(rows)


@styled
def draw_curve(curve: Sweep, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw errors against n with 95% intervals, fitted laws (solid) and predicted curves (dashed).

    With several horizons each has a colour; with one, the fit has its 95% band.
    """
    rates(curve)
    across = columns(width, 3, 1.9)
    rows, several = -(-3 // across), len(curve.horizons) > 1
    name = title_of_sweep(curve, title)
    figure = new_figure(width, 0.9 + 2.3 * rows, name)
    axes = panels(figure, 3, across)
    for i, (axis, metric) in enumerate(zip(axes, METRIC_NAMES, strict=True)):
        for s, colour in enumerate(shades(len(curve.horizons)) if several else [BLUE]):
            _draw_rate(axis, curve, metric, s, colour, band=not several)
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        finish(axis, "tokens n", "error" if i % across == 0 else "", METRIC_NAMES[metric])
    _legend(figure, axes[0], curve, width, several)
    return figure


def _draw_rate(
    axis: Any, curve: Sweep, metric: str, scale: int, colour: Any, *, band: bool
) -> None:
    rate = curve.rate(metric, scale)
    known = np.isfinite(rate.lower) & np.isfinite(rate.upper) & (rate.lower > 0)
    ends = np.where(known, [rate.lower, rate.upper], np.nan)
    error_bars(
        axis, rate.sizes, rate.errors, ends, color=colour if not band else BLACK,
        hollow=np.full(len(rate.sizes), not rate.trusted), label=f"{curve.horizons[scale]:.3g}",
    )  # fmt: skip
    fine = np.geomspace(rate.sizes[0], rate.sizes[-1], 100)
    line = rate.constant * fine**-rate.exponent
    axis.plot(fine, line, color=colour)
    if curve.predictions and metric in curve.predictions[scale].errors:
        predicted = curve.predictions[scale].errors[metric]
        shade = VERMILION if band else colour
        axis.plot(curve.sizes, predicted, "--", color=shade, linewidth=GUIDE)
    if not band:
        return
    x = np.log(fine)
    a, cross, b = rate.covariance[0, 0], rate.covariance[0, 1], rate.covariance[1, 1]
    spread = rate.critical * np.sqrt(np.maximum(a - 2 * x * cross + x * x * b, 0.0))
    if np.all(np.isfinite(spread)):
        low, high = line * np.exp(-spread), line * np.exp(spread)
        axis.fill_between(fine, low, high, color=colour, alpha=0.2, linewidth=0)
    if rate.law != "power":
        bent = rate.selection.fits[rate.law].error(fine)
        axis.plot(fine, bent, ":", color=GREY, label=f"{rate.law} law")
    low, high = rate.interval
    words = [rf"$\beta$ = {rate.exponent:.3f} ({low:.3f}, {high:.3f})"]
    if rate.predicted is not None:
        words.append(f"predicted {rate.predicted:.3f}")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** 0.2)  # room for the exponents
    axis.text(
        0.97, 0.97, "\n".join(words), transform=axis.transAxes, ha="right", va="top", fontsize=NOTE
    )


def _legend(figure: Figure, axis: Any, curve: Sweep, width: float, several: bool) -> None:
    handles, labels = axis.get_legend_handles_labels()
    points = [h for h, label in zip(handles, labels, strict=True) if not label.endswith("law")]
    names = [label for label in labels if not label.endswith("law")]
    names = [f"H = {name}" for name in names] if several else ["measured, 95% interval"]
    (fitted,) = axis.plot([], [], color=GREY if several else BLUE)
    points, names = [*points, fitted], [*names, "fitted law (hollow: not to be trusted)"]
    if curve.predictions:
        (dashed,) = axis.plot(
            [], [], "--", color=GREY if several else VERMILION, linewidth=GUIDE
        )  # fmt: skip
        points, names = [*points, dashed], [*names, "predicted"]
    legend_below(figure, (points, names), width, most=5)


@styled
def draw_sweep_exponents(
    curve: Sweep, title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw fitted exponents against the horizon beside predicted, asymptotic and published ones."""
    table = rates(curve)
    across = columns(width, 3, 1.9)
    rows = -(-3 // across)
    figure = new_figure(width, 0.9 + 2.2 * rows, title_of_sweep(curve, title))
    axes = panels(figure, 3, across)
    for i, (axis, metric) in enumerate(zip(axes, METRIC_NAMES, strict=True)):
        draw_exponents(axis, table[table["metric"] == metric], metric, **_asymptotic(curve))
        axis.set_title(METRIC_NAMES[metric])
        axis.set_ylabel(r"exponent $\beta$" if i % across == 0 else "")
    legend_below(figure, axes[0].get_legend_handles_labels(), width, most=3)
    return figure


@styled
def draw_sweep(curve: Sweep, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw errors above and exponents below, in the layout of the published study."""
    name = title_of_sweep(curve, title)
    return draw_study(curve, rates(curve), name, width=width, **_asymptotic(curve))


def _asymptotic(curve: Sweep) -> dict[str, Any]:
    law = curve.law
    return {"bounded": law in BOUNDED, "asymptotic": law not in WITHOUT_LIMIT}
