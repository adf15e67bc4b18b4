"""The curves of a head as rows of a chart: errors as measured, fitted and predicted.

Errors are relative to the root mean square norm of the head's outputs, that of the covariance to
its square.
"""

from __future__ import annotations

from typing import Any

from esscher.show.chart import Axis, Series
from esscher.show.numbers import between
from esscher.show.theme import BLUE, GREEN, VERMILION, limits
from esscher.studies.probe.records import NORMAL, ProbeHead
from esscher.studies.probe.result import Probe

#: Errors, in the order of the panels.
METRICS = {"mean": "mean output", "map": "map (rms)", "cov": "covariance"}
COLOURS = {"mean": VERMILION, "map": BLUE, "cov": GREEN}
METRIC = Series("metric", tuple(METRICS.values()), colours=tuple(COLOURS.values()),
                shapes=("square", "circle", "triangle-up"))  # fmt: skip


def measured_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return the errors at all sizes, with intervals at those of the fit."""
    if head.fit is None or head.curve is None:
        return []
    fit, scale = head.fit[metric], _scale(head, metric)
    ends = {
        n: {"low": low / scale, "high": high / scale}
        for n, low, high in zip(fit.sizes, fit.lower, fit.upper, strict=True)
        if low is not None and high is not None
    }
    return [
        {"metric": METRICS[metric], "n": n, "error": mean / scale, "low": None, "high": None,
         "hollow": not fit.trusted} | ends.get(n, {})
        for n, mean in zip(found.sizes, head.curve[metric].mean, strict=True)
    ]  # fmt: skip


def fitted_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return the fitted law; nothing without one."""
    fit = None if head.fit is None else head.fit[metric]
    if fit is None or fit.constant is None:
        return []
    scale = _scale(head, metric)
    return [
        {"metric": METRICS[metric], "n": n, "error": fit.constant * n**-fit.exponent / scale}
        for n in (found.sizes[0], found.sizes[-1])  # between which it is straight
    ]


def predicted_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return what one pass predicts, with its 95% interval."""
    about, scale = head.predicted_error[metric], _scale(head, metric)
    return [
        {"metric": METRICS[metric], "n": n, "error": error / scale,
         "low": max(error - NORMAL * noise, error / 10) / scale,
         "high": (error + NORMAL * noise) / scale}
        for n, error, noise in zip(found.sizes, about.error, about.standard_error, strict=True)
        if error > 0
    ]  # fmt: skip


def _scale(head: ProbeHead, metric: str) -> float:
    return head.norm ** (2 if metric == "cov" else 1) or 1.0


def exponent_of(head: ProbeHead, metric: str) -> str:
    """Return the exponent with its interval, in words."""
    value, interval = head.exponent(metric)
    if value is None:
        return ""
    predicted = " (predicted)" if head.fit is None else ""
    return f"β = {between(value, interval, 'd3')}{predicted}"


def axes_of(rows: list[dict[str, Any]], lines_below: int) -> tuple[Axis, Axis]:
    """Return the axes of tokens and of errors; below the errors is room for lines of text."""
    errors = [row["error"] for row in rows] + [row.get("high") for row in rows]
    low, high = limits(errors, log=True)
    low *= (low / high) ** (0.09 * lines_below)
    x = Axis("n", "tokens n", log=True, limits=limits([row["n"] for row in rows], log=True))
    return x, Axis("error", "relative error", log=True, limits=(low, high))
