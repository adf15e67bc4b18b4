"""A stable model of the noise of an error curve, for weights.

The full resampled covariance of m sizes is singular with fewer than m replicates and noisy with
fewer than ten times as many. What it looks like is known, though: the relative noise of an error
changes slowly with n, and the correlation of nested sizes falls with the ratio of their sizes. So
two numbers describe the variances (a power of n) and one the correlation (another power of n).

Weights decide how efficient a fit is, not whether its interval is right: intervals come from
resampling replicates. Measured on simulated heads (d = 1 and 8, H = 0.5 to 2.5, 8 to 200
replicates), the standard deviation of the slope with smooth diagonal weights is within 5% of that
with equal weights where the noise is even, and 20% smaller where it is not (map errors at H = 2.5).
Separate weights per size lose 1 to 4% with 8 replicates. Correlations gain another 2 to 6%, which
was not worth a fit that leans on the two outermost sizes; the test of curvature does use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.statistics.intervals import Resamples

#: Variances are not taken for less than this share of the largest: one size at which all replicates
#: happen to agree must not make the weights.
SMALLEST = 1e-4
#: A variance of the log errors below this is rounding: all replicates are equal.
ROUNDING = 1e-24
#: Correlations of neighbouring sizes are kept inside these bounds.
CORRELATIONS = (0.02, 0.98)


def smooth_variances(resamples: Resamples) -> Array:
    """Variance of the log errors as a power of n; ones where there is nothing to tell it from."""
    variance = np.diag(resamples.covariance)
    if not np.all(np.isfinite(variance)) or variance.max() <= ROUNDING:
        return np.ones(len(variance))
    logs = np.log(np.maximum(variance, SMALLEST * variance.max()))
    x = resamples.log_sizes - resamples.log_sizes.mean()
    return np.asarray(np.exp(logs.mean() + x * (x @ logs) / (x @ x)))


def smooth_covariance(resamples: Resamples) -> Array:
    """Covariance of the log errors: variances a power of n, correlations a power of the ratio."""
    spread = np.sqrt(smooth_variances(resamples))
    x = resamples.log_sizes
    errors = np.sqrt(np.maximum(np.diag(resamples.covariance), np.finfo(float).tiny))
    neighbours = np.diag(resamples.covariance, 1) / (errors[1:] * errors[:-1])
    near = float(np.mean(neighbours)) if np.all(np.isfinite(neighbours)) else 0.0
    rate = -np.log(np.clip(near, *CORRELATIONS)) / float(np.mean(np.diff(x)))
    correlation = np.exp(-rate * np.abs(x[:, None] - x))
    return np.asarray(spread[:, None] * correlation * spread)


def least_squares_forms(design: Array, covariance: Array) -> Array:
    """Linear forms of y that are the coefficients of ``design`` under generalised least squares.

    Parameters
    ----------
    design
        Axes [size, coefficient].
    covariance
        Matrix, or the diagonal of one.

    Returns
    -------
    Array
        Axes [coefficient, size].
    """
    matrix = np.diag(covariance) if covariance.ndim == 1 else covariance
    # In units of the typical noise, so that rounding does not depend on the scale of the errors.
    root = np.linalg.cholesky(matrix / np.mean(np.diag(matrix)))
    whitener = np.linalg.solve(root, np.eye(len(root)))
    return np.asarray(np.linalg.pinv(whitener @ design) @ whitener)


# The laws an error curve is compared with, fitted to its logarithms.
#
# * power: ``ln C - b ln n``
# * logarithmic: ``ln C - g ln ln n``
# * floor: ``ln(C n^-b + e0)`` with ``e0 >= 0``
# * two powers: ``ln(a n^-1/2 + b n^-1)`` with ``a, b >= 0``: noise that averages out, and the bias
#   of a nonlinear function of it. In the end its exponent is 1/2, unless ``a = 0``

#: Names of the laws.
LAWS = ("power", "logarithmic", "floor", "two powers")
#: Floors, as shares of the smallest error, from which the fit of a floor starts.
STARTS = (0.02, 0.3, 0.7, 0.95)
#: Largest exponent of a law with floor.
STEEPEST = 5.0
#: Shares of the second power, in the middle of the sizes, from which the best is refined.
MIXTURES = np.linspace(0.0, 1.0, 201)


def law_words(law: str) -> str:
    """Name of a law as a sentence has it."""
    known = {"two powers": "law of two powers", "predicted": "predicted curve"}
    return known.get(law, f"{law} law")


@dataclass(frozen=True, kw_only=True, eq=False)
class LawFit:
    """One law fitted to an error curve.

    Attributes
    ----------
    law
        One of ``LAWS``.
    parameters
        By name: ``constant`` and ``exponent`` (the positive b or g), and ``floor``; ``half`` and
        ``one``, the factors of ``n^-1/2`` and ``n^-1``, for two powers.
    covariance
        Covariance of (ln constant, exponent), of (ln constant, exponent, floor) or of (half, one).
    chi_square
        Squared distance from the curve in units of its noise.
    criterion
        ``chi_square`` plus twice the number of parameters; the smallest is best.
    p_value
        Probability of a larger distance if this law were true, from resampled replicates.
    """

    law: str
    parameters: dict[str, float]
    covariance: Array
    chi_square: float
    criterion: float
    p_value: float

    def error(self, sizes: Array) -> Array:
        """Error at given numbers of tokens."""
        log_n = np.log(np.asarray(sizes, dtype=np.float64))
        if self.law == "two powers":
            half, one = self.parameters["half"], self.parameters["one"]
            return np.asarray(half * np.exp(-log_n / 2) + one * np.exp(-log_n))
        c, b = self.parameters["constant"], self.parameters["exponent"]
        if self.law == "logarithmic":
            return np.asarray(c * log_n**-b)
        return np.asarray(c * np.exp(-b * log_n) + self.parameters.get("floor", 0.0))

    def gradient(self, sizes: Array) -> Array:
        """Derivatives of the log error by what ``covariance`` is of, [size, parameter]."""
        log_n, error = np.log(sizes), self.error(sizes)
        if self.law == "two powers":
            return np.asarray(np.exp(-np.outer(log_n, [0.5, 1.0])) / error[:, None])
        if self.law == "logarithmic":
            return linear_design("logarithmic", log_n)
        share = 1 - self.parameters.get("floor", 0.0) / error
        columns = [share, -log_n * share, 1 / error]
        return np.stack(columns[: len(self.parameters)], axis=1)


def linear_design(law: str, log_sizes: Array) -> Array:
    """Columns of the two laws that are straight lines: 1 and ``-ln n``, or 1 and ``-ln ln n``."""
    column = log_sizes if law == "power" else np.log(log_sizes)
    return np.stack([np.ones_like(log_sizes), -column], axis=1)


def fit_line(law: str, x: Array, y: Array, covariance: Array) -> tuple[Array, Array, Array]:
    """Coefficients of a linear law, its residuals, and the forms that give the coefficients."""
    design = linear_design(law, x)
    forms = least_squares_forms(design, covariance)
    coefficients = forms @ y
    return coefficients, y - design @ coefficients, forms


def fit_floor(x: Array, y: Array, covariance: Array) -> tuple[Array, Array, Array]:
    """``(ln C, b, e0)``, residuals, and the forms that give small changes of the three."""
    smallest = float(np.exp(y.min()))
    whitener = np.linalg.inv(np.linalg.cholesky(covariance / np.mean(np.diag(covariance))))
    best, parameters = np.inf, np.zeros(3)

    def law(p: Array) -> Array:
        """Logarithm of the law, its floor in units of the smallest error."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.logaddexp(p[0] - p[1] * x, np.log(p[2] * smallest)))

    def distance(p: Array) -> Array:
        return np.asarray(whitener @ (y - law(p)))

    def jacobian(p: Array) -> Array:
        total = law(p)
        share = np.exp(p[0] - p[1] * x - total)
        return np.stack([share, -x * share, smallest * np.exp(-total)], axis=1)

    def change(p: Array) -> Array:
        return np.asarray(-whitener @ jacobian(p))

    for share in STARTS:
        above = np.log(np.maximum(np.exp(y) - share * smallest, 1e-3 * smallest))
        slope, start = np.polyfit(x, above, 1)
        fit = scipy.optimize.least_squares(
            distance,
            [start, float(np.clip(-slope, 0.01, STEEPEST - 0.01)), share],
            change,
            bounds=([-np.inf, 0.0, 0.0], [np.inf, STEEPEST, np.inf]),
            x_scale=[1.0, 0.1, 0.1],
        )
        if fit.cost < best:
            best, parameters = float(fit.cost), np.asarray(fit.x)
    units = np.array([1.0, 1.0, smallest])
    forms = least_squares_forms(jacobian(parameters), covariance) * units[:, None]
    return parameters * units, y - law(parameters), forms


