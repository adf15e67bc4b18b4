"""The check of probability weights that the mixture and the finite set of tokens share."""

from __future__ import annotations

from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import ROUNDING, Array, as_array
from esscher.math.laws.law import frozen


def as_probabilities(value: ArrayLike, name: str = "weights") -> Array:
    """Return positive weights that sum to 1, with the rounding error of their sum removed."""
    weights = as_array(value, name, ndim=1)
    if weights.size == 0:
        raise InputError(f"{name} is empty; give at least one weight")
    if weights.min() <= 0:
        place = int(weights.argmin())
        raise InputError(
            f"{name} must be positive: entry {place} is {weights[place]:g}; "
            "leave out what has no weight"
        )
    total = float(weights.sum())
    if abs(total - 1.0) > ROUNDING:
        raise InputError(
            f"{name} sum to {total:.10g}; they must sum to 1: divide them by their sum"
        )
    return frozen(weights / total)
