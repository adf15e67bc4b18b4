"""Heads from arrays of queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_finite
from esscher.math.coupling import Moments
from esscher.math.heads.head import Head, Tokens
from esscher.math.laws import FiniteTokens, TiltDomain


@dataclass(frozen=True, repr=False, eq=False)
class ArrayHead(Head):
    """A head from arrays: the empirical law of the rows of (q, k, v).

    This is exactly the law of sampling those rows with replacement; its infinite-token limit is
    softmax attention over all of them.
    """

    tilts: Array
    keys: Array
    values: Array

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance of the rows (divided by their number)."""
        return Moments.from_rows(self.tilts, self.keys, self.values)

    @cached_property
    def cloud(self) -> FiniteTokens:
        """The rows (k, v) as a finite set of tokens."""
        return FiniteTokens(np.hstack([self.keys, self.values]))

    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        """Draw ``n`` rows with replacement."""
        return self.take(self.sample_rows(n, rng))

    def sample_rows(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Numbers of the rows that :meth:`sample` draws."""
        return rng.integers(len(self.keys), size=n)

    def take(self, rows: NDArray[np.int64]) -> Tokens:
        """Some rows, by number."""
        return Tokens(self.tilts[rows], self.keys[rows], self.values[rows])

    @property
    def tilt_domain(self) -> TiltDomain:
        """Every tilt: the law has finite support."""
        return TiltDomain("all")

    def law_tilts(self, tilts: ArrayLike) -> Array:
        """The tilts themselves."""
        return as_array(tilts, "tilts")

    def limit_map(self, tilts: ArrayLike) -> Array:
        """Softmax attention over all rows."""
        t = as_array(tilts, "tilts")
        padded = np.concatenate([t, np.zeros((*t.shape[:-1], self.value_dim))], axis=-1)
        return self.cloud.tilted_mean(padded)[..., self.key_dim :]


def array_head(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, scale: float | None = None
) -> ArrayHead:
    """Build a head from arrays of shape (n, d_k), (n, d_k) and (n, d_v), one row per token.

    ``q`` and ``k`` are the vectors that enter the softmax; ``scale`` is 1/sqrt(d_k) unless given.
    """
    queries, keys, values = as_array(q, "q", 2), as_array(k, "k", 2), as_array(v, "v", 2)
    if queries.shape != keys.shape or len(values) != len(keys):
        raise InputError(
            f"q, k, v have shapes {queries.shape}, {keys.shape}, {values.shape}; "
            "q and k must have the same shape and v as many rows"
        )
    if len(keys) < 2:
        raise InputError(f"a head from arrays needs at least 2 tokens; got {len(keys)}")
    factor = keys.shape[1] ** -0.5 if scale is None else as_finite(scale, "scale")
    return ArrayHead(queries * factor, keys, values)
