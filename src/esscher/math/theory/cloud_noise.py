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
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.theory.cloud_query import QueryErrors
from esscher.math.theory.cloud_table import KeyColumns, KeySums, QueryTable


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
        self,
        rows: NDArray[np.int64],
        y: Array,
        mean: Array,
        at: QueryErrors,
        keys: KeyColumns,
        table: QueryTable,
    ) -> tuple[KeySums, KeySums]:
        """Enter queries; return sums over the keys with the weights ``squares`` and ``products``.

        Parameters
        ----------
        rows
            Their places here.
        y, mean
            Their limits [query, d], and ``E (e - s)`` [query, size, d].
        at
            Their errors.
        keys, table
            The keys, and the queries' table.
        """
        squares = table.by_square.weighed(at.squares)
        products = table.by_weight.weighed(at.products)
        self.output[rows] = at.square - np.sum(at.mean**2, axis=2)
        limit = y[..., None]
        trace = np.trace(at.crossed, axis1=2, axis2=3) + squares.norms_about(y)
        trace = trace - 2 * (products.inner - (products.shift @ limit)[..., 0])
        self.shifted[rows] = np.maximum(trace - np.sum(mean**2, axis=2), 0.0)
        single = y.astype(np.float32).T
        r = keys.values @ single - np.sum(single * single, axis=0)
        by_points = table.points_of(np.stack([r * r, r * (keys.shifts @ single)], axis=2))
        lengths, mixed = by_points[..., :1], by_points[..., 1:]
        along = ((at.crossed @ limit[:, None])[..., 0] @ limit)[..., 0]
        along = along + (at.squares @ (table.functions.square @ lengths))[..., 0]
        along = along - 2 * (at.products @ (table.functions.weight @ mixed))[..., 0]
        self.along[rows] = np.maximum(along - (mean @ limit)[..., 0] ** 2, 0.0)
        self.level[rows] = np.sum((y[:, None] + mean) ** 2, axis=2)
        return squares, products

    def of_products(self, dimension: Array) -> Array:
        """Variance of all products, [query, size], where S has such a dimension: tr^2 / tr S^2."""
        square = self.shifted**2 * (1 + 1 / dimension)
        return np.asarray(2 * self.level * self.shifted + 2 * self.along + square)


def dimension_of(matrices: Array) -> Array:
    """``(tr S)^2 / tr S^2`` of symmetric matrices, at least 1 and at most their rank."""
    trace = np.trace(matrices, axis1=-2, axis2=-1) ** 2
    square = np.sum(matrices**2, axis=(-2, -1))
    found = np.divide(trace, square, out=np.ones_like(trace), where=square > 0)
    return np.asarray(np.clip(found, 1.0, matrices.shape[-1]))
