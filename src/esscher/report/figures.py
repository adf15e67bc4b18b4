"""Figures with matplotlib, one style for all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from esscher.errors import InputError
from esscher.sweep.direct import DirectErrors
from esscher.theory import Prediction

#: Okabe and Ito's palette, distinguishable for colour-blind readers, one colour per curve.
COLOURS = {
    "map": "#0072B2",
    "mean": "#D55E00",
    "mean_rms": "#E69F00",
    "cov": "#009E73",
    "cov_rms": "#56B4E9",
}
LABELS = {
    "map": "map, rms",
    "mean": "mean, expected norm",
    "mean_rms": "mean, rms",
    "cov": "covariance, expected norm",
    "cov_rms": "covariance, rms",
}
FORMATS = (".png", ".svg", ".pdf")


def save_prediction_figure(
    prediction: Prediction, simulated: DirectErrors | None, path: Path
) -> None:
    """Draw predicted error curves and their local exponents; the format follows the suffix."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--figure {path}: the name must end in {', '.join(FORMATS)}")
    if not prediction.curves:
        raise InputError("there is no curve to draw: the head has no infinite-token limit")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.2), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    head, n = prediction.head, prediction.sizes
    for name, curve in prediction.curves.items():
        left.loglog(n, curve.error, color=COLOURS[name], label=LABELS[name])
        if len(n) > 1:
            middle = np.sqrt(n[1:] * n[:-1])
            right.semilogx(middle, curve.local_slopes(), color=COLOURS[name])
    if simulated is not None:
        value, error = simulated.map_rms()
        left.errorbar(
            simulated.sizes,
            value,
            yerr=2 * error,
            fmt="o",
            markersize=4,
            color="black",
            label="map, simulated (2 s.e.)",
        )
    drawn = set()
    for name in prediction.curves:
        beta = prediction.asymptotic(name)
        if beta not in drawn:
            right.axhline(beta, color=COLOURS[name], linestyle=":", linewidth=1.2)
            drawn.add(beta)
    reference = prediction.exponents
    assert reference is not None
    for line, label in (
        (reference.paper_reference, "published reference"),
        (reference.paper_bound, "published bound"),
    ):
        right.axhline(line, color="grey", linestyle="--", linewidth=1)
        right.annotate(
            label,
            (0.985, line),
            xycoords=right.get_yaxis_transform(),
            textcoords="offset points",
            xytext=(0, 3),
            ha="right",
            fontsize=7,
            color="grey",
        )
    for axis in (left, right):
        if n[0] < prediction.burn_in < n[-1]:
            axis.axvline(prediction.burn_in, color="grey", linewidth=0.8, alpha=0.7)
        axis.set_xlabel("tokens n")
        axis.grid(alpha=0.25)
    if n[0] < prediction.burn_in < n[-1]:
        left.annotate(
            "burn-in",
            (prediction.burn_in, 0.02),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(3, 0),
            fontsize=7,
            color="grey",
        )
    left.set_ylabel("error")
    left.set_title("Predicted error", fontsize=10)
    left.legend(fontsize=7, frameon=False)
    right.set_ylabel("local exponent")
    right.set_title("Local exponents (dotted: asymptotic)", fontsize=10)
    right.set_ylim(bottom=min(0.0, right.get_ylim()[0]))
    figure.suptitle(
        f"{type(head.law).__name__ if hasattr(head, 'law') else 'Head'} tokens, "
        f"d = {head.key_dim}, H = {head.horizon:.3g}, F = {head.frobenius:.3g}, "
        f"queries: {prediction.queries}",
        fontsize=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
