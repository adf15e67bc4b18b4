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

from typing import Any

import numpy as np
import scipy

from esscher.core.codec import Name, Record
from esscher.core.validation import Array
from esscher.math.statistics.intervals import Resamples
from esscher.math.statistics.records import Matrix

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


class LawFit(Record, frozen=True, kw_only=True):
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
    weight
        ``exp(-criterion / 2)``, normalised over the laws.
    p_value
        Probability of a larger distance if this law were true, from resampled replicates.
    """

    law: Name
    parameters: dict[str, float]
    covariance: Matrix
    chi_square: float
    criterion: float
    weight: float
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
