"""Tokens needed for an error, read off a fitted law."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy

from esscher.core.shown import plain_count
from esscher.core.validation import Array
from esscher.math.statistics.laws import law_words
from esscher.math.statistics.records import finite, finite_list

#: Places at which a predicted curve is compared with an error.
GRID = 2001


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; None for infinity (JSON-safe)."""
        plain = asdict(self) | {"n": finite(self.n), "rivals": list(self.rivals)}
        return plain | {"interval": finite_list(self.interval)}

    def __repr__(self) -> str:
        low, high = (_count(end) for end in self.interval)
        beyond = ", extrapolated" if self.extrapolated else ""
        if self.rivals:
            others = " and ".join(f"a {law_words(name)}" for name in self.rivals)
            beyond += f"; the law is undecided, and the interval allows for {others}"
        if not self.fits:
            beyond += "; but no law fits, and the interval is what the measured sizes alone say"
        return (
            f"error {self.error:.3g} takes {_count(self.n)} tokens, between {low} and {high} "
            f"({law_words(self.law)}{beyond})"
        )


def solve_line(
    log_error: float, coefficients: Array, covariance: Array, critical: float
) -> tuple[float, float, float]:
    """Solve ``a - b z = log_error`` for z, with Fieller's interval.

    The interval holds every z at which the line is compatible with the error, so that it is right
    also for a slope that is hardly known; it is then unbounded.

    Parameters
    ----------
    log_error
        Logarithm of the error.
    coefficients
        a and b.
    covariance
        Their covariance.
    critical
        Number of standard errors of the interval.
    """
    a, b = coefficients[0] - log_error, coefficients[1]
    if b <= 0:
        return math.inf, -math.inf, math.inf
    z, c2 = a / b, critical**2
    # (a - b z)^2 = c^2 Var(a - b z), a quadratic equation in z
    square = b * b - c2 * covariance[1, 1]
    half = a * b - c2 * covariance[0, 1]
    rest = a * a - c2 * covariance[0, 0]
    root = half * half - square * rest
    if not np.isfinite(square) or root < 0:
        return z, -math.inf, math.inf
    if square <= 0:
        # The slope may be 0. One end is left, if any; it bounds z from below.
        ends = sorted((half + s * math.sqrt(root)) / square for s in (1, -1)) if square else []
        below = [end for end in ends if end < z]
        return z, below[-1] if below else -math.inf, math.inf
    return z, (half - math.sqrt(root)) / square, (half + math.sqrt(root)) / square


def solve_floor(
    error: float, parameters: Array, covariance: Array, critical: float
) -> tuple[float, float, float]:
    """Solve ``C n^-b + e0 = error`` for ln n, with an interval by the delta method.

    ``parameters`` are (ln C, b, e0).
    """
    log_c, b, floor = parameters
    if b <= 0:
        return math.inf, -math.inf, math.inf
    if error <= floor:
        # without any floor it would still take this many
        return math.inf, (log_c - math.log(error)) / b, math.inf
    z = (log_c - math.log(error - floor)) / b
    gradient = np.array([1.0, -z, 1 / (error - floor)]) / b
    half = critical * math.sqrt(max(float(gradient @ covariance @ gradient), 0.0))
    reach = floor + critical * math.sqrt(max(float(covariance[2, 2]), 0.0))
    return z, z - half, math.inf if reach >= error else z + half


def solve_two_powers(
    error: float, parameters: Array, covariance: Array, critical: float
) -> tuple[float, float, float]:
    """Solve ``a n^-1/2 + b n^-1 = error`` for ln n, with Fieller's interval.

    The sum is linear in ``parameters = (a, b)``, so that the interval holds every n at which it is
    compatible with the error; its ends are roots of a polynomial in ``n^-1/2``.
    """
    a, b = (float(value) for value in parameters)
    u = (
        2 * error / (a + math.sqrt(a * a + 4 * b * error))
    )  # n^-1/2, without cancellation for small b
    a, b = a * u / error, b * u * u / error  # in units of u and of the error: a + b = 1
    scale = np.array([u, u * u]) / error
    (aa, ab), (_, bb) = critical**2 * covariance * np.outer(scale, scale)
    # (a w + b w^2 - 1)^2 = c^2 Var(a w + b w^2)
    polynomial = [b * b - bb, 2 * (a * b - ab), a * a - 2 * b - aa, -2 * a, 1.0]
    roots = np.roots(polynomial)
    ends = np.sort(roots[(np.abs(roots.imag) < 1e-9) & (roots.real > 0)].real)
    z = -2 * math.log(u)
    below, above = ends[ends <= 1], ends[ends >= 1]
    return (
        z,
        z - 2 * math.log(above[-1]) if above.size else -math.inf,
        z - 2 * math.log(below[0]) if below.size else math.inf,
    )


def solve_predicted(
    log_error: float,
    curve: tuple[Array, Array],
    ratio: float,
    line: tuple[Array, Array],
    critical: float,
) -> tuple[float, float, float] | None:
    """Solve ``ratio * predicted(n) = error`` for ln n; None where the curve does not get there.

    Parameters
    ----------
    log_error
        Logarithm of the error.
    curve
        Numbers of tokens and predicted errors; a cubic spline in log-log coordinates between them.
    ratio
        Logarithm of the ratio of measured to predicted errors.
    line
        Intercept and slope ``(a, b)`` of ``a - b ln n`` fitted to that logarithm, and their
        covariance: the interval allows for such a drift, beyond the measured sizes too.
    critical
        Number of standard errors of the interval.
    """
    x, y = np.log(curve[0]), np.log(curve[1])
    z = np.linspace(x[0], x[-1], GRID)
    predicted = scipy.interpolate.CubicSpline(x, y)(z) - log_error
    (a, b), covariance = line
    design = np.stack([np.ones_like(z), -z], axis=1)
    half = critical * np.sqrt(np.einsum("zi,ij,zj->z", design, covariance, design))
    n, low, high = (
        _crossing(z, predicted + above) for above in (ratio, a - b * z - half, a - b * z + half)
    )
    return (n, min(n, low), max(n, high)) if math.isfinite(n) else None


def _crossing(z: Array, values: Array) -> float:
    """Where values fall below 0 for good: ``-inf`` if before the first z, ``inf`` if never."""
    above = np.flatnonzero(values > 0)
    if not above.size:
        return -math.inf
    i = int(above[-1])
    if i == len(z) - 1:
        return math.inf
    return float(z[i] + (z[i + 1] - z[i]) * values[i] / (values[i] - values[i + 1]))


def tokens_from_log(log_n: float) -> float:
    """``exp(log_n)``, at least one token, infinite beyond the range of floats."""
    return max(1.0, math.exp(log_n)) if log_n < 709 else math.inf


def _count(n: float) -> str:
    return plain_count(math.ceil(n) if math.isfinite(n) else n)
