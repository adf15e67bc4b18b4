"""Tokens in a cube: the tilted mean is Langevin's function ``coth x - 1/x`` per coordinate."""

from __future__ import annotations

import math

import numpy as np
import scipy

from esscher.core.validation import Array, as_dim
from esscher.math.laws.product import ProductLaw

#: Below this the closed forms cancel and the expansions at 0 take over.
SMALL = 1.0
#: Orders of the continued fraction and terms of the series: beyond rounding at x = SMALL.
TERMS = 10


def _near_zero(x: Array) -> tuple[Array, Array]:
    """``(coth x - 1/x) / x`` and the derivative of ``coth x - 1/x``, for |x| <= SMALL.

    Langevin's function is the ratio of Bessel functions of order 1/2; this is its continued
    fraction ``x / (3 + x^2 / (5 + x^2 / (7 + ...)))``, evaluated from the inside.
    """
    square = x * x
    ratio = slope = np.full(x.shape, 1.0 / (2 * TERMS + 3))
    for odd in range(2 * TERMS + 1, 1, -2):
        ratio = 1.0 / (odd + square * ratio)
        slope = ratio * ratio * (odd - square * slope)
    return ratio, slope


def langevin(x: Array) -> Array:
    """``coth x - 1/x``, the mean of the uniform law on [-1, 1] tilted by x."""
    ratio, _ = _near_zero(np.clip(x, -SMALL, SMALL))
    large = np.where(np.abs(x) > SMALL, x, SMALL)
    return np.where(np.abs(x) > SMALL, 1.0 / np.tanh(large) - 1.0 / large, x * ratio)


def langevin_derivative(x: Array) -> Array:
    """``1/x^2 - 1/sinh^2 x``."""
    _, slope = _near_zero(np.clip(x, -SMALL, SMALL))
    large = np.maximum(np.abs(x), SMALL)
    # 1/sinh^2 through exp(-2x), which underflows quietly where sinh would overflow.
    inverse_sinh_squared = 4.0 * np.exp(-2.0 * large) / np.expm1(-2.0 * large) ** 2
    return np.where(np.abs(x) > SMALL, (1.0 / large) ** 2 - inverse_sinh_squared, slope)


def log_sinhc(x: Array) -> Array:
    """``log(sinh x / x)``."""
    square = np.clip(x, -SMALL, SMALL) ** 2
    # sinh x / x - 1 = x^2/6 (1 + x^2/20 (1 + x^2/42 (1 + ...))): positive terms only.
    excess = np.zeros(x.shape)
    for k in range(TERMS, 0, -1):
        excess = (1.0 + excess) * square / (2 * k * (2 * k + 1))
    large = np.maximum(np.abs(x), SMALL)
    closed = large + np.log(-np.expm1(-2.0 * large) / (2.0 * large))
    return np.where(np.abs(x) > SMALL, closed, np.log1p(excess))


class Cube(ProductLaw):
    """Uniform law on the cube ``[-half_width, half_width]^dim``."""

    name = "cube"
    scale_name = "half_width"

    def __init__(self, dim: int, half_width: float = 1.0) -> None:
        super().__init__(dim, half_width)

    @property
    def half_width(self) -> float:
        """Half of the side of the cube."""
        return self._scale

    @property
    def support_radius(self) -> float:
        """Half of the diagonal of the cube."""
        return self._scale * math.sqrt(self._dim)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        return rng.uniform(-self._scale, self._scale, (n, self._dim))

    def marginal_rule(self, points: int) -> tuple[Array, Array]:
        """Gauss-Legendre rule for the uniform law on [-half_width, half_width]."""
        nodes, weights = scipy.special.roots_legendre(as_dim(points, "points"))
        return self._scale * np.asarray(nodes), np.asarray(weights) / np.sum(weights)

    def _unit_log_mgf(self, x: Array) -> Array:
        return log_sinhc(x)

    def _unit_mean(self, x: Array) -> Array:
        return langevin(x)

    def _unit_variance(self, x: Array) -> Array:
        return langevin_derivative(x)
