"""Tokens on a sphere: the tilted law is von Mises-Fisher, its mean a ratio of Bessel functions."""

from __future__ import annotations

import numpy as np

from esscher.core.validation import Array, as_dim, as_positive
from esscher.math.laws.bessel import (
    bessel_ratio_derivative,
    bessel_ratio_over_argument,
    log_bessel_normalised,
)
from esscher.math.laws.law import Law, frozen


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
        self._dim = as_dim(dim)
        self._radius = as_positive(radius, "radius")

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return self._dim

    @property
    def radius(self) -> float:
        """Radius R of the sphere."""
        return self._radius

    @property
    def mean(self) -> Array:
        """The centre, 0."""
        return frozen(np.zeros(self._dim))

    @property
    def covariance(self) -> Array:
        """``R^2 / d`` times the identity."""
        return frozen(np.eye(self._dim) * (self._radius**2 / self._dim))

    @property
    def support_radius(self) -> float:
        """The radius R."""
        return self._radius

    @property
    def _order(self) -> float:
        return self._dim / 2 - 1

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        normal = rng.standard_normal((n, self._dim))
        return np.asarray(normal * (self._radius / np.linalg.norm(normal, axis=1, keepdims=True)))

    def _log_mgf(self, t: Array) -> Array:
        length, _ = _length_and_direction(t)
        return log_bessel_normalised(self._order, self._radius * length)

    def _tilted_mean(self, t: Array) -> Array:
        length, _ = _length_and_direction(t)
        ratio = bessel_ratio_over_argument(self._order, self._radius * length)
        return np.asarray((self._radius**2 * ratio)[..., None] * t)

    def _tilted_covariance(self, t: Array) -> Array:
        """``R^2 [r' uu' + (r / kappa)(I - uu')]`` with u the direction of the tilt."""
        length, u = _length_and_direction(t)
        kappa = self._radius * length
        along = self._radius**2 * bessel_ratio_derivative(self._order, kappa)[..., None]
        across = self._radius**2 * bessel_ratio_over_argument(self._order, kappa)[..., None]
        hessian = ((along - across) * u)[..., :, None] * u[..., None, :]
        # The diagonal apart: it keeps `along` exact where it is tiny beside `across`.
        axis = np.arange(self._dim)
        hessian[..., axis, axis] = along * u**2 + across * ((1.0 - u) * (1.0 + u))
        return np.asarray(hessian)

    def _parameters(self) -> dict[str, object]:
        return {"dim": self._dim, "radius": self._radius}
