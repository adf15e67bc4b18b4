"""Reasons not to trust a fitted exponent on its range, in words and with the numbers behind them.

Which law the curve follows beyond its range is another question, and ``selection.py`` answers it:
an exponent may describe the sizes that were measured while nothing says that it goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.shown import about, plain_count
from esscher.core.validation import Array, as_nonnegative, as_numbers, as_positive, as_sizes
from esscher.math.statistics.intervals import LEVEL, Resamples, local_slopes, resample
from esscher.math.statistics.laws import least_squares_forms, linear_design, smooth_variances
from esscher.math.statistics.rate import Rate
from esscher.math.statistics.selection import Selection, select_law
from esscher.math.statistics.tail import FEWEST_VALUES, TailShape, tail_shape, values_needed

#: Fewest sizes, and least ratio of the largest to the smallest, that show a rate.
SIZES, RATIO = 4, 8.0
#: Fewest replicates behind a median.
MEDIAN_REPLICATES = 8
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


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that a judgement looks at.

    ``errors`` and ``sizes`` are those of the fit; ``left_out`` the sizes whose errors are zero;
    ``predicted`` the predicted errors at the sizes of the fit, if known.
    """

    errors: Array
    sizes: Array
    left_out: Array
    summary: str
    level: float
    interval: tuple[float, float]
    resamples: Resamples
    selection: Selection
    burn_in: float | None
    resolution: float | None
    predicted: Array | None = None


def reasons(evidence: Evidence) -> tuple[str, ...]:
    """List the reasons not to trust a fit; none if it is to be trusted."""
    found: list[str] = []
    for check in (_zeros, _resolution, _range, _replicates, _rises, _shape, _burn_in, _width):
        found.extend(check(evidence))
    return tuple(found)


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


def _zeros(e: Evidence) -> list[str]:
    out = []
    if len(e.left_out):
        listed = ", ".join(plain_count(n) for n in e.left_out)
        out.append(
            f"most errors are exactly 0 at n = {listed}, which is left out: sampling without "
            "replacement up to all tokens, or rounding"
        )
    zeros = int(np.sum(e.errors == 0))
    if zeros:
        out.append(f"{zeros} of {e.errors.size} errors are exactly 0: rounding")
    elif len(e.errors) > 1 and np.any(np.ptp(e.errors, axis=0) == 0):
        same = e.sizes[np.ptp(e.errors, axis=0) == 0][0]
        out.append(
            f"all replicates have the same error at n = {plain_count(same)}: saturated or rounded"
        )
    return out


def _resolution(e: Evidence) -> list[str]:
    if e.resolution is None:
        return []
    smallest = float(np.exp(e.resamples.log_errors.min()))
    if smallest >= RESOLVED * e.resolution:
        return []
    return [
        f"the smallest error, {smallest:.2g}, is within a factor {RESOLVED:g} of the resolution "
        f"{e.resolution:.2g} of the arithmetic; measure in float64"
    ]


def _range(e: Evidence) -> list[str]:
    out = []
    if len(e.sizes) < SIZES:
        out.append(f"only {len(e.sizes)} sizes; it takes at least {SIZES}")
    ratio = float(e.sizes[-1] / e.sizes[0])
    if ratio < RATIO:
        out.append(
            f"n spans a factor of {ratio:.3g} only; it takes at least {RATIO:g}, "
            f"up to n = {plain_count(RATIO * e.sizes[0])}"
        )
    return out


def _replicates(e: Evidence) -> list[str]:
    count = len(e.errors)
    if e.summary == "median":
        if count >= MEDIAN_REPLICATES:
            return []
        return [f"{_replicates_text(count)}; a median takes at least {MEDIAN_REPLICATES}"]
    tail = replicate_tail(e.errors)
    if tail is None:
        return [f"{_replicates_text(count)}: too few to see how heavy the tail of the errors is"]
    needed = values_needed(tail.without_prior)
    if count >= needed:
        return []
    how_many = f"about {math.ceil(needed):,}" if needed < 1e9 else "more than anyone can run"
    k_hat = f"k-hat {tail.without_prior:.2f} +- {tail.standard_error:.2f}"
    return [
        f"{_replicates_text(count)}: too few for the tail of the errors ({k_hat}); the mean is "
        f"worth something from {how_many} on" + ("; see the median" if needed > 1000 else "")
    ]


def _replicates_text(count: int) -> str:
    return f"{count:,} replicate" + ("s" if count != 1 else "")


def _rises(e: Evidence) -> list[str]:
    if len(e.errors) < 2:
        return []
    x = e.resamples.log_sizes
    step = np.diff(np.eye(len(x)), axis=0)
    value, low, _ = e.resamples.intervals(step, 1 - RISE_LEVEL / len(step))
    if not np.any(low > 0):
        return []
    i = int(np.argmax(low))
    return [
        f"the error rises from n = {plain_count(e.sizes[i])} to {plain_count(e.sizes[i + 1])} by "
        f"{100 * math.expm1(value[i]):.1f}%, more than noise"
    ]


def _shape(e: Evidence) -> list[str]:
    chosen = e.selection
    if chosen.law != "power":
        return [
            f"not a power law ({chosen.law}, p = {chosen.p_value:.2g}): the exponent "
            "describes this range only"
        ]
    if chosen.steepens:
        return [
            f"the local exponent rises along n (bend {chosen.bend:+.1f} standard errors, "
            f"p = {chosen.p_value:.2g}): the rate has not settled on this range"
        ]
    return []


def _burn_in(e: Evidence) -> list[str]:
    """The burn-in is where the CONSTANT is reached; whether the RATE moves, the prediction says."""
    if e.burn_in is None or e.sizes[0] >= e.burn_in:
        return []
    share = "all" if e.sizes[-1] < e.burn_in else f"{int(np.sum(e.sizes < e.burn_in))}"
    where = (
        f"{share} of {len(e.sizes)} sizes are below the burn-in of {about(e.burn_in)} tokens, from "
        "which on the asymptotic constant holds"
    )
    if e.predicted is None or len(e.sizes) < SIZES:
        return [
            f"{where}; whether the rate still moves there is not known without a predicted curve"
        ]
    first, last = half_slopes(e.sizes, e.predicted)
    if abs(last - first) <= SETTLED:
        return []
    return [
        f"{where}; the rate still moves too: the predicted exponent goes from {first:.3f} to "
        f"{last:.3f} between the halves of the range, so compare with the one predicted on this "
        "range, not with the asymptotic one"
    ]


def half_slopes(sizes: Array, errors: Array) -> tuple[float, float]:
    """Exponents of a curve without noise on the lower and on the upper half of its sizes."""
    x, y = np.log(sizes), np.log(errors)
    middle = len(x) // 2
    first = -(y[middle] - y[0]) / (x[middle] - x[0])
    last = -(y[-1] - y[middle]) / (x[-1] - x[middle])
    return float(first), float(last)


def _width(e: Evidence) -> list[str]:
    low, high = e.interval
    half = (high - low) / 2
    out = []
    if not math.isfinite(half):
        out.append("one replicate has no interval")
    elif half > HALF_WIDTH:
        needed = math.ceil(len(e.errors) * (half / HALF_WIDTH) ** 2)
        out.append(
            f"the {100 * e.level:g}% interval is +- {half:.2g}; about {needed:,} replicates or a "
            f"longer range would make it +- {HALF_WIDTH:g}"
        )
    if math.isfinite(half) and low <= 0:
        out.append("the interval contains 0: the error need not fall at all on this range")
    return out


# ``fit_rate``: from replicate errors to an exponent with an honest interval.

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