def fit_two_powers(x: Array, y: Array, covariance: Array) -> tuple[Array, Array, Array]:
    """``(a, b)`` of ``a n^-1/2 + b n^-1``, residuals, and the forms that give small changes."""
    powers = np.exp(-np.outer([0.5, 1.0], x - x.mean()))
    level = least_squares_forms(np.ones((len(x), 1)), covariance)[0]
    inverse = np.linalg.inv(covariance / np.mean(np.diag(covariance)))

    def shape(share: Any) -> Array:
        return np.asarray(
            np.log(np.multiply.outer(1 - share, powers[0]) + np.multiply.outer(share, powers[1]))
        )

    def distance(share: Any) -> Any:
        apart = y - shape(share)
        apart = apart - (apart @ level)[..., None]
        return np.einsum("...i,ij,...j->...", apart, inverse, apart)

    at = int(np.argmin(distance(MIXTURES)))
    near = MIXTURES[max(at - 1, 0)], MIXTURES[min(at + 1, len(MIXTURES) - 1)]
    refined = scipy.optimize.minimize_scalar(
        distance, bounds=near, method="bounded", options={"xatol": 1e-10}
    ).x
    share = min((float(MIXTURES[at]), float(refined)), key=distance)
    log_scale = float(level @ (y - shape(share)))
    residuals = y - shape(share) - log_scale
    units = np.exp(x.mean() * np.array([0.5, 1.0]))
    jacobian = (powers / units[:, None]).T * np.exp(residuals - y)[:, None]
    forms = least_squares_forms(jacobian, covariance)
    return np.exp(log_scale) * np.array([1 - share, share]) * units, residuals, forms


