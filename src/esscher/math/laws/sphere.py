"""Ratios and logarithms of modified Bessel functions, to full relative accuracy.

One algorithm for every order ``nu >= -1/2`` and argument ``kappa >= 0``: raise the order until
Debye's uniform asymptotic expansion (DLMF 10.41) is accurate to rounding, then come back with
recurrences whose terms are all positive. With ``s_nu = r_nu / kappa`` nothing is divided by
``kappa``, so ``kappa = 0`` is not a special case.

The derivative of the ratio is taken through its own recurrence: the textbook formula
``1 - r^2 - (2 nu + 1) r / kappa`` cancels almost entirely once ``kappa`` is large.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.polynomial.polynomial import polyder, polyval
from numpy.typing import ArrayLike

from esscher.core.validation import Array, as_dim, as_positive
from esscher.math.laws.law import Law, frozen

#: Order from which Debye's expansion with ``DEBYE_TERMS`` terms is accurate to rounding. Not
#: larger than needed: every step down from it adds rounding error to the derivative.
DEBYE_ORDER = 18
DEBYE_TERMS = 14


def bessel_ratio_over_argument(nu: float, kappa: ArrayLike) -> Array:
    """``s_nu = r_nu / kappa`` with ``r_nu = I_{nu+1} / I_nu``, for nu >= -1/2 and kappa >= 0.

    At 0 it is ``1 / (2 (nu + 1))``; down the orders ``s_nu = 1 / (2 (nu + 1) + kappa^2 s_{nu+1})``.
    """
    k = np.asarray(kappa, dtype=np.float64)
    orders, top = _orders(nu)
    s = _debye_ratio(top, k)
    for order in orders:
        s = 1.0 / (2.0 * (order + 1.0) + k * (k * s))  # errors shrink on the way down
    return np.asarray(s)


def bessel_ratio_derivative(nu: float, kappa: ArrayLike) -> Array:
    """``d r_nu / d kappa``, from ``r'_nu = s_nu^2 (2 (nu + 1) - kappa^2 r'_{nu+1})``."""
    k = np.asarray(kappa, dtype=np.float64)
    if nu == -0.5:
        # r = tanh: the derivative decays exponentially and the recurrence would cancel.
        decay = np.exp(-2.0 * k)
        return np.asarray(4.0 * decay / (1.0 + decay) ** 2)
    orders, top = _orders(nu)
    s, slope = _debye_ratio(top, k), _debye_slope(top, k)
    for order in orders:
        s = 1.0 / (2.0 * (order + 1.0) + k * (k * s))
        slope = s * s * (2.0 * (order + 1.0) - k * (k * slope))
    return slope


def log_bessel_normalised(nu: float, kappa: ArrayLike) -> Array:
    """``log[Gamma(nu + 1) (2 / kappa)^nu I_nu(kappa)]``, which is 0 at kappa = 0.

    Down the orders by ``L_nu = L_{nu+1} + log(1 + kappa^2 s_{nu+1} / (2 (nu + 1)))``.
    """
    k = np.asarray(kappa, dtype=np.float64)
    orders, top = _orders(nu)
    s, total = _debye_ratio(top, k), _debye_log(top, k)
    for order in orders:
        total = total + np.log1p(k * (k * s) / (2.0 * (order + 1.0)))
        s = 1.0 / (2.0 * (order + 1.0) + k * (k * s))
    return total


def _orders(nu: float) -> tuple[list[float], float]:
    """Return the orders to pass on the way down to ``nu``, and the order to start from."""
    steps = max(0, math.ceil(DEBYE_ORDER - nu))
    return [nu + j for j in reversed(range(steps))], nu + steps


@cache
def _debye_polynomials() -> tuple[tuple[Fraction, ...], ...]:
    """``u_1 .. u_n`` by DLMF 10.41.9, as coefficients of rising powers."""
    current = [Fraction(1)]
    polynomials = []
    for _ in range(DEBYE_TERMS):
        following = [Fraction(0)] * (len(current) + 3)
        for power, coefficient in enumerate(current):
            following[power + 1] += coefficient * (Fraction(power, 2) + Fraction(1, 8 * power + 8))
            following[power + 3] -= coefficient * (Fraction(power, 2) + Fraction(5, 8 * power + 24))
        current = following
        polynomials.append(tuple(current))
    return tuple(polynomials)


@lru_cache(maxsize=256)
def _debye_series(order: float) -> tuple[float, ...]:
    """Coefficients of ``E(p) = sum_{k>=1} u_k(p) / order^k``, so that ``S = 1 + E``."""
    total = [0.0] * (3 * DEBYE_TERMS + 1)
    for k, polynomial in enumerate(_debye_polynomials(), start=1):
        for power, coefficient in enumerate(polynomial):
            total[power] += float(coefficient) / order**k
    return tuple(total)


def _debye_ratio(order: float, k: Array) -> Array:
    """``s_N``: with z = kappa/N, q = sqrt(1 + z^2), p = 1/q and L = log S.

    ``r_N = z/(1+q) - z p^2/(2N) + (1/N) dL/dz`` and ``dp/dz = -z p^3``; the common factor z goes.
    """
    q = np.hypot(1.0, k / order)
    p = 1.0 / q
    series = _debye_series(order)
    log_slope = polyval(p, polyder(series)) / (1.0 + polyval(p, series))
    correction = p * p * (0.5 + p * log_slope)
    return np.asarray((1.0 / (1.0 + q) - correction / order) / order)


def _debye_slope(order: float, k: Array) -> Array:
    """``r'_N``, where ``z^2`` enters as ``(1 - p^2) / p^2`` so that nothing overflows."""
    q = np.hypot(1.0, k / order)
    p = 1.0 / q
    series = _debye_series(order)
    value = 1.0 + polyval(p, series)
    log_slope = polyval(p, polyder(series)) / value
    log_curvature = polyval(p, polyder(series, 2)) / value - log_slope**2
    square = p * p
    second_order = (
        square * (0.5 - square)
        + p * square * (2.0 - 3.0 * square) * log_slope
        + square * square * (1.0 - square) * log_curvature
    )
    return np.asarray((p / (1.0 + q) + second_order / order) / order)


