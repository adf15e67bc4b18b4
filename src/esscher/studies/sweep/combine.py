"""From the errors of replicates to rates, and what theory predicts at the very same sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from esscher.core.errors import UndefinedError
from esscher.core.validation import Array
from esscher.math.heads import ArrayHead, Head, WeightHead
from esscher.math.statistics import LEVEL, Rate, fit_rate
from esscher.math.theory import Curve, exponents, log_burn_in, map_curve, moment_curves
from esscher.math.theory.cloud import largest_size, law_curves
from esscher.math.theory.gaussian_tables import Spline
from esscher.math.theory.rates import bounded_exponents
from esscher.runs.study import Setup
from esscher.studies.sweep.study import (
    LIMIT,
    METRICS,
    PREDICTIONS,
    LimitMethod,
    Predictions,
    SweepData,
    SweepSettings,
)

#: Sizes at which curves are computed; they are so smooth that the others can be interpolated.
NODES = 6
#: Curves are left out when the burn-in exceeds the largest size by this power: nothing moves there,
#: and their integrals are expensive.
FROZEN = 100.0
#: Exponent of a horizon that belongs to each metric of a sweep.
SHARP = {"mean": "mean", "cov": "cov", "map": "map_rms"}
#: Note on curves of tokens that are not Gaussian.
CLOUDS = "curves are predicted from clouds of these tokens"
#: Standard errors to each side of a 95% interval.
NORMAL = 1.96


def predict(heads: Sequence[Head], settings: SweepSettings) -> Predictions:
    """Return predictions for a head at every alpha.

    For tokens that are not Gaussian the curves come from clouds of them (``law_curves``), if the
    sizes are not too large for that; asymptotic exponents are 1/2 if the tokens are bounded, else
    those of Gaussian tokens of the same horizon.
    """
    sizes = np.array(settings.predicted_sizes, dtype=np.float64)
    cell = Predictions.new(metric=METRICS, alpha=settings.alpha, tokens=settings.predicted_sizes)
    errors = np.full((len(METRICS), len(heads), len(sizes)), np.nan)
    asymptotic, notes = np.empty((len(METRICS), len(heads))), []
    for s, head in enumerate(heads):
        bounded = isinstance(head, WeightHead) and bool(np.isfinite(head.law.support_radius))
        conjectured = bounded_exponents(head.horizon) if bounded else exponents(head.horizon)
        asymptotic[:, s] = [getattr(conjectured, SHARP[metric]) for metric in METRICS]
        n, larger = np.split(sizes, [len(settings.sizes)])
        nodes = n[np.unique(np.linspace(0, len(n) - 1, NODES).round().astype(int))]
        curves: dict[str, Curve] = {}
        note = ""
        if log_burn_in(head) > FROZEN * np.log(n[-1]):
            note = "every query is frozen at these sizes by far: no curve is predicted"
        elif not head.is_gaussian and n[-1] > largest_size(head):
            note = f"no curve is predicted beyond n = {largest_size(head):,.0f}: {CLOUDS}"
        elif not head.is_gaussian:
            # clouds of a law are too small for more tokens than those of the sweep
            at = np.append(nodes, larger if isinstance(head, ArrayHead) else [])
            drawn = law_curves(head, at, settings.queries, settings.seed)
            curves = {"map": drawn["map"], "mean": drawn["mean"], "cov": drawn["cov_rms"]}
            note = CLOUDS
        else:
            options = np.append(nodes, larger), settings.queries, settings.seed
            try:
                curves["map"] = map_curve(head, *options)
                if nodes[0] >= 4:
                    moments = moment_curves(head, *options)
                    curves["mean"] = moments["mean"]
                    curves["cov"] = moments["cov"] if "cov" in moments else moments["cov_rms"]
            except UndefinedError as error:
                note = str(error)
        notes.append(note)
        for metric, curve in curves.items():
            known, beyond = np.split(curve.error, [len(nodes)])
            if len(nodes) < len(n):  # interpolated in log-log coordinates
                known = np.exp(Spline(np.log(nodes), np.log(known))(np.log(n)))
            row = errors[METRICS.index(metric), s]
            row[: len(n)], row[len(n) : len(n) + len(beyond)] = known, beyond
    cell.predicted_error, cell.asymptotic, cell.prediction_note = errors, asymptotic, notes
    cell.log_burn_in = [log_burn_in(head) for head in heads]
    return cell


def fit_errors(data: SweepData, metric: str, alpha: float, seed: int, level: float = LEVEL) -> Rate:
    """Fit the rate of one metric at one alpha, with the predicted curve if there is one."""
    at = data.dataset.sel(metric=metric, alpha=alpha)
    errors, sizes = at["replicate_error"].values, at["size"].values
    if np.isnan(at["asymptotic"]):
        return fit_rate(errors, sizes, level=level, seed=seed)
    known = at["predicted_error"].dropna("tokens")
    curve = known.sel(tokens=sizes).values if known.size else None
    burn_in = float(np.exp(min(float(at["log_burn_in"]), 700.0)))
    rate = fit_rate(errors, sizes, burn_in=burn_in, predicted=curve, level=level, seed=seed)
    if curve is None:
        return rate
    whole = tuple(known["tokens"].values.astype(float).tolist()), tuple(known.values.tolist())
    slope = rate.slope_of(curve[np.isin(sizes, rate.sizes)])
    return replace(rate, predicted_curve=whole, predicted=slope)


def has_rate(errors: Array) -> bool:
    """Whether errors [replicate, size] have a rate: most are positive at two sizes at least."""
    return int(np.sum(np.sum(errors > 0, axis=0) > 0.5 * len(errors))) > 1


def combine(setup: Setup[SweepSettings], cells: Mapping[str, xr.Dataset]) -> SweepData:
    """Sum up the errors of all replicates that are there, and fit rates.

    Parameters
    ----------
    setup
        The settings, and the record of the head.
    cells
        The limit, replicates, and predictions.
    """
    settings, head = setup.settings, setup.records["head"]
    replicates = [cell for name, cell in cells.items() if name not in (LIMIT, PREDICTIONS)]
    data = SweepData.new(
        metric=METRICS,
        alpha=settings.alpha,
        replicate=[cell["replicate"].item() for cell in replicates],
        size=settings.sizes,
        tokens=settings.predicted_sizes,
    )
    for name, kind in ((LIMIT, LimitMethod), (PREDICTIONS, Predictions)):
        for variable in kind.variables() if name in cells else ():
            data.dataset[variable.name] = cells[name][variable.name]
    errors = np.concatenate([cell["error"].values for cell in replicates], axis=2)
    data.replicate_error = errors
    data.horizon = horizons = [alpha * head.horizon for alpha in settings.alpha]
    published = [exponents(horizon) for horizon in horizons]
    data.paper_reference = [line.paper_reference for line in published]
    data.paper_bound = [line.paper_bound for line in published]
    data.fill(*(v.name for v in (*LimitMethod.variables(), *Predictions.variables())))

    mean = errors.mean(axis=2)
    noise = np.full_like(mean, np.nan)
    if len(replicates) > 1:
        noise = errors.std(axis=2, ddof=1) / np.sqrt(len(replicates))
    low, high = np.maximum(mean - NORMAL * noise, 0.0), mean + NORMAL * noise
    rates = np.full(errors.shape[:2], None, dtype=object)
    verdicts = rates.copy()
    predicted, floor_share, floor_power = np.full((3, *rates.shape), np.nan)
    for m, metric in enumerate(METRICS):
        for s, alpha in enumerate(settings.alpha):
            if not has_rate(errors[m, s]):
                verdicts[m, s] = ""
                continue
            rates[m, s] = rate = fit_errors(data, metric, alpha, settings.seed)
            used = np.isin(settings.sizes, rate.sizes)
            low[m, s, used], high[m, s, used] = rate.lower, rate.upper
            law = rate.selection
            verdicts[m, s] = law.verdict
            test = law.floor_share, law.power.get("floor")
            if law.verdict == "as predicted" and law.predicted is not None:
                test = law.predicted.floor_share, law.predicted.floor_power
            floor_share[m, s], floor_power[m, s] = test
            predicted[m, s] = np.nan if rate.predicted is None else rate.predicted
    data.error = np.stack([mean, low, high], axis=-1)
    data.fit.put(rates)
    data.verdict, data.predicted = verdicts.astype(str), predicted
    data.floor_share, data.floor_power = floor_share, floor_power
    data.fill()
    return data
