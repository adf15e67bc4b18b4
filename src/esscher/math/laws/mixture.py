"""Gaussian mixtures: tilting moves the component means and re-weights the components.

Component c of the tilted law is ``N(m_c + Sigma_c t, Sigma_c)`` with weight proportional to
``pi_c exp(<t, m_c> + t' Sigma_c t / 2)``.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_covariance
from esscher.math.laws.gaussian import covariance_factor
from esscher.math.laws.law import Law, as_probabilities, frozen


class GaussianMixture(Law):
    """Sum of ``weights[c] * N(means[c], covariances[c])``.

    Parameters
    ----------
    weights
        Positive, summing to 1, of shape (c,).
    means
        Component means, of shape (c, d).
    covariances
        Of shape (c, d, d), or (d, d) for one covariance shared by every component.
    """

    name = "mixture"

    def __init__(self, weights: ArrayLike, means: ArrayLike, covariances: ArrayLike) -> None:
        self._weights = as_probabilities(weights)
        self._means = frozen(as_array(means, "means", ndim=2))
        count, dim = self._means.shape
        if count != len(self._weights) or dim == 0:
            raise InputError(
                f"means has shape {self._means.shape} and there are {len(self._weights)} weights; "
                "means must have shape (components, dim)"
            )
        given = as_array(covariances, "covariances")
        if given.shape not in {(dim, dim), (count, dim, dim)}:
            raise InputError(
                f"covariances has shape {given.shape}; "
                f"it must be {(count, dim, dim)}, or {(dim, dim)} when shared"
            )
        self._shared = given.ndim == 2
        stack = [given] if self._shared else list(given)
        names = ["covariances"] if self._shared else [f"covariances[{c}]" for c in range(count)]
        checked = [as_covariance(matrix, name) for matrix, name in zip(stack, names, strict=True)]
        self._covariances = np.broadcast_to(frozen(np.stack(checked)), (count, dim, dim))

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return int(self._means.shape[1])

    @property
    def weights(self) -> Array:
        """Weights of the components, of shape (c,)."""
        return self._weights

    @property
    def means(self) -> Array:
        """Means of the components, of shape (c, d)."""
        return self._means

    @property
    def covariances(self) -> Array:
        """Covariances of the components, of shape (c, d, d)."""
        return self._covariances

    @cached_property
    def mean(self) -> Array:
        """Mean of the mixture."""
        return frozen(self._weights @ self._means)

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the mixture: within the components plus between their means."""
        return frozen(self._tilted_covariance(np.zeros(self.dim)))

    @cached_property
    def _factors(self) -> tuple[Array, ...]:
        if self._shared:
            return (covariance_factor(self._covariances[0]),) * len(self._weights)
        return tuple(covariance_factor(matrix) for matrix in self._covariances)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        component = rng.choice(len(self._weights), size=n, p=self._weights)
        tokens = rng.standard_normal((n, self.dim))
        for c, factor in enumerate(self._factors):
            rows = component == c
            tokens[rows] = self._means[c] + tokens[rows] @ factor.T
        return tokens

    def _excess(self, t: Array) -> Array:
        """``log pi_c + K_c(t) - K_0(t)``, of shape (..., c).

        ``K_c`` is of the order of |t|^2 but only differences decide between the components, so the
        part that component 0 has in common with the others is removed before anything is rounded.
        """
        logits = np.empty((*t.shape[:-1], len(self._weights)))
        for c, weight in enumerate(self._weights):
            slope = self._means[c] - self._means[0]
            if not self._shared:
                slope = slope + 0.5 * (t @ (self._covariances[c] - self._covariances[0]))
            logits[..., c] = np.log(weight) + np.sum(t * slope, axis=-1)
        return logits

    def _tilted_weights(self, t: Array) -> Array:
        logits = self._excess(t)
        return np.asarray(np.exp(logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)))

    def _component_mean(self, c: int, t: Array) -> Array:
        return np.asarray(self._means[c] + t @ self._covariances[c])

    def _log_mgf(self, t: Array) -> Array:
        slope = self._means[0] + 0.5 * (t @ self._covariances[0])
        return np.asarray(
            np.sum(t * slope, axis=-1) + scipy.special.logsumexp(self._excess(t), axis=-1)
        )

    def _tilted_mean(self, t: Array) -> Array:
        weights = self._tilted_weights(t)
        mean = np.zeros(t.shape)
        for c in range(len(self._weights)):
            mean += weights[..., c, None] * self._component_mean(c, t)
        return mean

    def _tilted_covariance(self, t: Array) -> Array:
        weights, mean = self._tilted_weights(t), self._tilted_mean(t)
        total = np.zeros((*t.shape, self.dim))
        for c in range(len(self._weights)):
            gap = self._component_mean(c, t) - mean
            spread = self._covariances[c] + gap[..., :, None] * gap[..., None, :]
            total += weights[..., c, None, None] * spread
        return total

    def _parameters(self) -> dict[str, object]:
        covariances = self._covariances[0] if self._shared else self._covariances
        return {"weights": self._weights, "means": self._means, "covariances": covariances}
