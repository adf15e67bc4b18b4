"""``fit_rate``: from replicate errors to an exponent with an honest interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_nonnegative, as_numbers, as_positive, as_sizes
from esscher.math.statistics.laws import linear_design
from esscher.math.statistics.means import LEVEL
from esscher.math.statistics.noise import least_squares_forms, smooth_variances
from esscher.math.statistics.rate import Rate
from esscher.math.statistics.resampling import Resamples, local_slopes, resample
from esscher.math.statistics.selection import select_law
from esscher.math.statistics.trust import Evidence, reasons

#: Summaries of the replicates that can be fitted.
SUMMARIES = ("mean", "median")


def fit_rate(
    errors: ArrayLike,
    sizes: ArrayLike,
    *,
    summary: str = "mean",
    level: float = LEVEL,
    seed: int = 0,
    burn_in: float | None = None,
    resolution: float | None = None,
    predicted: ArrayLike | None = None,
) -> Rate:
    """Fit error ~ C n^-beta to errors measured on independent replicates.

    Weighted least squares of the logarithm of the summary error on ln n. The weights are the
    inverse of its resampled variance, smoothed to a power of n (see ``noise.py``). Intervals come
    from resampling replicates: sizes may share tokens (see ``resampling.py``). What the interval
    covers is the slope, with these weights, of the logarithm of the EXPECTED curve at these sizes;
    where the expected curve bends, that is not its asymptotic exponent.

    Parameters
    ----------
    errors
        Axes [replicate, size]; not negative, ``nan`` at the sizes above the last of a replicate
        that ended early. Sizes at which most errors are exactly 0 are left out of the fit, and the
        result says so.
    sizes
        Strictly increasing numbers of tokens, at least 2 of them.
    summary
        ``"mean"`` of the replicates, or ``"median"``, which is worth more where they are
        heavy-tailed (H > 1).
    level
        Level of the intervals.
    seed
        Seed of the resampling.
    burn_in
        Number of tokens before which the asymptotic constant does not show, if known.
    resolution
        Error that the rounding of the measurement leaves, if known.
    predicted
        Predicted errors at ``sizes``, if known; only the shape of the curve matters. The law is
        then tested against it too, and ``rate.predicted`` is its slope with the weights of the fit.

    Raises
    ------
    InputError
        For arguments that cannot be used; it names the place.
    """
    n = as_sizes(sizes)
    values = _as_errors(errors, n)
    if summary not in SUMMARIES:
        raise InputError(f"summary is {summary!r}; it must be one of {', '.join(SUMMARIES)}")
    if not 0 < as_positive(level, "level") < 1:
        raise InputError(f"level is {level!r}; it must lie between 0 and 1, such as 0.95")
    usable = np.sum(values > 0, axis=0) > 0.5 * np.isfinite(values).sum(axis=0)
    if usable.sum() < 2:
        raise InputError(
            f"errors are positive at {int(usable.sum())} of {len(n)} sizes; a rate needs at least 2"
        )
    used, at = np.ascontiguousarray(values[:, usable]), n[usable]
    expected = None if predicted is None else _as_predicted(predicted, n)[usable]
    resamples = resample(used, at, summary, seed)
    other = resample(used, at, "median" if summary == "mean" else "mean", seed)
    variances = smooth_variances(resamples)
    forms = least_squares_forms(linear_design("power", resamples.log_sizes), variances)
    (log_c, beta), low, high = resamples.intervals(forms, level)
    covariance = forms @ resamples.covariance @ forms.T
    interval = (float(low[1]), float(high[1]))
    selection = select_law(resamples, expected)
    why = reasons(
        Evidence(
            errors=used[np.isfinite(used).all(axis=1)],
            sizes=at,
            left_out=n[~usable],
            summary=summary,
            level=float(level),
            interval=interval,
            resamples=resamples,
            selection=selection,
            burn_in=None if burn_in is None else as_nonnegative(burn_in, "burn_in"),
            resolution=None if resolution is None else as_nonnegative(resolution, "resolution"),
            predicted=expected,
        )
    )
    _, lower, upper = resamples.intervals(np.eye(len(at)), level)
    mean, median = (resamples, other) if summary == "mean" else (other, resamples)
    weights = 1 / variances
    rate = Rate(
        exponent=float(beta),
        interval=interval,
        standard_error=float(resamples.standard_errors(forms)[1]),
        constant=float(np.exp(log_c)),
        constant_interval=(float(np.exp(low[0])), float(np.exp(high[0]))),
        summary=summary,
        level=float(level),
        sizes=at,
        mean=np.exp(mean.log_errors),
        mean_standard_error=_standard_errors(mean),
        median=np.exp(median.log_errors),
        median_standard_error=_standard_errors(median),
        lower=np.exp(lower),
        upper=np.exp(upper),
        weights=weights / weights.sum(),
        local=local_slopes(resamples, level),
        selection=selection,
        trusted=not why,
        reasons=why,
        n_replicates=resamples.n_replicates,
        seed=seed,
        covariance=covariance,
        critical=float(resamples.critical(forms[1:], level)[0]),
        predicted_curve=None if expected is None else (at, expected),
    )
    return rate if expected is None else rate.with_predictions(predicted=rate.slope_of(expected))


def _as_predicted(predicted: ArrayLike, sizes: Array) -> Array:
    values = as_numbers(predicted, "predicted")
    if values.shape != sizes.shape or not np.all(np.isfinite(values) & (values > 0)):
        raise InputError(
            f"predicted has shape {values.shape}; it must be {len(sizes)} positive numbers, one "
            "for each of the sizes"
        )
    return values


def _as_errors(errors: ArrayLike, sizes: Array) -> Array:
    values = as_numbers(errors, "errors")
    if values.ndim != 2 or values.shape[1] != len(sizes) or not len(values):
        raise InputError(
            f"errors has shape {values.shape}; its axes must be [replicate, size], with at least "
            f"one replicate and {len(sizes)} sizes"
        )
    # nan from some size on: a replicate that ended there
    ended = np.logical_and.accumulate(np.isnan(values)[:, ::-1], axis=1)[:, ::-1]
    if ended[:, 0].any() or not np.isfinite(values).all(axis=1).any():
        raise InputError(
            "errors has a replicate without any error, or none that reaches the largest size; "
            "leave out the replicate, or that size"
        )
    bad = np.argwhere(~ended & ~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        r, i = (int(k) for k in bad[0])
        raise InputError(
            f"errors must be finite and at least 0, but replicate {r} at n = {sizes[i]:g} is "
            f"{values[r, i]}; leave that replicate out, or pass norms of the errors"
        )
    return values


def _standard_errors(resamples: Resamples) -> Array:
    """Standard error of the summary itself, from that of its logarithm."""
    spread = np.sqrt(np.diag(resamples.covariance))
    return np.asarray(np.exp(resamples.log_errors) * spread)
