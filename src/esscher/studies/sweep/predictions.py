"""What theory says about the very sizes that a sweep measures, scale by scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from esscher.core.codec import Record
from esscher.core.errors import UndefinedError
from esscher.math.heads import ArrayHead, Head, WeightHead
from esscher.math.theory import Curve, exponents, log_burn_in, map_curve, moment_curves
from esscher.math.theory.cloud import largest_size, law_curves
from esscher.math.theory.curve import bounded_exponents
from esscher.math.theory.gaussian_tables import Spline
from esscher.runs.folder import CellRun
from esscher.studies.sweep.measure import METRICS

if TYPE_CHECKING:
    from esscher.studies.sweep.study import SweepStudy

#: Name of the cell of the predictions.
PREDICTIONS = "predictions"
#: Sizes at which curves are computed; they are so smooth that the others can be interpolated.
NODES = 6
#: Larger sizes at which they are computed too, in units of the largest one: where a sweep's curve
#: goes on. The clouds that are drawn of other laws are too small for them.
BEYOND = 4.0 ** np.arange(1, 7)
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
    beyond_sizes, beyond
        Larger numbers of tokens, and predicted errors there, by metric; empty where none are
        predicted.
    """

    horizon: float
    errors: dict[str, tuple[float, ...]]
    sharp: dict[str, float]
    paper_reference: float
    paper_bound: float
    log_burn_in: float
    notes: tuple[str, ...]
    beyond_sizes: tuple[float, ...] = ()
    beyond: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)

    def curve(
        self, metric: str, sizes: Sequence[int]
    ) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Numbers of tokens, the sweep's and larger ones, and predicted errors; None without."""
        if metric not in self.errors:
            return None
        more = self.beyond.get(metric, ())
        n = (*map(float, sizes), *(self.beyond_sizes if more else ()))
        return n, (*self.errors[metric], *more)


def predict_scale(head: Head, sizes: Sequence[int], queries: str, seed: int) -> ScalePrediction:
    """Predictions for one head.

    For tokens that are not Gaussian the curves come from clouds of them (``law_curves``), if the
    sizes are not too large for that; asymptotic exponents are 1/2 if the tokens are bounded, else
    those of Gaussian tokens of the same horizon.
    """
    bounded = isinstance(head, WeightHead) and bool(np.isfinite(head.law.support_radius))
    asymptotic = bounded_exponents(head.horizon) if bounded else exponents(head.horizon)
    notes = []
    n = np.asarray(sizes, dtype=np.float64)
    nodes = n[np.unique(np.linspace(0, len(n) - 1, NODES).round().astype(int))]
    larger = n[-1] * BEYOND
    curves: dict[str, Curve] = {}
    if log_burn_in(head) > FROZEN * np.log(n[-1]):
        notes.append("every query is frozen at these sizes by far: no curve is predicted")
    elif not head.is_gaussian:
        larger = larger if isinstance(head, ArrayHead) else larger[:0]
        if n[-1] > largest_size(head):
            notes.append(f"no curve is predicted beyond n = {largest_size(head):,.0f}: {CLOUDS}")
        else:
            drawn = law_curves(head, np.append(nodes, larger), queries, seed)
            curves = {"map": drawn["map"], "mean": drawn["mean"], "cov": drawn["cov_rms"]}
            notes.append(CLOUDS)
    else:
        try:
            curves["map"] = map_curve(head, np.append(nodes, larger), queries, seed)
            if nodes[0] >= 4:
                moments = moment_curves(head, np.append(nodes, larger), queries, seed)
                curves["mean"] = moments["mean"]
                curves["cov"] = moments["cov"] if "cov" in moments else moments["cov_rms"]
        except UndefinedError as error:
            notes.append(str(error))
    errors = {}
    for metric, curve in curves.items():
        known = curve.error[: len(nodes)]
        if len(nodes) < len(n):  # interpolated in log-log coordinates
            known = np.exp(Spline(np.log(nodes), np.log(known))(np.log(n)))
        errors[metric] = tuple(float(error) for error in known)
    return ScalePrediction(
        horizon=head.horizon,
        errors=errors,
        sharp={metric: float(getattr(asymptotic, name)) for metric, name in SHARP.items()},
        paper_reference=asymptotic.paper_reference,
        paper_bound=asymptotic.paper_bound,
        log_burn_in=log_burn_in(head),
        notes=tuple(notes),
        beyond_sizes=tuple(larger.tolist()) if curves else (),
        beyond={
            metric: tuple(curve.error[len(nodes) :].tolist()) for metric, curve in curves.items()
        }
        if len(larger)
        else {},
    )


class Predictions(Record, frozen=True, kw_only=True, tag_field="kind", tag="predictions"):
    """Predictions of theory, one entry per scale."""

    scales: tuple[ScalePrediction, ...]


def stored_predictions(run: CellRun, study: SweepStudy) -> tuple[ScalePrediction, ...] | None:
    """Return the predictions that a run has stored, if it has.

    Raises
    ------
    InputError
        If they are not for the scales and sizes of this sweep.
    """
    cell = run.read(PREDICTIONS)
    if cell is None:
        return None
    about, scales, sizes = cell.about, len(study.alpha), len(study.sizes)
    if not isinstance(about, Predictions) or len(about.scales) != scales:
        raise run.damaged(PREDICTIONS, f"it is not of {scales} scales")
    for scale in about.scales:
        larger = len(scale.beyond_sizes)
        if any(len(errors) != sizes for errors in scale.errors.values()):
            raise run.damaged(PREDICTIONS, f"it is not of {sizes} sizes")
        if any(len(errors) != larger for errors in scale.beyond.values()):
            raise run.damaged(PREDICTIONS, f"it is not of {larger} sizes beyond the sweep's")
        if any(metric not in scale.sharp for metric in METRICS):
            raise run.damaged(PREDICTIONS, f"sharp lacks some of {', '.join(METRICS)}")
    return about.scales
