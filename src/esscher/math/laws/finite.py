"""A finite set of tokens: its limit is softmax attention over the whole set.

Logits are streamed over blocks of tilts and tokens with a running maximum (online softmax), so
memory is bounded by one block however many tilts and tokens there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array
from esscher.math.laws.law import Law, as_probabilities, frozen


class FiniteTokens(Law):
    """The law that picks row j of ``tokens`` (shape (N, d)) with probability ``weights[j]``.

    Without weights every token is equally likely.
    """

    name = "finite"
    #: Tilts and tokens whose logits are held at a time.
    tilt_block, token_block = 512, 2048

    def __init__(self, tokens: ArrayLike, weights: ArrayLike | None = None) -> None:
        self._tokens = frozen(as_array(tokens, "tokens", ndim=2))
        count, dim = self._tokens.shape
        if count == 0 or dim == 0:
            raise InputError(f"tokens has shape {self._tokens.shape}; it must not be empty")
        self._uniform = weights is None
        if weights is None:
            self._weights = frozen(np.full(count, 1.0 / count))
        else:
            self._weights = as_probabilities(weights)
        if len(self._weights) != count:
            raise InputError(
                f"there are {count} tokens but {len(self._weights)} weights; give one per token"
            )

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return int(self._tokens.shape[1])

    @property
    def tokens(self) -> Array:
        """The tokens, of shape (N, d)."""
        return self._tokens

    @property
    def weights(self) -> Array:
        """Their probabilities, of shape (N,)."""
        return self._weights

    @cached_property
    def mean(self) -> Array:
        """Weighted mean of the tokens."""
        return frozen(self._weights @ self._tokens)

    @cached_property
    def covariance(self) -> Array:
        """Weighted covariance of the tokens."""
        return frozen(self._tilted_covariance(np.zeros(self.dim)))

    @cached_property
    def support_radius(self) -> float:
        """Largest norm of a token."""
        return float(np.max(np.linalg.norm(self._tokens, axis=1)))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens with replacement."""
        count = len(self._tokens)
        if self._uniform:
            return np.asarray(self._tokens[rng.integers(0, count, n)])
        return np.asarray(self._tokens[rng.choice(count, size=n, p=self._weights)])

    def _log_mgf(self, t: Array) -> Array:
        flat = t.reshape(-1, self.dim)
        value = np.empty(len(flat))
        for rows in _slices(len(flat), self.tilt_block):
            value[rows] = self._centred_log_mgf(flat[rows]) + flat[rows] @ self.mean
        return value.reshape(t.shape[:-1])

    def _tilted_mean(self, t: Array) -> Array:
        flat = t.reshape(-1, self.dim)
        value = np.empty(flat.shape)
        for rows in _slices(len(flat), self.tilt_block):
            value[rows] = self.mean + self._centred_mean(flat[rows])
        return value.reshape(t.shape)

    def _tilted_covariance(self, t: Array) -> Array:
        flat = t.reshape(-1, self.dim)
        value = np.zeros((*flat.shape, self.dim))
        for rows in _slices(len(flat), self.tilt_block):
            self._add_covariances(flat[rows], value[rows])
        return value.reshape((*t.shape, self.dim))

    def _centred_blocks(self) -> Iterator[tuple[Array, Array]]:
        """Blocks of tokens minus their mean, with the logarithms of their weights.

        An offset that all tokens share cancels in the softmax but would cost digits in the logits.
        """
        for columns in _slices(len(self._tokens), self.token_block):
            yield self._tokens[columns] - self.mean, np.log(self._weights[columns])

    def _centred_log_mgf(self, t: Array) -> Array:
        """``log E exp<t, X - E X>`` for one block of tilts."""
        top = np.full(len(t), -np.inf)
        mass = np.zeros(len(t))
        for tokens, log_weights in self._centred_blocks():
            logits = t @ tokens.T + log_weights
            new_top = np.maximum(top, logits.max(axis=1))
            mass = mass * np.exp(top - new_top) + np.exp(logits - new_top[:, None]).sum(axis=1)
            top = new_top
        return top + np.log(mass)

    def _centred_mean(self, t: Array) -> Array:
        """Softmax attention to the centred tokens for one block of tilts."""
        top = np.full(len(t), -np.inf)
        mass = np.zeros(len(t))
        total = np.zeros(t.shape)
        for tokens, log_weights in self._centred_blocks():
            logits = t @ tokens.T + log_weights
            new_top = np.maximum(top, logits.max(axis=1))
            kept = np.exp(top - new_top)
            attention = np.exp(logits - new_top[:, None])
            mass = mass * kept + attention.sum(axis=1)
            total = total * kept[:, None] + attention @ tokens
            top = new_top
        return np.asarray(total / mass[:, None])

    def _add_covariances(self, t: Array, total: Array) -> None:
        """Add to ``total`` the Hessians for one block of tilts.

        A second pass around the means of the first: ``E XX' - E X E X'`` in one pass would cancel.
        """
        means = self._centred_mean(t)
        log_mass = self._centred_log_mgf(t)
        for tokens, log_weights in self._centred_blocks():
            attention = np.exp(t @ tokens.T + log_weights - log_mass[:, None])
            for row, (mean, probability) in enumerate(zip(means, attention, strict=True)):
                gap = tokens - mean
                total[row] += (gap * probability[:, None]).T @ gap

    def _parameters(self) -> dict[str, object]:
        weights = {} if self._uniform else {"weights": self._weights}
        return {"tokens": self._tokens, **weights}


def _slices(length: int, block: int) -> Iterator[slice]:
    """Cut ``range(length)`` into consecutive blocks."""
    for start in range(0, length, block):
        yield slice(start, min(start + block, length))
