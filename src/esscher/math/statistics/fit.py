"""A power law fitted to measured errors, error ~ C n^-beta, and the reasons not to trust it."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.shown import counted, plain_count, rounded
from esscher.core.validation import (
    Array,
    as_array,
    as_nonnegative,
    as_numbers,
    as_positive,
    as_sizes,
)
from esscher.math.statistics.intervals import (
    LEVEL,
    Ends,
    Numbers,
    finite,
    finite_numbers,
    resample,
)
from esscher.math.statistics.laws import (
    law_words,
    least_squares_forms,
    linear_design,
    smooth_variances,
)
from esscher.math.statistics.selection import Selection, select_law
from esscher.math.statistics.tail import FEWEST_VALUES, TailShape, tail_shape, values_needed

if TYPE_CHECKING:
    import pandas as pd

    from esscher.show.content import Plot


#: Places, in ln n, at which a curve is compared with an error: laws, and predicted curves.
FAR = np.linspace(0.01, 700.0, 70_000)
GRID = 2001


@dataclass(frozen=True, kw_only=True, eq=False)
class Rate:
    """Power law fitted to measured errors: error ~ ``constant * n**-exponent``.

    Attributes
    ----------
    exponent, interval, standard_error
        The positive beta, its interval from resampled replicates, and its standard error; one
        replicate has neither.
    constant, constant_interval
        The factor in front.
    level
        Level of all intervals.
    sizes
        Numbers of tokens of the fit.
    mean, mean_standard_error, lower, upper
        Mean of the replicates at these sizes, its standard error, and its interval.
    weights
        Weights of the sizes in the fit; they sum to 1.
    law, selection
        Power law, logarithmic law, floor or two powers: the law that describes the curve, the
        verdict, how large a floor may be, and what the test could have found.
    trusted, reasons
        Whether the exponent can be taken at its word on these sizes, and if not, why. It says
        nothing about other sizes: see :attr:`extrapolates`.
    n_replicates, seed
        Number of replicates, and seed of the resampling.
    covariance, critical
        Covariance of (ln constant, exponent), and the number of standard errors of an interval;
        None for one replicate.
    predicted
        Exponent of the predicted curve on the same range, if there is one.
    predicted_curve
        Numbers of tokens and predicted errors, if known: at the sizes, and perhaps beyond.
    """

    exponent: float
    interval: Ends
    standard_error: float | None
    constant: float
    constant_interval: Ends
    level: float
    sizes: tuple[float, ...]
    mean: tuple[float, ...]
    mean_standard_error: Numbers
    lower: Numbers
    upper: Numbers
    weights: tuple[float, ...]
    law: str
    selection: Selection
    trusted: bool
    reasons: tuple[str, ...]
    n_replicates: int
    seed: int
    covariance: Array | None
    critical: float | None
    predicted: float | None = None
    predicted_curve: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def verdict(self) -> str:
        """The law if it is decided, ``"undecided"`` if other laws are not excluded."""
        return self.selection.verdict

    @property
    def law_words(self) -> str:
        """The verdict as a heading has it."""
        known = {"undecided": "law undecided", "as predicted": "follows the predicted curve"}
        return known.get(self.verdict, law_words(self.verdict))

    @property
    def extrapolates(self) -> bool:
        """Whether the exponent may be taken beyond the sizes: trusted, and the law is decided."""
        return self.trusted and self.verdict == "power"

    @property
    def fitted(self) -> Array:
        """The power law at the sizes."""
        return self.constant * np.array(self.sizes) ** -self.exponent

    def slope_of(self, errors: ArrayLike) -> float:
        """Exponent of another curve at the same sizes, with the same weights.

        A predicted curve bends, and its slope depends on where the weight lies: this is the number
        to compare the exponent with.
        """
        values = as_array(errors, "errors", ndim=1)
        if len(values) != len(self.sizes) or np.any(values <= 0):
            raise InputError(
                f"errors has shape {values.shape}; it must be {len(self.sizes)} positive numbers, "
                "one for each of rate.sizes"
            )
        x, weights = np.log(self.sizes), np.array(self.weights)
        centred = weights * (x - weights @ x)
        return float(-(centred @ np.log(values)) / (centred @ x))

    def band(self, sizes: Array) -> tuple[Array, Array] | None:
        """Interval of the fitted line at some numbers of tokens; None for one replicate."""
        if self.covariance is None or self.critical is None:
            return None
        (a, cross), (_, b) = self.covariance
        x = np.log(sizes)
        reach = self.critical * np.sqrt(np.maximum(a - 2 * x * cross + x * x * b, 0.0))
        line = self.constant * sizes**-self.exponent
        return line * np.exp(-reach), line * np.exp(reach)

    def tokens_for(self, error: float, law: str | None = None) -> TokensNeeded:
        """Number of tokens from which the error is at most ``error``.

        Beyond the sizes that were measured the answer hangs on the law. Unless that is decided, the
        interval holds the answers of all laws that are not excluded; its upper end is infinite if a
        floor as high as ``error`` is not. If no law fits, it is what the sizes alone say, open
        beyond them. A predicted curve answers instead where the verdict is "as predicted", and
        where no law fits, unless the measured errors leave it.

        Parameters
        ----------
        error
            A positive error.
        law
            Law to solve, as if it were known; the one that was selected unless given.
        """
        target = as_positive(error, "error")
        name = self.law if law is None else law
        if name not in ("power", *self.selection.laws):
            known = ", ".join(dict.fromkeys(("power", *self.selection.laws)))
            raise InputError(f"law is {law!r}; laws of this fit: {known}")
        predicted = self._by_prediction(target) if law is None else None
        if predicted is not None:
            return predicted
        n, lower, upper = self._by_law(target, name)
        outside = not self.sizes[0] <= n <= self.sizes[-1]
        if law is None and self.selection.misfit:
            # sizes between which the error is reached, by their own intervals
            above = [
                size
                for size, low in zip(self.sizes, self.lower, strict=True)
                if low is not None and low > target
            ]
            not_within = [
                size
                for size, high in zip(self.sizes, self.upper, strict=True)
                if high is None or high > target
            ]
            least, open_until = max([1.0, *above]), max([0.0, *not_within])
            most = min((size for size in self.sizes if size > open_until), default=math.inf)
            ends = min(lower, least), max(upper, most)
            return TokensNeeded(target, n, ends, name, outside, fits=False)
        rivals = self.selection.rivals if outside and law is None else ()
        for rival in rivals:
            if rival not in self.selection.laws:  # never tested
                upper = math.inf
                continue
            _, least, most = self._by_law(target, rival)
            lower, upper = min(lower, least), max(upper, most)
        if "floor" in rivals and target <= (self.selection.largest_floor or 0.0):
            upper = math.inf
        return TokensNeeded(target, n, (lower, upper), name, outside, rivals)

    def _by_law(self, target: float, name: str) -> tuple[float, float, float]:
        """Tokens for an error by one law, with their interval."""
        n = np.exp(FAR)
        if name == "power":
            errors, gradient = self.constant * n**-self.exponent, linear_design("power", FAR)
            return self._crossing(FAR, np.log(errors / target), gradient, self.covariance)
        fit = self.selection.laws[name]
        gap = np.log(fit.error(n) / target)
        return self._crossing(FAR, gap, fit.gradient(n), fit.covariance)

    def _crossing(
        self, z: Array, gap: Array, gradient: Array, covariance: Array | None
    ) -> tuple[float, float, float]:
        """Tokens ``e^z`` from which ``gap`` is negative for good, and the ends of their interval.

        The interval holds the neighbouring places at which the curve, whose log error has the
        ``gradient`` by parameters of this covariance, is compatible with a gap of 0 (Fieller).
        """
        half = np.full_like(z, np.inf)
        if covariance is not None and self.critical is not None:
            variance = np.einsum("zi,ij,zj->z", gradient, covariance, gradient)
            half = self.critical * np.sqrt(np.maximum(variance, 0.0))
        last = int(np.max(np.flatnonzero(gap > 0), initial=-1))
        above = int(np.max(np.flatnonzero(gap[: last + 1] > half[: last + 1]), initial=-1))
        below = np.flatnonzero(gap[last + 1 :] < -half[last + 1 :])
        end = last + int(below[0]) if below.size else len(z)
        middle, low, high = (
            _zero(z, values, i)
            for values, i in ((gap, last), (gap - half, above), (gap + half, end))
        )
        return middle, low, high

    def _by_prediction(self, target: float) -> TokensNeeded | None:
        """Tokens for an error by the predicted curve; None where it does not answer.

        Solves ``ratio * predicted(n) = error``, with a cubic spline in log-log coordinates between
        the sizes of the prediction. The interval allows for a drift of the ratio of measured to
        predicted errors, ``a - b ln n``, beyond the measured sizes too.
        """
        against = self.selection.predicted
        if self.predicted_curve is None or against is None or against.leaves:
            return None
        if not (self.selection.misfit or self.verdict == "as predicted"):
            return None
        n, errors = (np.array(values) for values in self.predicted_curve)
        at_sizes = np.log(errors[np.isin(n, self.sizes)])
        x, weights = np.log(self.sizes), np.array(self.weights)
        slope = self.slope_of(np.exp(at_sizes))
        level = float(weights @ at_sizes) + slope * float(weights @ x)
        a, b = math.log(self.constant) - level, self.exponent - slope
        z = np.linspace(np.log(n[0]), np.log(n[-1]), GRID)
        gap = scipy.interpolate.CubicSpline(np.log(n), np.log(errors))(z) - math.log(target)
        gradient = linear_design("power", z)
        # at the ratio of the middle of the sizes; the interval lets the ratio drift
        tokens, _, _ = self._crossing(z, gap + float(a - b * (weights @ x)), gradient, None)
        if tokens == 1 or not math.isfinite(tokens):
            return None
        _, lower, upper = self._crossing(z, gap + a - b * z, gradient, self.covariance)
        lower, upper = min(tokens, lower), max(tokens, upper)
        outside = not self.sizes[0] <= tokens <= self.sizes[-1]
        rivals = () if against.follows or not outside else ("floor",)
        ends = lower, math.inf if rivals else upper
        return TokensNeeded(target, tokens, ends, "predicted", outside, rivals)

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per size."""
        import pandas as pd

        columns = {
            "n": self.sizes,
            "mean": self.mean,
            "mean_standard_error": self.mean_standard_error,
            "lower": self.lower,
            "upper": self.upper,
            "fitted": self.fitted,
        }
        return pd.DataFrame(columns, dtype=np.float64)

    def plot(self) -> Plot:
        """Draw errors, fit and the exponents to compare with, in log-log axes."""
        from esscher.math.charts import draw_rate

        return draw_rate(self)

    def __repr__(self) -> str:
        return "\n  ".join(self._lines())

    def _repr_html_(self) -> str:
        headline, *rows = (html.escape(line) for line in self._lines())
        table = self.table().to_html(index=False, float_format="{:.4g}".format)
        return f"<p><b>{headline}</b>{''.join(f'<br>{row}' for row in rows)}</p>{table}"

    def _lines(self) -> list[str]:
        """The headline, and what stands below it."""
        low, high = self.interval
        between = "unknown" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        state = "trusted on this range" if self.trusted else "not to be trusted"
        lines = [
            f"mean error ~ n^-{self.exponent:.3f}, {100 * self.level:g}% interval "
            f"{between} ({state}; {self.law_words})",
            f"{self.n_replicates} replicates, {len(self.sizes)} sizes from "
            f"n = {self.sizes[0]:,.0f} to {self.sizes[-1]:,.0f}; constant {self.constant:.4g}",
        ]
        if self.predicted is not None:
            lines.append(f"predicted on this range {self.predicted:.3f}")
        lines.append(f"Law: {self.selection.evidence}.")
        return lines + [f"Not trusted: {reason}." for reason in self.reasons]


