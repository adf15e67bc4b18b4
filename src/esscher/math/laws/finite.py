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
        self.tokens = frozen(as_array(tokens, "tokens", ndim=2))
        count, self.dim = self.tokens.shape
        if count == 0 or self.dim == 0:
            raise InputError(f"tokens has shape {self.tokens.shape}; it must not be empty")
        self.support_radius = float(np.max(np.linalg.norm(self.tokens, axis=1)))
        self.parameters = {"tokens": self.tokens}
        if weights is None:
            self.weights = frozen(np.full(count, 1.0 / count))
        else:
            self.weights = as_probabilities(weights)
            self.parameters["weights"] = self.weights
        if len(self.weights) != count:
            raise InputError(
                f"there are {count} tokens but {len(self.weights)} weights; give one per token"
            )

    @cached_property
    def mean(self) -> Array:
        """Weighted mean of the tokens."""
        return frozen(self.weights @ self.tokens)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens with replacement."""
        count = len(self.tokens)
        if "weights" not in self.parameters:
            return np.asarray(self.tokens[rng.integers(0, count, n)])
        return np.asarray(self.tokens[rng.choice(count, size=n, p=self.weights)])

    def _log_mgf(self, t: Array) -> Array:
        flat = t.reshape(-1, self.dim)
        value = np.empty(len(flat))
        for start in range(0, len(flat), self.tilt_block):
            rows = slice(start, start + self.tilt_block)
            value[rows] = self._attend(flat[rows])[0] + flat[rows] @ self.mean
        return value.reshape(t.shape[:-1])

    def _tilted_mean(self, t: Array) -> Array:
        flat = t.reshape(-1, self.dim)
        value = np.empty(flat.shape)
        for start in range(0, len(flat), self.tilt_block):
            rows = slice(start, start + self.tilt_block)
            value[rows] = self.mean + self._attend(flat[rows])[1]
        return value.reshape(t.shape)

    def _tilted_covariance(self, t: Array) -> Array:
        flat = t.reshape(-1, self.dim)
        value = np.zeros((*flat.shape, self.dim))
        for start in range(0, len(flat), self.tilt_block):
            rows = slice(start, start + self.tilt_block)
            # A second pass around the means of the first: E XX' - E X E X' in one would cancel.
            log_mass, means = self._attend(flat[rows])
            for tokens, log_weights in self._centred_blocks():
                attention = np.exp(flat[rows] @ tokens.T + log_weights - log_mass[:, None])
                for i, (mean, probability) in enumerate(zip(means, attention, strict=True)):
                    gap = tokens - mean
                    value[start + i] += (gap * probability[:, None]).T @ gap
        return value.reshape((*t.shape, self.dim))

    def _centred_blocks(self) -> Iterator[tuple[Array, Array]]:
        """Blocks of tokens minus their mean, with the logarithms of their weights.

        An offset that all tokens share cancels in the softmax but would cost digits in the logits.
        """
        for start in range(0, len(self.tokens), self.token_block):
            columns = slice(start, start + self.token_block)
            yield self.tokens[columns] - self.mean, np.log(self.weights[columns])

    def _attend(self, t: Array) -> tuple[Array, Array]:
        """``log E exp<t, X - E X>`` and attention to the centred tokens, for a block of tilts."""
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
        return top + np.log(mass), np.asarray(total / mass[:, None])
