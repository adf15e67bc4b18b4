"""Matrices with at most one entry per row: each tilt coordinate sees one token coordinate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array

#: Entries below this share of the largest one are put down to the rounding of ``W_k' W_q``.
ROUNDING = 1e-15


def single_entries(matrix: Array) -> tuple[NDArray[np.intp], Array] | None:
    """Return the column and the value of the only entry of each row, or None if a row has more.

    A row of zeros has value 0 (and an arbitrary column).
    """
    size = np.abs(matrix)
    nonzero = size > ROUNDING * len(matrix) * float(size.max(initial=0.0))
    if nonzero.sum(axis=1).max(initial=0) > 1:
        return None
    columns = size.argmax(axis=1)
    values = np.where(nonzero.any(axis=1), matrix[np.arange(len(matrix)), columns], 0.0)
    return columns, values
