"""Gaussian tokens: the limit is affine, ``grad K(t) = m + Sigma t``."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError, UndefinedError
from esscher.core.validation import Array, as_array, as_covariance, as_dim, as_positive
from esscher.math.laws.law import Law, TiltDomain, as_probabilities, frozen


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
    mean: Array

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
            sizes_text = ", ".join(f"{place} is {size}" for place, size in known.items())
            raise InputError(f"{sizes_text}; they must agree")
        size = next(iter(known.values()))
        self.mean = frozen(np.zeros(size) if given_mean is None else given_mean)
        self.dim = len(self.mean)
        if self._sigma is not None:
            self.parameters = {"mean": self.mean, "covariance": self._sigma}
        else:
            self.parameters = {"mean": self.mean} if self.mean.any() else {"dim": self.dim}

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
        return self.mean + (noise if self._sigma is None else noise @ self._factor.T)

    def _log_mgf(self, t: Array) -> Array:
        image = t if self._sigma is None else t @ self._sigma
        return np.asarray(t @ self.mean + 0.5 * np.sum(image * t, axis=-1))

    def _tilted_mean(self, t: Array) -> Array:
        return np.asarray(self.mean + (t if self._sigma is None else t @ self._sigma))

    def _tilted_covariance(self, t: Array) -> Array:
        return np.array(np.broadcast_to(self.covariance, (*t.shape[:-1], self.dim, self.dim)))


# Gaussian mixtures: tilting moves the component means and re-weights the components.
#
# Component c of the tilted law is ``N(m_c + Sigma t, Sigma)`` with weight proportional to
# ``pi_c exp <t, m_c>``.


class GaussianMixture(Law):
    """Sum of ``weights[c] * N(means[c], covariance)``.

    Parameters
    ----------
    weights
        Positive, summing to 1, of shape (c,).
    means
        Component means, of shape (c, d).
    covariance
        Of every component, of shape (d, d).
    """

    name = "mixture"

    def __init__(self, weights: ArrayLike, means: ArrayLike, covariance: ArrayLike) -> None:
        self.weights = as_probabilities(weights)
        self.means = frozen(as_array(means, "means", ndim=2))
        count, dim = self.means.shape
        if count != len(self.weights) or dim == 0:
            raise InputError(
                f"means has shape {self.means.shape} and there are {len(self.weights)} weights; "
                "means must have shape (components, dim)"
            )
        self._sigma = frozen(as_covariance(covariance))
        if self._sigma.shape != (dim, dim):
            raise InputError(f"covariance has shape {self._sigma.shape}; it must be {(dim, dim)}")
        self.dim = dim
        self.parameters = {
            "weights": self.weights,
            "means": self.means,
            "covariance": self._sigma,
        }

    @cached_property
    def mean(self) -> Array:
        """Mean of the mixture."""
        return frozen(self.weights @ self.means)

    @cached_property
    def _factor(self) -> Array:
        return covariance_factor(self._sigma)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        component = rng.choice(len(self.weights), size=n, p=self.weights)
        tokens = rng.standard_normal((n, self.dim))
        for c, mean in enumerate(self.means):
            rows = component == c
            tokens[rows] = mean + tokens[rows] @ self._factor.T
        return tokens

    def _excess(self, t: Array) -> Array:
        """``log pi_c + K_c(t) - K_0(t)``, of shape (..., c).

        Only differences decide between the components, so that the part that component 0 has in
        common with the others is removed before anything is rounded.
        """
        logits = np.empty((*t.shape[:-1], len(self.weights)))
        for c, weight in enumerate(self.weights):
            logits[..., c] = np.log(weight) + np.sum(t * (self.means[c] - self.means[0]), axis=-1)
        return logits

    def _tilted_weights(self, t: Array) -> Array:
        logits = self._excess(t)
        return np.asarray(np.exp(logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)))

    def _log_mgf(self, t: Array) -> Array:
        slope = self.means[0] + 0.5 * (t @ self._sigma)
        return np.asarray(
            np.sum(t * slope, axis=-1) + scipy.special.logsumexp(self._excess(t), axis=-1)
        )

    def _tilted_mean(self, t: Array) -> Array:
        weights = self._tilted_weights(t)
        mean = np.zeros(t.shape)
        for c in range(len(self.weights)):
            mean += weights[..., c, None] * (self.means[c] + t @ self._sigma)
        return mean

    def _tilted_covariance(self, t: Array) -> Array:
        weights, mean = self._tilted_weights(t), self._tilted_mean(t)
        total = np.zeros((*t.shape, self.dim))
        for c in range(len(self.weights)):
            gap = self.means[c] + t @ self._sigma - mean
            spread = self._sigma + gap[..., :, None] * gap[..., None, :]
            total += weights[..., c, None, None] * spread
        return total


# Student t tokens: power-law tails, so there is no infinite-token limit at any tilt but 0.


class StudentT(Law):
    """Multivariate t: ``scale * Z / sqrt(chi2_df / df)`` with Z standard normal in R^dim.

    At tilt 0 attention is the plain average: the tilted mean is the mean (``nan`` for df <= 1,
    where the law of large numbers fails) and the tilted covariance is the covariance (``nan`` for
    df <= 2).
    """

    name = "student"
    tilt_domain = TiltDomain("zero")

    def __init__(self, dim: int, df: float, scale: float = 1.0) -> None:
        self.dim = as_dim(dim)
        self.df = as_positive(df, "df")
        self.scale = as_positive(scale, "scale")
        self.parameters = {"dim": self.dim, "df": self.df, "scale": self.scale}
        self._variance = self.scale**2 * self.df / (self.df - 2) if self.df > 2 else float("nan")

    @cached_property
    def mean(self) -> Array:
        """The mean, 0, which exists for df > 1."""
        if self.df <= 1:
            raise UndefinedError(f"a Student t law with df = {self.df:g} <= 1 has no mean")
        return frozen(np.zeros(self.dim))

    @cached_property
    def covariance(self) -> Array:
        """``scale^2 df / (df - 2)`` times the identity, which exists for df > 2."""
        if self.df <= 2:
            raise UndefinedError(f"a Student t law with df = {self.df:g} <= 2 has no covariance")
        return frozen(self._variance * np.eye(self.dim))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        normal = rng.standard_normal((n, self.dim))
        # One divisor for all coordinates: they are uncorrelated but not independent.
        divisor = np.sqrt(rng.chisquare(self.df, (n, 1)) / self.df)
        return np.asarray(self.scale * normal / divisor)

    def _log_mgf(self, t: Array) -> Array:
        return np.zeros(t.shape[:-1])

    def _tilted_mean(self, t: Array) -> Array:
        return np.full(t.shape, 0.0 if self.df > 1 else np.nan)

    def _tilted_covariance(self, t: Array) -> Array:
        matrix = np.full((self.dim, self.dim), 0.0 if self.df > 2 else np.nan)
        np.fill_diagonal(matrix, self._variance)
        return np.array(np.broadcast_to(matrix, (*t.shape, self.dim)))
