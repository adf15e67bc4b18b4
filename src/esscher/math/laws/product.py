"""Laws with independent, identically distributed, symmetric coordinates.

``K(t)`` is a sum over the coordinates, its gradient is taken coordinate by coordinate and its
Hessian is diagonal. A law of this kind says only what its one-dimensional marginal does.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from esscher.core.validation import Array, as_dim, as_positive
from esscher.math.laws.law import Law, frozen


class ProductLaw(Law):
    """Base of the laws whose coordinates are independent copies of ``scale`` times one variable."""

    is_product: ClassVar[bool] = True
    #: Name of the law's scale.
    scale_name: ClassVar[str] = "scale"

    def __init__(self, dim: int, scale: float) -> None:
        self._dim = as_dim(dim)
        self._scale = as_positive(scale, self.scale_name)

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return self._dim

    @property
    def mean(self) -> Array:
        """The mean, 0."""
        return frozen(np.zeros(self._dim))

    @property
    def covariance(self) -> Array:
        """Variance of the marginal times the identity."""
        variance = self._scale**2 * float(self._unit_variance(np.zeros(())))
        return frozen(variance * np.eye(self._dim))

    @abstractmethod
    def marginal_rule(self, points: int) -> tuple[Array, Array]:
        """Quadrature nodes and weights (summing to 1) for the law of one coordinate.

        ``points`` is the number of Gauss nodes; a law that needs fewer, or one set on each side
        of 0, says so.
        """

    @abstractmethod
    def _unit_log_mgf(self, x: Array) -> Array:
        """Cumulant generating function of one coordinate at scale 1."""

    @abstractmethod
    def _unit_mean(self, x: Array) -> Array:
        """Its first derivative."""

    @abstractmethod
    def _unit_variance(self, x: Array) -> Array:
        """Its second derivative."""

    def _log_mgf(self, t: Array) -> Array:
        return np.asarray(np.sum(self._unit_log_mgf(self._scale * t), axis=-1))

    def _tilted_mean(self, t: Array) -> Array:
        return self._scale * self._unit_mean(self._scale * t)

    def _tilted_covariance(self, t: Array) -> Array:
        hessian = np.zeros((*t.shape, self._dim))
        axis = np.arange(self._dim)
        hessian[..., axis, axis] = self._scale**2 * self._unit_variance(self._scale * t)
        return hessian

    def _parameters(self) -> dict[str, object]:
        return {"dim": self._dim, self.scale_name: self._scale}
