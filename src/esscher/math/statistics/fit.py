"""Fit error ~ C n^-beta to the errors of replicates, and list the reasons not to trust the fit.

Which law the curve follows beyond its range is another question, and ``selection.py`` answers it:
an exponent may describe the sizes that were measured while nothing says that it goes on.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.shown import about, counted, plain_count
from esscher.core.validation import Array, as_nonnegative, as_numbers, as_positive, as_sizes
from esscher.math.statistics.intervals import LEVEL, LocalSlopes, Resamples, resample
from esscher.math.statistics.laws import least_squares_forms, linear_design, smooth_variances
from esscher.math.statistics.rate import Rate
from esscher.math.statistics.records import Ends, as_matrix, finite, finite_numbers
from esscher.math.statistics.selection import Selection, select_law
from esscher.math.statistics.tail import FEWEST_VALUES, TailShape, tail_shape, values_needed

#: Fewest sizes, and least ratio of the largest to the smallest, that show a rate.
SIZES, RATIO = 4, 8.0
#: Half-width of the exponent's interval beyond which it says little: H = 0.9 and H = 1.2 differ by
#: 0.1 in their exponents.
HALF_WIDTH = 0.1
#: Errors within this multiple of the resolution of the arithmetic are rounding, in part.
RESOLVED = 10.0
#: Values pooled, from the largest sizes downwards, to see the tail of the replicates.
POOL = 200
#: A predicted slope that moves by no more than this between the halves of the range has settled.
SETTLED = 0.02
#: Level at which a rise of the error between two sizes is more than noise, over all of them.
RISE_LEVEL = 0.01


def fit_rate(
    errors: ArrayLike,
    sizes: ArrayLike,
    *,
    level: float = LEVEL,
    seed: int = 0,
    burn_in: float | None = None,
    resolution: float | None = None,
    predicted: ArrayLike | None = None,
) -> Rate:
    """Fit error ~ C n^-beta to errors measured on independent replicates.

    Weighted least squares of the logarithm of the mean error on ln n. The weights are the
    inverse of its resampled variance, smoothed to a power of n (see ``laws.py``). Intervals come
    from resampling replicates: sizes may share tokens (see ``intervals.py``). What the interval
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
    if not 0 < as_positive(level, "level") < 1:
        raise InputError(f"level is {level!r}; it must lie between 0 and 1, such as 0.95")
    usable = np.sum(values > 0, axis=0) > 0.5 * np.isfinite(values).sum(axis=0)
    if usable.sum() < 2:
        raise InputError(
            f"errors are positive at {int(usable.sum())} of {len(n)} sizes; a rate needs at least 2"
        )
    used, at = np.ascontiguousarray(values[:, usable]), n[usable]
    expected = None
    if predicted is not None:
        curve = as_numbers(predicted, "predicted")
        if curve.shape != n.shape or not np.all(np.isfinite(curve) & (curve > 0)):
            raise InputError(
                f"predicted has shape {curve.shape}; it must be {len(n)} positive numbers, one "
                "for each of the sizes"
            )
        expected = curve[usable]
    resamples = resample(used, at, seed)
    variances = smooth_variances(resamples)
    weights = 1 / variances
    x = resamples.log_sizes
    forms = least_squares_forms(linear_design("power", x), variances)
    (log_c, beta), low, high = resamples.intervals(forms, level)
    interval = (finite(low[1]), finite(high[1]))
    selection = select_law(resamples, expected)
    reasons = _reasons(
        errors=used[np.isfinite(used).all(axis=1)],
        sizes=at,
        left_out=n[~usable],
        level=float(level),
        interval=interval,
        resamples=resamples,
        selection=selection,
        burn_in=None if burn_in is None else as_nonnegative(burn_in, "burn_in"),
        resolution=None if resolution is None else as_nonnegative(resolution, "resolution"),
        predicted=expected,
    )
    _, lower, upper = resamples.intervals(np.eye(len(at)), level)
    steps = -np.diff(np.eye(len(x)), axis=0) / np.diff(x)[:, None]
    slopes, least, most = resamples.intervals(steps, level)
    mean = np.exp(resamples.log_errors)
    covariance = as_matrix(forms @ resamples.covariance @ forms.T)
    rate = Rate(
        exponent=float(beta),
        interval=interval,
        standard_error=finite(resamples.standard_errors(forms)[1]),
        constant=float(np.exp(log_c)),
        constant_interval=(finite(np.exp(low[0])), finite(np.exp(high[0]))),
        level=float(level),
        sizes=tuple(at.tolist()),
        mean=tuple(mean.tolist()),
        mean_standard_error=finite_numbers(mean * np.sqrt(np.diag(resamples.covariance))),
        lower=finite_numbers(np.exp(lower)),
        upper=finite_numbers(np.exp(upper)),
        weights=tuple((weights / weights.sum()).tolist()),
        local=LocalSlopes(
            n=tuple(np.exp((x[1:] + x[:-1]) / 2).tolist()),
            exponent=tuple(slopes.tolist()),
            lower=finite_numbers(least),
            upper=finite_numbers(most),
        ),
        law=selection.law,
        selection=selection,
        trusted=not reasons,
        reasons=reasons,
        n_replicates=resamples.n_replicates,
        seed=seed,
        covariance=covariance if resamples.n_replicates > 1 else None,
        critical=finite(resamples.critical(forms[1:], level)[0]),
        predicted_curve=(
            None if expected is None else (tuple(at.tolist()), tuple(expected.tolist()))
        ),
    )
    return rate if expected is None else replace(rate, predicted=rate.slope_of(expected))


