"""Numbers as JSON can hold them: None for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable


def finite(value: float) -> float | None:
    """Return ``value`` as a float, or None if it is infinite or not a number."""
    return float(value) if math.isfinite(value) else None


def finite_list(values: Iterable[float]) -> list[float | None]:
    """Return a list of floats, None for those that are not finite."""
    return [finite(value) for value in values]


def finite_numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the same as a tuple, as records have it."""
    return tuple(finite(value) for value in values)
