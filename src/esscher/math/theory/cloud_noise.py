"""Second order: the noise that each query has for itself.

To first order a token moves all outputs at once, by its influence averaged over the queries. But
one query may attend a few of the drawn tokens, and another others: what a token does to a query
beyond that average is noise of its own, which no sum over single tokens carries. Averages over m
queries keep 1/m of it: if p is the output of a query, or the products of its coordinates,

    (1/m) { mean over queries of Var p  -  the part of it that all queries share },

where the shared part is that of the first order, ``E |influence|^2 / n``. Here m = n where the
tokens drawn are the queries: a share ``E w^2 / n`` of the first order, hence much for heads that
attend few tokens. The variance of an output is exact; that of products is taken from the covariance
S of the output as if it were Gaussian, with mean y,

    sum_ab Var(p_a p_b) = 2 |y|^2 tr S + 2 y' S y + (tr S)^2 + tr S^2.

Left out is what two queries have in common beyond the average one, as when two tokens attend to
each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.theory.cloud_query import QueryErrors
from esscher.math.theory.cloud_table import KeyColumns, MixedSums, Single, SquaredSums


@dataclass(frozen=True, eq=False)
class QueryNoise:
    """Noise of single queries, [query, size].

    Attributes
    ----------
    output
        Variance of the output, ``E |e - E e|^2``.
    shifted, along
        The same for the shifted output, and its variance along the limit, ``y' S y``.
    level
        ``|y|^2`` of the expected shifted output.
    """

    output: Array
    shifted: Array
    along: Array
    level: Array

    @classmethod
    def empty(cls, queries: int, sizes: int) -> QueryNoise:
        """Room for so many queries."""
        return cls(*np.zeros((4, queries, sizes)))

    def put(
        self, i: int, y: Array, mean: Array, at: QueryErrors, keys: KeyColumns, sums: Sums
    ) -> None:
        """Enter query i.

        Parameters
        ----------
        y, mean
            Its limit, and ``E (e - s)`` [size, d].
        at
            Its errors.
        keys, sums
            The keys, and the weights ``squares`` and ``products`` of them with sums over them.
        """
        self.output[i] = at.square - np.sum(at.mean**2, axis=1)
        trace = np.trace(at.crossed, axis1=1, axis2=2) + sums.squares.norms_about(y)
        trace = trace - 2 * (sums.by_products @ keys.inner - sums.products.shift @ y)
        self.shifted[i] = np.maximum(trace - np.sum(mean**2, axis=1), 0.0)
        single = y.astype(np.float32)
        r, u = keys.values @ single - np.float32(y @ y), keys.shifts @ single
        along = at.crossed @ y @ y + sums.by_squares @ (r * r) - 2 * (sums.by_products @ (r * u))
        self.along[i] = np.maximum(along - (mean @ y) ** 2, 0.0)
        self.level[i] = np.sum((y + mean) ** 2, axis=1)

    def of_products(self, dimension: Array) -> Array:
        """Variance of all products, [query, size], where S has such a dimension: tr^2 / tr S^2."""
        square = self.shifted**2 * (1 + 1 / dimension)
        return np.asarray(2 * self.level * self.shifted + 2 * self.along + square)


@dataclass(frozen=True, eq=False)
class Sums:
    """The two weights of keys in a query's errors, [size, key], and sums over keys with them."""

    by_squares: Single
    by_products: Single
    squares: SquaredSums
    products: MixedSums


def dimension_of(matrices: Array) -> Array:
    """``(tr S)^2 / tr S^2`` of symmetric matrices, at least 1 and at most their rank."""
    trace = np.trace(matrices, axis1=-2, axis2=-1) ** 2
    square = np.sum(matrices**2, axis=(-2, -1))
    found = np.divide(trace, square, out=np.ones_like(trace), where=square > 0)
    return np.asarray(np.clip(found, 1.0, matrices.shape[-1]))