# What a curve could have shown: tests for a bend, how large a floor may be, and their power.
#
# A curve that shows no bend may be straight, or too noisy to show one. Two numbers tell which:
#
# * the *power*: the probability with which the test of straightness would have found a floor as
#   large as the power part at the largest size, or a power of ln n, under this very noise. The
#   noise is that of the resampled replicates, the alternative the curve of that law that fits best;
# * the *limit of the floor*: the largest share of the error at the largest size that a floor may
#   have before a one-sided 5% test rejects it. It is the inversion of a score test: for every share
#   the rest of the curve (constant and exponent) is fitted, and what is left is projected on the
#   direction in which a larger floor moves the curve. Unlike a floor fitted with a standard error,
#   it is right at the boundary, where no floor at all fits best.
#
# Both take a null curve: a power law of unknown constant and exponent, or a predicted curve of
# unknown constant. The second knows how the error should bend, and above all how steep it should
# be, which is what hides a floor.

#: Significance of the test of straightness, and of the one-sided test behind the limit of a floor.
SIGNIFICANCE = 0.05
#: Share of a floor that is as large as the power part at the largest size.
EQUAL = 0.5
#: A test that would have found less than this share of its alternatives decides nothing.
ENOUGH = 0.8
#: Shares that are tried for the limit, and exponents for the rest of the curve.
SHARES = np.append(np.arange(0.0, 0.96, 0.04), [0.96, 0.98])
EXPONENTS = np.append(np.linspace(0.0, 1.5, 76), np.linspace(1.55, STEEPEST, 40))


@dataclass(frozen=True, eq=False)
class BendTest:
    """Linear forms that are 0 on the null curve, and the largest of them in standard errors.

    Attributes
    ----------
    resamples
        The noise.
    forms
        One row per direction in which the curve may leave the null curve.
    null
        The null curve.
    """

    resamples: Resamples
    forms: Array
    null: Array

    @property
    def _largest_by_chance(self) -> Array:
        return np.asarray(np.max(np.abs(self.resamples.deviations(self.forms)), axis=1))

    @property
    def bend(self) -> float:
        """Largest departure in standard errors, with its sign: positive if the curve flattens."""
        errors = np.maximum(self.resamples.standard_errors(self.forms), np.finfo(float).tiny)
        departures = self.forms @ (self.resamples.log_errors - self.null) / errors
        return float(departures[np.argmax(np.abs(departures))])

    @property
    def p_value(self) -> float:
        """Probability of a larger departure, of either sign, on the null curve."""
        simulated = self._largest_by_chance
        return float((1 + np.sum(simulated >= abs(self.bend))) / (1 + len(simulated)))

    def power(self, alternative: Array) -> float:
        """Probability that an upward bend is found if the expected log errors are those given."""
        critical = np.quantile(self._largest_by_chance, 1 - SIGNIFICANCE)
        departures = self.resamples.deviations(self.forms, self.forms @ (alternative - self.null))
        largest = np.take_along_axis(
            departures, np.argmax(np.abs(departures), axis=1)[:, None], axis=1
        )
        return float(np.mean(largest[:, 0] > critical))


