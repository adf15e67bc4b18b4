"""What theory predicts for a head, drawn: errors against n, and their local exponents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from esscher.core.errors import InputError
from esscher.math.simulation import DirectErrors, SimulatedMap
from esscher.math.theory import Prediction
from esscher.show.files import check_format, write_figure
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREEN,
    GREY,
    GUIDE,
    NOTE,
    ORANGE,
    SKY,
    VERMILION,
    columns,
    error_bars,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    panels,
    styled,
)

COLOURS = {
    "map": BLUE,
    "mean": VERMILION,
    "mean_rms": ORANGE,
    "cov": GREEN,
    "cov_rms": SKY,
}
LABELS = {
    "map": "map, rms",
    "mean": "mean, expected norm",
    "mean_rms": "mean, rms",
    "cov": "covariance, expected norm",
    "cov_rms": "covariance, rms",
}


def save_prediction_figure(
    prediction: Prediction, simulated: DirectErrors | SimulatedMap | None, path: Path
) -> None:
    """Draw predicted error curves and their local exponents; the format follows the suffix."""
    check_format(path, "--figure")
    write_figure(draw_prediction(prediction, simulated=simulated), path)


@styled
def draw_prediction(
    prediction: Prediction,
    title: str | None = None,
    *,
    width: float = DOUBLE,
    simulated: DirectErrors | SimulatedMap | None = None,
) -> Figure:
    """Draw predicted errors against n beside their local exponents.

    Parameters
    ----------
    prediction
        What theory says; with sizes.
    title
        Above everything; None: the head; empty: none.
    width
        Of the figure, in inches.
    simulated
        Errors of a simulation, drawn with two standard errors.
    """
    if not prediction.curves:
        raise InputError(
            "there is no curve to draw: the head has no infinite-token limit, or no sizes were "
            "given"
        )
    across = columns(width, 2, 2.6)
    name = _title(prediction) if title is None else title
    figure = new_figure(width, 0.8 + 2.5 * (2 // across), name)
    left, right = panels(figure, 2, across)
    n = prediction.sizes
    for metric, curve in prediction.curves.items():
        # the two kinds of mean often lie on one line: dashes show both
        style = "--" if metric.endswith("_rms") else "-"
        left.plot(n, curve.error, style, color=COLOURS[metric], label=LABELS[metric])
        if len(n) > 1:
            middle = np.sqrt(n[1:] * n[:-1])
            right.plot(middle, curve.local_slopes(), style, color=COLOURS[metric])
    if simulated is not None:
        value, error = simulated.map_rms()
        error_bars(
            left, simulated.sizes, value, [value - 2 * error, value + 2 * error], color=BLACK,
            label="map, simulated (2 s.e.)",
        )  # fmt: skip
    for axis in (left, right):
        logarithmic(axis, "x")
    logarithmic(left, "y")
    _draw_asymptotic(right, prediction)
    if n[0] < prediction.burn_in < n[-1]:
        for axis in (left, right):
            axis.axvline(prediction.burn_in, color=GREY, linewidth=GUIDE, alpha=0.7)
        left.annotate(
            "burn-in", (prediction.burn_in, 0.02), xycoords=("data", "axes fraction"),
            textcoords="offset points", xytext=(3, 0), fontsize=NOTE, color=GREY,
        )  # fmt: skip
    finish(left, "tokens n", "error", "predicted error")
    finish(right, "tokens n", "local exponent", "local exponents (dotted: asymptotic)")
    right.set_ylim(bottom=min(0.0, right.get_ylim()[0]))
    legend_below(figure, left.get_legend_handles_labels(), width, most=3)
    return figure


def _draw_asymptotic(axis: Any, prediction: Prediction) -> None:
    drawn: set[float] = set()
    for name in prediction.curves:
        beta = prediction.asymptotic(name)
        if beta not in drawn:
            axis.axhline(beta, color=COLOURS[name], linestyle=":", linewidth=GUIDE)
            drawn.add(beta)
    reference = prediction.exponents
    assert reference is not None
    for line, label in (
        (reference.paper_reference, "published reference"),
        (reference.paper_bound, "published bound"),
    ):
        axis.axhline(line, color=GREY, linestyle="--", linewidth=GUIDE)
        axis.annotate(
            label, (0.985, line), xycoords=axis.get_yaxis_transform(),
            textcoords="offset points", xytext=(0, 2), ha="right", fontsize=NOTE, color=GREY,
        )  # fmt: skip


def _title(prediction: Prediction) -> str:
    head = prediction.head
    law = type(head.law).__name__ if hasattr(head, "law") else "Head"
    return (
        f"{law} tokens, d = {head.key_dim}, H = {head.horizon:.3g}, F = {head.frobenius:.3g}, "
        f"queries: {prediction.queries}"
    )
