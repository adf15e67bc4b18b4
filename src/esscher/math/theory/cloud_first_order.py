"""Influence of tokens on outputs to first order: cheap, so that many queries can be asked.

The exact influence of :mod:`cloud_influence` costs dozens of passes per query, and a hundred
queries leave noise in its average. To first order a token z of weight w among n changes a query's
output by ``w' (v_z - y) / n``, ``w' = w / (1 + w / n)``, which is one pass. It is nearly the
exact influence, so the noise of the queries is nearly the same in both: the average of the exact
one is taken as ``exact over few + (first order over many - first order over the same few)``.
That has the right expectation whatever the first order leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.theory.cloud_grid import Single
from esscher.math.theory.cloud_table import Pairs


def key_weights(logits: Array) -> Single:
    """Weights of all keys, of mean 1 for every query (rows)."""
    weights = (logits - logits.max(axis=1, keepdims=True)).astype(np.float32)
    np.exp(weights, out=weights)
    weights /= weights.mean(axis=1, dtype=np.float64, keepdims=True).astype(np.float32)
    return np.asarray(weights)


@dataclass(frozen=True, eq=False)
class FirstOrder:
    """First-order influence of some tokens, of these values and shifts [token, d].

    Attributes
    ----------
    values, shifts
        Of the tokens.
    pairs
        Coordinates a and b along which products are looked at.
    n
        Sizes.
    """

    values: Single
    shifts: Single
    pairs: Pairs
    n: Array

    @classmethod
    def of(cls, values: Array, shifts: Array, pairs: Pairs, n: Array) -> FirstOrder:
        """Of tokens with these values and shifts."""
        return cls(values.astype(np.float32), shifts.astype(np.float32), pairs, n)

    def __call__(
        self, weights: Array | Single, outputs: Array, share: Array
    ) -> tuple[Array, Array]:
        """Sums over queries of the influence on outputs and on products of shifted outputs.

        Parameters
        ----------
        weights
            Of the tokens, [query, token].
        outputs, share
            Limits [query, d] and weights of the queries.

        Returns
        -------
        on_mean, on_products
            [token, size, d] and [token, size, pair], times n.
        """
        a, b = self.pairs
        v, u = self.values, self.shifts
        w, y = weights.astype(np.float32), outputs.astype(np.float32)
        columns = np.hstack([y, y[:, a] * y[:, b], np.ones((len(y), 1), dtype=np.float32)])
        columns *= share.astype(np.float32)[:, None]
        d = y.shape[1]
        on_mean = np.empty((len(v), len(self.n), d))
        on_products = np.empty((len(v), len(self.n), len(a)))
        products = v[:, a] * v[:, b], u[:, a] * u[:, b]
        felt = np.empty_like(w)
        for i, n in enumerate(self.n):
            np.multiply(w, np.float32(1 / n), out=felt)
            felt += 1
            np.divide(w, felt, out=felt)
            once = felt.T @ columns
            np.multiply(felt, felt, out=felt)
            twice = felt.T @ columns
            change = once[:, -1:] * v - once[:, :d]
            along = v[:, a] * once[:, b] + v[:, b] * once[:, a] - 2 * once[:, d:-1]
            # (change - shift) times itself, over n
            square = products[0] * twice[:, -1:] + twice[:, d:-1]
            square -= v[:, a] * twice[:, b] + v[:, b] * twice[:, a]
            square += products[1] - u[:, a] * change[:, b] - u[:, b] * change[:, a]
            on_mean[:, i] = change
            on_products[:, i] = along + square / np.float32(n)
        return on_mean, on_products