def _reasons(
    errors: Array,
    sizes: Array,
    left_out: Array,
    level: float,
    interval: Ends,
    resamples: Resamples,
    selection: Selection,
    burn_in: float | None,
    resolution: float | None,
    predicted: Array | None,
) -> tuple[str, ...]:
    """Reasons not to trust a fitted exponent on its range; none if it is to be trusted.

    ``errors`` are those of whole replicates at the ``sizes`` of the fit, ``left_out`` the sizes
    whose errors are zero, ``predicted`` the predicted errors at the sizes of the fit.
    """
    reasons: list[str] = []

    # Errors that are zero, or the same in every replicate.
    if len(left_out):
        listed = ", ".join(plain_count(n) for n in left_out)
        reasons.append(
            f"most errors are exactly 0 at n = {listed}, which is left out: sampling without "
            "replacement up to all tokens, or rounding"
        )
    zeros, ranges = int(np.sum(errors == 0)), np.ptp(errors, axis=0)
    if zeros:
        reasons.append(f"{zeros} of {errors.size} errors are exactly 0: rounding")
    elif len(errors) > 1 and np.any(ranges == 0):
        reasons.append(
            f"all replicates have the same error at n = {plain_count(sizes[ranges == 0][0])}: "
            "saturated or rounded"
        )
    smallest = float(np.exp(resamples.log_errors.min()))
    if resolution is not None and smallest < RESOLVED * resolution:
        reasons.append(
            f"the smallest error, {smallest:.2g}, is within a factor {RESOLVED:g} of the "
            f"resolution {resolution:.2g} of the arithmetic; measure in float64"
        )

    # Sizes and replicates.
    if len(sizes) < SIZES:
        reasons.append(f"only {len(sizes)} sizes; it takes at least {SIZES}")
    ratio = float(sizes[-1] / sizes[0])
    if ratio < RATIO:
        reasons.append(
            f"n spans a factor of {ratio:.3g} only; it takes at least {RATIO:g}, "
            f"up to n = {plain_count(RATIO * sizes[0])}"
        )
    count = counted(len(errors), "replicate")
    if (tail := replicate_tail(errors)) is None:
        reasons.append(f"{count}: too few to see how heavy the tail of the errors is")
    elif len(errors) < (needed := values_needed(tail.without_prior)):
        how_many = f"about {math.ceil(needed):,}" if needed < 1e9 else "more than anyone can run"
        reasons.append(
            f"{count}: too few for the tail of the errors (k-hat {tail.without_prior:.2f} +- "
            f"{tail.standard_error:.2f}); the mean is worth something from {how_many} on"
        )

    # The shape of the curve.
    if len(errors) > 1:
        step = np.diff(np.eye(len(sizes)), axis=0)
        rise, least, _ = resamples.intervals(step, 1 - RISE_LEVEL / len(step))
        if np.any(least > 0):
            i = int(np.argmax(least))
            reasons.append(
                f"the error rises from n = {plain_count(sizes[i])} to {plain_count(sizes[i + 1])} "
                f"by {100 * math.expm1(rise[i]):.1f}%, more than noise"
            )
    if selection.law != "power":
        reasons.append(
            f"not a power law ({selection.law}, p = {selection.p_value:.2g}): the exponent "
            "describes this range only"
        )
    elif selection.steepens:
        reasons.append(
            f"the local exponent rises along n (bend {selection.bend:+.1f} standard errors, "
            f"p = {selection.p_value:.2g}): the rate has not settled on this range"
        )
    # The burn-in is where the CONSTANT is reached; whether the RATE moves, the prediction says.
    if burn_in is not None and sizes[0] < burn_in:
        share = "all" if sizes[-1] < burn_in else f"{int(np.sum(sizes < burn_in))}"
        where = (
            f"{share} of {len(sizes)} sizes are below the burn-in of {about(burn_in)} tokens, "
            "from which on the asymptotic constant holds"
        )
        if predicted is None or len(sizes) < SIZES:
            reasons.append(
                f"{where}; whether the rate still moves there is not known without a predicted "
                "curve"
            )
        else:
            x, y, middle = np.log(sizes), np.log(predicted), len(sizes) // 2
            first = -float((y[middle] - y[0]) / (x[middle] - x[0]))
            last = -float((y[-1] - y[middle]) / (x[-1] - x[middle]))
            if abs(last - first) > SETTLED:
                reasons.append(
                    f"{where}; the rate still moves too: the predicted exponent goes from "
                    f"{first:.3f} to {last:.3f} between the halves of the range, so compare with "
                    "the one predicted on this range, not with the asymptotic one"
                )

    # The width of the interval.
    low, high = interval
    if low is None or high is None:
        return (*reasons, "one replicate has no interval")
    half = (high - low) / 2
    if half > HALF_WIDTH:
        more = math.ceil(len(errors) * (half / HALF_WIDTH) ** 2)
        reasons.append(
            f"the {100 * level:g}% interval is +- {half:.2g}; about {more:,} replicates or a "
            f"longer range would make it +- {HALF_WIDTH:g}"
        )
    if low <= 0:
        reasons.append("the interval contains 0: the error need not fall at all on this range")
    return tuple(reasons)


def replicate_tail(errors: Array) -> TailShape | None:
    """Tail of the replicate errors, relative to their mean, at the largest sizes; None if unseen.

    The largest size alone if it has 200 replicates; else as many sizes as it takes, since the tail
    of a few dozen numbers cannot be seen.
    """
    used = min(errors.shape[1], math.ceil(POOL / len(errors)))
    last = errors[:, -used:]
    values = (last / last.mean(axis=0)).ravel()
    if len(values) < FEWEST_VALUES or np.ptp(values) <= 1e-9:
        return None
    try:
        return tail_shape(values)
    except InputError:  # more ties than a tail can have
        return None


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
