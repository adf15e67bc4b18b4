"""Gaussian tokens: the limit is affine, ``grad K(t) = m + Sigma t``."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_covariance, as_dim
from esscher.math.laws.law import Law, frozen


def covariance_factor(covariance: Array) -> Array:
    """Return L with L L' = covariance (Cholesky, or eigenvectors when it is singular)."""
    try:
        return np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


class Gaussian(Law):
    """N(mean, covariance); the covariance may be singular.

    ``Gaussian(dim=8)`` is the standard normal law in dimension 8.
    """

    name = "gaussian"

    def __init__(
        self,
        mean: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
        *,
        dim: int | None = None,
    ) -> None:
        if mean is None and covariance is None and dim is None:
            raise InputError("a Gaussian law needs a mean, a covariance or dim=...")
        # Without a covariance Sigma = I is kept implicit: no d x d matrix for K or its gradient.
        self._sigma = None if covariance is None else frozen(as_covariance(covariance))
        given_mean = None if mean is None else as_array(mean, "mean", ndim=1)
        sizes = {
            "dim": None if dim is None else as_dim(dim),
            "the length of mean": None if given_mean is None else as_dim(len(given_mean)),
            "the size of covariance": None if self._sigma is None else len(self._sigma),
        }
        known = {place: size for place, size in sizes.items() if size is not None}
        if len(set(known.values())) > 1:
            said = ", ".join(f"{place} is {size}" for place, size in known.items())
            raise InputError(f"{said}; they must agree")
        size = next(iter(known.values()))
        self._mean = frozen(np.zeros(size) if given_mean is None else given_mean)

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return len(self._mean)

    @property
    def mean(self) -> Array:
        """The mean m."""
        return self._mean

    @cached_property
    def covariance(self) -> Array:
        """The covariance Sigma."""
        return frozen(np.eye(self.dim)) if self._sigma is None else self._sigma

    @cached_property
    def _factor(self) -> Array:
        """A matrix L with L L' = Sigma."""
        return covariance_factor(self.covariance)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        noise = rng.standard_normal((n, self.dim))
        return self._mean + (noise if self._sigma is None else noise @ self._factor.T)

    def _sigma_times(self, t: Array) -> Array:
        return t if self._sigma is None else np.asarray(t @ self._sigma)

    def _log_mgf(self, t: Array) -> Array:
        return np.asarray(t @ self._mean + 0.5 * np.sum(self._sigma_times(t) * t, axis=-1))

    def _tilted_mean(self, t: Array) -> Array:
        return np.asarray(self._mean + self._sigma_times(t))

    def _tilted_covariance(self, t: Array) -> Array:
        return np.array(np.broadcast_to(self.covariance, (*t.shape[:-1], self.dim, self.dim)))

    def _parameters(self) -> dict[str, object]:
        if self._sigma is not None:
            return {"mean": self._mean, "covariance": self._sigma}
        return {"mean": self._mean} if self._mean.any() else {"dim": self.dim}
