"""What theory says about the very sizes that a sweep measures, scale by scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from esscher.core.codec import Record
from esscher.core.errors import UndefinedError
from esscher.core.validation import Array
from esscher.math.heads import Head, WeightHead
from esscher.math.theory import Curve, exponents, log_burn_in, map_curve, moment_curves
from esscher.math.theory.law_cloud import largest_size, law_curves
from esscher.math.theory.sharp_exponents import bounded_exponents
from esscher.math.theory.spline import Spline
from esscher.studies.sweep.reference import scaled_head

if TYPE_CHECKING:
    from esscher.studies.sweep.study import SweepStudy

#: Sizes at which curves are computed; they are so smooth that the others can be interpolated.
NODES = 6
#: Curves are left out when the burn-in exceeds the largest size by this power: nothing moves there,
#: and their integrals are expensive.
FROZEN = 100.0
#: Exponent of a horizon that belongs to each metric of a sweep.
SHARP = {"mean": "mean", "cov": "cov", "map": "map_rms"}
#: Note on curves of tokens that are not Gaussian.
CLOUDS = "curves are predicted from clouds of these tokens"


class ScalePrediction(Record, frozen=True, kw_only=True):
    """Predictions for one scale of a sweep.

    Attributes
    ----------
    horizon
        H at this scale.
    errors
        Predicted errors at the sweep's sizes, by metric; a metric may be missing.
    sharp
        Asymptotic exponents, by metric.
    paper_reference, paper_bound
        The published line and the published bound.
    log_burn_in
        Natural logarithm of the burn-in, ``F^2 + |tau|^2``.
    notes
        What a reader must know about them.
    """

    horizon: float
    errors: dict[str, tuple[float, ...]]
    sharp: dict[str, float]
    paper_reference: float
    paper_bound: float
    log_burn_in: float
    notes: tuple[str, ...]


def predict_scales(head: Head, study: SweepStudy) -> tuple[ScalePrediction, ...]:
    """Predict errors at the sizes of a sweep, for each of its scales."""
    return tuple(
        predict_scale(scaled_head(head, alpha), study.sizes, study.queries, study.seed)
        for alpha in study.scales
    )


def predict_scale(head: Head, sizes: Sequence[int], queries: str, seed: int) -> ScalePrediction:
    """Predictions for one head.

    For tokens that are not Gaussian the curves come from clouds of them (:mod:`law_cloud`), if the
    sizes are not too large for that; asymptotic exponents are 1/2 if the tokens are bounded, else
    those of Gaussian tokens of the same horizon.
    """
    bounded = isinstance(head, WeightHead) and bool(np.isfinite(head.law.support_radius))
    asymptotic = bounded_exponents(head.horizon) if bounded else exponents(head.horizon)
    notes = []
    n = np.asarray(sizes, dtype=np.float64)
    nodes = n[np.unique(np.linspace(0, len(n) - 1, NODES).round().astype(int))]
    errors: dict[str, tuple[float, ...]] = {}
    if log_burn_in(head) > FROZEN * np.log(n[-1]):
        notes.append("every query is frozen at these sizes by far: no curve is predicted")
    elif not head.is_gaussian:
        if n[-1] > largest_size(head):
            notes.append(f"no curve is predicted beyond n = {largest_size(head):,.0f}: {CLOUDS}")
        else:
            curves = law_curves(head, nodes, queries, seed)
            names = {"map": "map", "mean": "mean", "cov": "cov_rms"}
            errors = {metric: _at(n, curves[name]) for metric, name in names.items()}
            notes.append(CLOUDS)
    else:
        try:
            errors["map"] = _at(n, map_curve(head, nodes, queries, seed))
            if nodes[0] >= 4:
                curves = moment_curves(head, nodes, queries, seed)
                errors["mean"] = _at(n, curves["mean"])
                errors["cov"] = _at(n, curves["cov"] if "cov" in curves else curves["cov_rms"])
        except UndefinedError as error:
            notes.append(str(error))
    return ScalePrediction(
        horizon=head.horizon,
        errors=errors,
        sharp={metric: float(getattr(asymptotic, name)) for metric, name in SHARP.items()},
        paper_reference=asymptotic.paper_reference,
        paper_bound=asymptotic.paper_bound,
        log_burn_in=log_burn_in(head),
        notes=tuple(notes),
    )


def _at(sizes: Array, curve: Curve) -> tuple[float, ...]:
    """A curve at all sizes, interpolated in log-log coordinates."""
    if len(curve.sizes) == len(sizes):
        return tuple(float(error) for error in curve.error)
    spline = Spline(np.log(curve.sizes), np.log(curve.error))
    return tuple(float(error) for error in np.exp(spline(np.log(sizes))))
