"""The output projection: how the errors of heads meet in a layer's output.

A layer's output is the sum over heads of ``O_h y_h``, with O_h the columns of W_o that belong to a
head. So is its error, and all that is needed of it are the inner products
``<O_h e_h, O_g e_g>`` of the heads' errors, which the matrix ``O' O`` gives without ever forming
the projected errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esscher.core.validation import Array

#: Errors whose inner products are kept: that of the mean output, and those of single queries.
PRODUCTS = ("mean", "map")


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """``O' O`` of some heads side by side, of shape [H d, H d]."""

    gram: Array
    heads: int

    @classmethod
    def of(cls, weights: Array) -> OutputProjection:
        """Of the columns of W_o by head, [heads, hidden, d]."""
        heads, hidden, d = weights.shape
        columns = weights.transpose(1, 0, 2).reshape(hidden, heads * d)
        return cls(columns.T @ columns, heads)

    def of_mean(self, error: Array) -> Array:
        """``<O_h e_h, O_g e_g>`` of one error vector, heads side by side, as [H, H]."""
        return self._blocks(self.gram * np.outer(error, error))

    def of_queries(self, errors: Tensor) -> Array:
        """Mean over queries of ``<O_h e_h, O_g e_g>``, for errors [heads, queries, d]."""
        heads, queries, d = errors.shape
        rows = errors.transpose(0, 1).reshape(queries, heads * d)
        second = (rows.T @ rows).to(torch.float64) / queries
        return self._blocks(self.gram * second.cpu().numpy())

    def _blocks(self, products: Array) -> Array:
        d = len(products) // self.heads
        return np.asarray(products.reshape(self.heads, d, self.heads, d).sum(axis=(1, 3)))