@dataclass(frozen=True)
class TokensNeeded:
    """Tokens from which the error is at most ``error``.

    Attributes
    ----------
    error
        What was asked for.
    n
        Number of tokens; infinite if the law never gets there.
    interval
        Its interval, the upper end infinite where the fit does not exclude it.
    law
        Law that was solved for n; ``"predicted"`` for a predicted curve.
    extrapolated
        Whether n is outside the sizes that were measured.
    rivals
        Laws that the measurement does not exclude, if n is extrapolated by the selected law: the
        interval holds what they say as well.
    fits
        Whether the law fits the measured curve. If none does, the interval is what the measured
        sizes say without any law: it is open beyond them.
    """

    error: float
    n: float
    interval: tuple[float, float]
    law: str
    extrapolated: bool
    rivals: tuple[str, ...] = ()
    fits: bool = True

    @property
    def decided(self) -> bool:
        """Whether the law fits, and no other law says something else."""
        return self.fits and not self.rivals

    def __repr__(self) -> str:
        n, low, high = (
            plain_count(math.ceil(n) if math.isfinite(n) else n) for n in (self.n, *self.interval)
        )
        beyond = ", extrapolated" if self.extrapolated else ""
        if self.rivals:
            others = " and ".join(f"a {law_words(name)}" for name in self.rivals)
            beyond += f"; the law is undecided, and the interval allows for {others}"
        if not self.fits:
            beyond += "; but no law fits, and the interval is what the measured sizes alone say"
        return (
            f"error {self.error:.3g} takes {n} tokens, between {low} and {high} "
            f"({law_words(self.law)}{beyond})"
        )


