"""Tokens of random signs: ``K = sum log cosh``, and the tilted mean is a hyperbolic tangent."""

from __future__ import annotations

import math

import numpy as np

from esscher.core.validation import Array, as_dim
from esscher.math.laws.product import ProductLaw


def log_cosh(x: Array) -> Array:
    """``log cosh x``, accurate near 0 and free of overflow."""
    size = np.abs(x)
    near = np.log1p(2.0 * np.sinh(0.5 * np.minimum(size, 1.0)) ** 2)
    far = size - math.log(2.0) + np.log1p(np.exp(-2.0 * size))
    return np.where(size > 1.0, far, near)


def sech_squared(x: Array) -> Array:
    """``1 / cosh^2 x`` through exp(-2|x|): ``1 - tanh^2`` has no correct digit beyond |x| = 19."""
    decay = np.exp(-2.0 * np.abs(x))
    return np.asarray(4.0 * decay / (1.0 + decay) ** 2)


class Signs(ProductLaw):
    """Independent coordinates equal to ``-scale`` or ``+scale`` with probability 1/2 each."""

    name = "signs"

    def __init__(self, dim: int, scale: float = 1.0) -> None:
        super().__init__(dim, scale)

    @property
    def scale(self) -> float:
        """Absolute value of every coordinate."""
        return self._scale

    @property
    def support_radius(self) -> float:
        """Norm of every token, ``scale * sqrt(d)``."""
        return self._scale * math.sqrt(self._dim)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        heads = rng.integers(0, 2, (n, self._dim)).astype(np.float64)
        return self._scale * (2.0 * heads - 1.0)

    def marginal_rule(self, points: int) -> tuple[Array, Array]:
        """Return the two atoms: the rule is exact, whatever the number of ``points``."""
        as_dim(points, "points")
        return np.array([-self._scale, self._scale]), np.array([0.5, 0.5])

    def _unit_log_mgf(self, x: Array) -> Array:
        return log_cosh(x)

    def _unit_mean(self, x: Array) -> Array:
        return np.tanh(x)

    def _unit_variance(self, x: Array) -> Array:
        return sech_squared(x)