def _debye_log(order: float, k: Array) -> Array:
    """``log[Gamma(N + 1) (2 / kappa)^N I_N(kappa)]`` without cancellation near 0.

    ``Gamma(N + 1)`` is the same expansion at p = 1 (kappa = 0), so only ``S(p) / S(1)`` enters;
    its difference from 1 is ``(p - 1) Q(p) / S(1)`` with Q the exact polynomial quotient.
    """
    z = k / order
    q = np.hypot(1.0, z)
    w = z * (z / (1.0 + q))  # q - 1
    series = _debye_series(order)
    quotient: list[float] = []
    for coefficient in reversed(series[1:]):
        quotient.append(coefficient + (quotient[-1] if quotient else 0.0))
    change = -(w / q) * polyval(1.0 / q, quotient[::-1]) / (1.0 + sum(series))
    # 0.25 log(1 + z^2) = 0.5 log q = 0.5 log(1 + w)
    leading = order * (w - np.log1p(0.5 * w))
    return np.asarray(leading - 0.5 * np.log1p(w) + np.log1p(change))


# Tokens on a sphere: the tilted law is von Mises-Fisher, its mean a ratio of Bessel functions.


def _length_and_direction(t: Array) -> tuple[Array, Array]:
    """Split tilts into |t| and t/|t| (0 at t = 0), safe from overflow and underflow of squares."""
    largest = np.max(np.abs(t), axis=-1, keepdims=True)
    unit = np.where(largest > 0, largest, 1.0)
    scaled = t / unit
    length = np.sqrt(np.sum(scaled * scaled, axis=-1, keepdims=True))
    return (unit * length)[..., 0], scaled / np.where(length > 0, length, 1.0)


class Sphere(Law):
    """Uniform law on the sphere of ``radius`` around 0 in R^dim (two points when dim is 1)."""

    name = "sphere"

    def __init__(self, dim: int, radius: float = 1.0) -> None:
        self.dim = as_dim(dim)
        self.radius = self.support_radius = as_positive(radius, "radius")
        self.parameters = {"dim": self.dim, "radius": self.radius}
        self._order = self.dim / 2 - 1

    @cached_property
    def covariance(self) -> Array:
        """``R^2 / d`` times the identity."""
        return frozen(np.eye(self.dim) * (self.radius**2 / self.dim))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        normal = rng.standard_normal((n, self.dim))
        return np.asarray(normal * (self.radius / np.linalg.norm(normal, axis=1, keepdims=True)))

    def _log_mgf(self, t: Array) -> Array:
        length, _ = _length_and_direction(t)
        return log_bessel_normalised(self._order, self.radius * length)

    def _tilted_mean(self, t: Array) -> Array:
        length, _ = _length_and_direction(t)
        ratio = bessel_ratio_over_argument(self._order, self.radius * length)
        return np.asarray((self.radius**2 * ratio)[..., None] * t)

    def _tilted_covariance(self, t: Array) -> Array:
        """``R^2 [r' uu' + (r / kappa)(I - uu')]`` with u the direction of the tilt."""
        length, u = _length_and_direction(t)
        kappa = self.radius * length
        along = self.radius**2 * bessel_ratio_derivative(self._order, kappa)[..., None]
        across = self.radius**2 * bessel_ratio_over_argument(self._order, kappa)[..., None]
        hessian = ((along - across) * u)[..., :, None] * u[..., None, :]
        # The diagonal apart: it keeps `along` exact where it is tiny beside `across`.
        axis = np.arange(self.dim)
        hessian[..., axis, axis] = along * u**2 + across * ((1.0 - u) * (1.0 + u))
        return np.asarray(hessian)
