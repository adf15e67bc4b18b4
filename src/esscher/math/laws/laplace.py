"""Laplace tokens: exponential tails, so the limit exists only for small tilts."""

from __future__ import annotations

import numpy as np
import scipy

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_dim
from esscher.math.laws.law import TiltDomain
from esscher.math.laws.product import ProductLaw

#: Gauss-Laguerre nodes on one side of 0; with more the outermost weights underflow to 0.
MOST_POINTS = 180


class Laplace(ProductLaw):
    """Independent coordinates of density ``exp(-|x| / scale) / (2 scale)``.

    ``E exp<t, X>`` is finite only if every ``|t_i| < 1 / scale``.
    """

    name = "laplace"

    def __init__(self, dim: int, scale: float = 1.0) -> None:
        super().__init__(dim, scale)

    @property
    def scale(self) -> float:
        """The scale b, mean of the absolute value of a coordinate."""
        return self._scale

    @property
    def tilt_domain(self) -> TiltDomain:
        """The open box ``|t_i| < 1 / scale``."""
        return TiltDomain("box", 1.0 / self._scale)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        return rng.laplace(0.0, self._scale, (n, self._dim))

    def marginal_rule(self, points: int) -> tuple[Array, Array]:
        """Gauss-Laguerre rule with ``points`` nodes on each side of 0."""
        count = as_dim(points, "points")
        if count > MOST_POINTS:
            raise InputError(f"points is {points}; a Laplace rule has at most {MOST_POINTS} a side")
        nodes, weights = scipy.special.roots_laguerre(count)
        half = np.asarray(weights) / (2.0 * np.sum(weights))
        positive = self._scale * np.asarray(nodes)
        return np.concatenate([-positive[::-1], positive]), np.concatenate([half[::-1], half])

    def _unit_log_mgf(self, x: Array) -> Array:
        # Inside the domain scale * t rounds to less than 1, so nothing here divides by 0.
        # Near the edge 1 - x^2 is exact only as a product; near 0 only log1p keeps the digits.
        near = -np.log1p(-np.minimum(x * x, 0.25))
        return np.where(np.abs(x) > 0.5, -np.log((1.0 - x) * (1.0 + x)), near)

    def _unit_mean(self, x: Array) -> Array:
        return np.asarray(2.0 * x / ((1.0 - x) * (1.0 + x)))

    def _unit_variance(self, x: Array) -> Array:
        return np.asarray(2.0 * (1.0 + x * x) / ((1.0 - x) * (1.0 + x)) ** 2)