def bend_test(resamples: Resamples, covariance: Array, predicted: Array | None = None) -> BendTest:
    """Test whether a curve leaves its null curve as a floor or a logarithm would.

    Parameters
    ----------
    resamples
        The curve and its noise.
    covariance
        Smooth model of the noise, for weights.
    predicted
        Logarithm of a predicted curve; None for a power law of unknown exponent.
    """
    x, y = resamples.log_sizes, resamples.log_errors
    # columns of what is not known about the null curve
    level = np.ones_like(x)
    lines = np.stack([level, -x] if predicted is None else [level], axis=1)
    slope = -least_squares_forms(np.stack([level, x], axis=1), covariance)[1] @ y
    # Beyond a straight line a law of ln n is -ln ln n, which flattens; beyond a prediction of known
    # slope it is a slope that is too small.
    slow = -np.log(x) if predicted is None else np.log(x)
    towards = (slow, np.exp(max(float(slope), 0.05) * (x - x[-1])))
    forms = [
        least_squares_forms(np.column_stack([lines, direction]), covariance)[-1]
        for direction in towards
    ]
    null = np.zeros_like(y) if predicted is None else predicted
    return BendTest(resamples, np.array(forms), null)


def from_logarithm(resamples: Resamples, covariance: Array) -> BendTest:
    """Departure from a power of ln n in the direction of a power of n."""
    x = resamples.log_sizes
    design = np.column_stack([linear_design("logarithmic", x), -x])
    forms = least_squares_forms(design, covariance)[2:]
    return BendTest(resamples, forms, np.zeros(len(x)))


def floor_curve(
    resamples: Resamples, covariance: Array, share: float, predicted: Array | None = None
) -> tuple[Array, Array, Array]:
    """Best curve with a floor of a given share of the error at the largest size.

    Returns
    -------
    tuple
        Log errors, the columns in which its other parameters move them, and the direction in which
        a larger share does.
    """
    x, y = resamples.log_sizes, resamples.log_errors
    if predicted is not None:
        falling = (predicted - predicted[-1])[None]
    else:
        falling = -EXPONENTS[:, None] * (x - x[-1])
    with np.errstate(divide="ignore"):
        shapes = np.logaddexp(np.log1p(-share) + falling, np.log(share))
    level = least_squares_forms(np.ones((len(x), 1)), covariance)
    residuals = (y - shapes) - ((y - shapes) @ level.T)
    distances = np.einsum("ei,ij,ej->e", residuals, np.linalg.inv(covariance), residuals)
    best = int(np.argmin(distances))
    fitted = y - residuals[best]
    relative = np.exp(falling[best] - shapes[best])
    columns = [np.ones_like(x)]
    if predicted is None:
        columns.append(-(x - x[-1]) * (1 - share) * relative)
    return fitted, np.stack(columns, axis=1), np.exp(-shapes[best]) - relative


def floor_limit(resamples: Resamples, covariance: Array, predicted: Array | None = None) -> float:
    """Largest share of the error at the largest size that a floor may have, with 95% confidence."""
    forms, left = [], []
    for share in SHARES:
        mean, columns, direction = floor_curve(resamples, covariance, float(share), predicted)
        design = np.column_stack([columns, direction])
        forms.append(least_squares_forms(design, covariance)[-1])
        left.append(float(forms[-1] @ (resamples.log_errors - mean)))
    scores = np.array(forms)
    errors = np.maximum(resamples.standard_errors(scores), np.finfo(float).tiny)
    # symmetric, as for all intervals of means: twice the one-sided significance
    excess = np.array(left) / errors + resamples.critical(scores, 1 - 2 * SIGNIFICANCE)
    accepted = np.flatnonzero(excess >= 0)
    if not accepted.size:
        return 0.0
    top = int(accepted[-1])
    if top == len(SHARES) - 1:
        return 1.0
    # between the last share that is accepted and the first that is not
    inside, outside = float(excess[top]), float(excess[top + 1])
    return float(SHARES[top] + (SHARES[top + 1] - SHARES[top]) * inside / (inside - outside))
