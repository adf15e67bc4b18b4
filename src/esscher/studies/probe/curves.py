"""The curves of a head as rows of a chart: errors as measured, fitted and predicted.

Errors are relative to the root mean square norm of the head's outputs, that of the covariance to
its square.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.show.numbers import between
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLUE, GREEN, VERMILION, limits
from esscher.studies.probe.records import ProbeHead
from esscher.studies.probe.result import Probe

#: Errors, in the order of the panels.
METRICS = {"mean": "mean output", "map": "map (rms)", "cov": "covariance"}
COLOURS = {"mean": VERMILION, "map": BLUE, "cov": GREEN}
METRIC = Series("metric", tuple(METRICS.values()), colours=tuple(COLOURS.values()),
                shapes=("square", "circle", "triangle-up"))  # fmt: skip
#: Standard errors to each side of a 95% interval.
NORMAL = 1.96


def measured_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return the errors at all sizes, with intervals at those of the fit."""
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
    fit = head.fit[metric]
    return (
        [] if fit.constant is None else _straight(found, head, metric, fit.constant, fit.exponent)
    )


def predicted_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return the map error; for the others a slope through the middle of the measured points."""
    if metric == "map":
        about, scale = head.predicted_map, _scale(head, metric)
        return [
            {"metric": METRICS[metric], "n": n, "error": error / scale,
             "low": (error - NORMAL * noise) / scale, "high": (error + NORMAL * noise) / scale}
            for n, error, noise in zip(found.sizes, about.error, about.standard_error, strict=True)
        ]  # fmt: skip
    mean, slope = head.curve[metric].mean, head.predicted.khat
    if min(mean) <= 0:
        return []
    middle = np.mean(np.log(mean) + slope * np.log(found.sizes))
    return _straight(found, head, metric, float(np.exp(middle)), slope)


def _straight(
    found: Probe, head: ProbeHead, metric: str, constant: float, exponent: float
) -> list[dict[str, Any]]:
    """A power law: its ends, between which it is straight on logarithmic axes."""
    scale = _scale(head, metric)
    return [
        {"metric": METRICS[metric], "n": n, "error": constant * n**-exponent / scale}
        for n in (found.sizes[0], found.sizes[-1])
    ]


def _scale(head: ProbeHead, metric: str) -> float:
    return head.norm ** (2 if metric == "cov" else 1) or 1.0


def exponent_of(head: ProbeHead, metric: str) -> str:
    """Return the exponent with its interval, in words."""
    fit = head.fit[metric]
    return f"β = {between(fit.exponent, fit.interval, 'd3')}"


def axes_of(rows: list[dict[str, Any]], lines_below: int) -> tuple[Axis, Axis]:
    """Return the axes of tokens and of errors; below the errors is room for lines of text."""
    errors = [row["error"] for row in rows] + [row.get("high") for row in rows]
    low, high = limits(errors, log=True)
    low *= (low / high) ** (0.09 * lines_below)
    x = Axis("n", "tokens n", log=True, limits=limits([row["n"] for row in rows], log=True))
    return x, Axis("error", "relative error", log=True, limits=(low, high))
