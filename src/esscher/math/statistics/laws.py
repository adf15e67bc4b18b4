"""The laws an error curve is compared with, fitted to its logarithms.

* power: ``ln C - b ln n``
* logarithmic: ``ln C - g ln ln n``
* floor: ``ln(C n^-b + e0)`` with ``e0 >= 0``
* two powers: ``ln(a n^-1/2 + b n^-1)`` with ``a, b >= 0``: noise that averages out, and the bias of
  a nonlinear function of it. In the end its exponent is 1/2, unless ``a = 0``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.statistics.noise import least_squares_forms
from esscher.math.statistics.records import FittedLaw

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


@dataclass(frozen=True, eq=False)
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
    weight
        ``exp(-criterion / 2)``, normalised over the laws.
    p_value
        Probability of a larger distance if this law were true, from resampled replicates.
    """

    law: str
    parameters: dict[str, float]
    covariance: Array
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

    def record(self) -> FittedLaw:
        """Return what is stored of it."""
        return FittedLaw(
            parameters=dict(self.parameters),
            chi_square=self.chi_square,
            criterion=self.criterion,
            weight=self.weight,
            p_value=self.p_value,
        )


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

    def distance(p: Array) -> Array:
        return np.asarray(whitener @ (y - _log_floor_law(p, x, smallest)))

    def change(p: Array) -> Array:
        return np.asarray(-whitener @ _floor_jacobian(p, x, smallest))

    for share in STARTS:
        above = np.log(np.maximum(np.exp(y) - share * smallest, 1e-3 * smallest))
        slope, start = np.polyfit(x, above, 1)
        found = scipy.optimize.least_squares(
            distance,
            [start, float(np.clip(-slope, 0.01, STEEPEST - 0.01)), share],
            change,
            bounds=([-np.inf, 0.0, 0.0], [np.inf, STEEPEST, np.inf]),
            x_scale=[1.0, 0.1, 0.1],
        )
        if found.cost < best:
            best, parameters = float(found.cost), np.asarray(found.x)
    jacobian = _floor_jacobian(parameters, x, smallest)
    forms = least_squares_forms(jacobian, covariance) * np.array([1.0, 1.0, smallest])[:, None]
    residuals = y - _log_floor_law(parameters, x, smallest)
    return parameters * np.array([1.0, 1.0, smallest]), residuals, forms


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


def _log_floor_law(parameters: Array, x: Array, unit: float) -> Array:
    log_c, b, floor = parameters
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(log_c - b * x, np.log(floor * unit)))


def _floor_jacobian(parameters: Array, x: Array, unit: float) -> Array:
    log_c, b, _ = parameters
    total = _log_floor_law(parameters, x, unit)
    share = np.exp(log_c - b * x - total)
    return np.stack([share, -x * share, unit * np.exp(-total)], axis=1)