def _zero(z: Array, values: Array, i: int) -> float:
    """``e^z`` where values fall below 0 after place i: 1 if before all, infinite if after all."""
    if i == -1:
        return 1.0
    if i >= len(z) - 1:
        return math.inf
    return float(np.exp(z[i] + (z[i + 1] - z[i]) * values[i] / (values[i] - values[i + 1])))


# Fit error ~ C n^-beta to the errors of replicates, and list the reasons not to trust the fit.
#
# Which law the curve follows beyond its range is another question, and ``selection.py`` answers it:
# an exponent may describe the sizes that were measured while nothing says that it goes on.

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
        Axes [replicate, size]; not negative. Sizes at which most errors are exactly 0 are left out
        of the fit, and the result says so.
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
    burn_in = None if burn_in is None else as_nonnegative(burn_in, "burn_in")
    resolution = None if resolution is None else as_nonnegative(resolution, "resolution")
    if not 0 < as_positive(level, "level") < 1:
        raise InputError(f"level is {level!r}; it must lie between 0 and 1, such as 0.95")
    usable = np.sum(values > 0, axis=0) > 0.5 * len(values)
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

    # Reasons not to trust the exponent on its range.
    reasons: list[str] = []
    left_out = n[~usable]
    # Errors that are zero, or the same in every replicate.
    if len(left_out):
        listed = ", ".join(plain_count(size) for size in left_out)
        reasons.append(
            f"most errors are exactly 0 at n = {listed}, which is left out: sampling without "
            "replacement up to all tokens, or rounding"
        )
    zeros, ranges = int(np.sum(used == 0)), np.ptp(used, axis=0)
    if zeros:
        reasons.append(f"{zeros} of {used.size} errors are exactly 0: rounding")
    elif len(used) > 1 and np.any(ranges == 0):
        reasons.append(
            f"all replicates have the same error at n = {plain_count(at[ranges == 0][0])}: "
            "saturated or rounded"
        )
    smallest = float(np.exp(resamples.log_errors.min()))
    if resolution is not None and smallest < RESOLVED * resolution:
        reasons.append(
            f"the smallest error, {smallest:.2g}, is within a factor {RESOLVED:g} of the "
            f"resolution {resolution:.2g} of the arithmetic; measure in float64"
        )

    # Sizes and replicates.
    if len(at) < SIZES:
        reasons.append(f"only {len(at)} sizes; it takes at least {SIZES}")
    ratio = float(at[-1] / at[0])
    if ratio < RATIO:
        reasons.append(
            f"n spans a factor of {ratio:.3g} only; it takes at least {RATIO:g}, "
            f"up to n = {plain_count(RATIO * at[0])}"
        )
    count = counted(len(used), "replicate")
    if (tail := replicate_tail(used)) is None:
        reasons.append(f"{count}: too few to see how heavy the tail of the errors is")
    elif len(used) < (needed := values_needed(tail.without_prior)):
        how_many = f"about {math.ceil(needed):,}" if needed < 1e9 else "more than anyone can run"
        reasons.append(
            f"{count}: too few for the tail of the errors (k-hat {tail.without_prior:.2f} +- "
            f"{tail.standard_error:.2f}); the mean is worth something from {how_many} on"
        )

    # The shape of the curve.
    if len(used) > 1:
        step = np.diff(np.eye(len(at)), axis=0)
        rise, least, _ = resamples.intervals(step, 1 - RISE_LEVEL / len(step))
        if np.any(least > 0):
            i = int(np.argmax(least))
            reasons.append(
                f"the error rises from n = {plain_count(at[i])} to {plain_count(at[i + 1])} "
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
    if burn_in is not None and at[0] < burn_in:
        share = "all" if at[-1] < burn_in else f"{int(np.sum(at < burn_in))}"
        where = (
            f"{share} of {len(at)} sizes are below the burn-in of {rounded(burn_in)} tokens, "
            "from which on the asymptotic constant holds"
        )
        if expected is None or len(at) < SIZES:
            reasons.append(
                f"{where}; whether the rate still moves there is not known without a predicted "
                "curve"
            )
        else:
            log_n, y, middle = np.log(at), np.log(expected), len(at) // 2
            first = -float((y[middle] - y[0]) / (log_n[middle] - log_n[0]))
            last = -float((y[-1] - y[middle]) / (log_n[-1] - log_n[middle]))
            if abs(last - first) > SETTLED:
                reasons.append(
                    f"{where}; the rate still moves too: the predicted exponent goes from "
                    f"{first:.3f} to {last:.3f} between the halves of the range, so compare with "
                    "the one predicted on this range, not with the asymptotic one"
                )

    # The width of the interval.
    least_slope, most_slope = interval
    if least_slope is None or most_slope is None:
        reasons.append("one replicate has no interval")
    else:
        half = (most_slope - least_slope) / 2
        if half > HALF_WIDTH:
            more = math.ceil(len(used) * (half / HALF_WIDTH) ** 2)
            reasons.append(
                f"the {100 * level:g}% interval is +- {half:.2g}; about {more:,} replicates or a "
                f"longer range would make it +- {HALF_WIDTH:g}"
            )
        if least_slope <= 0:
            reasons.append("the interval contains 0: the error need not fall at all on this range")

    _, lower, upper = resamples.intervals(np.eye(len(at)), level)
    mean = np.exp(resamples.log_errors)
    covariance = forms @ resamples.covariance @ forms.T
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
        law=selection.law,
        selection=selection,
        trusted=not reasons,
        reasons=tuple(reasons),
        n_replicates=resamples.n_replicates,
        seed=seed,
        covariance=covariance if resamples.n_replicates > 1 else None,
        critical=finite(resamples.critical(forms[1:], level)[0]),
        predicted_curve=(
            None if expected is None else (tuple(at.tolist()), tuple(expected.tolist()))
        ),
    )
    return rate if expected is None else replace(rate, predicted=rate.slope_of(expected))


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
    bad = np.argwhere(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        r, i = (int(k) for k in bad[0])
        raise InputError(
            f"errors must be finite and at least 0, but replicate {r} at n = {sizes[i]:g} is "
            f"{values[r, i]}; leave that replicate out, or pass norms of the errors"
        )
    return values
