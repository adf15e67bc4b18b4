"""What records of rates share: numbers that may be missing, and classes of exponents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from esscher.core.codec import Record

T = TypeVar("T")

#: One number per size, or per pair of sizes.
Numbers: TypeAlias = tuple[float | None, ...]
#: A small matrix, by rows.
Matrix: TypeAlias = tuple[tuple[float, ...], ...]
#: Ends of an interval.
Ends: TypeAlias = tuple[float | None, float | None]


class ByMetric(Record, Generic[T], frozen=True, kw_only=True):
    """The same about each error: of the mean output, of the covariance, of the map."""

    mean: T
    cov: T
    map: T

    def __getitem__(self, metric: str) -> T:
        value: T = getattr(self, metric)
        return value


def finite(value: float) -> float | None:
    """Return ``value`` as a float, or None if it is infinite or not a number."""
    return float(value) if math.isfinite(value) else None


def finite_numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return a tuple of floats, None for those that are not finite."""
    return tuple(finite(value) for value in values)


def as_matrix(values: NDArray[np.float64]) -> Matrix:
    """Return the rows of a matrix as tuples."""
    return tuple(tuple(row) for row in values.tolist())


# Which exponents are 1/2, which are below it, and which are undecided: from intervals alone.
#
# An exponent is called 1/2 only if its whole interval lies close to 1/2, and below (or above) 1/2
# only if its whole interval does. Everything else is undecided: less data, whose intervals are
# wider, gives more undecided exponents, and never more that are called 1/2.

RateClass: TypeAlias = Literal["at 1/2", "below", "above", "undecided"]
Agreement: TypeAlias = Literal["agrees", "differs", "undecided"]

#: Where the whole interval of an exponent must lie to be called 1/2.
HALF: tuple[float, float] = (0.45, 0.55)
#: Classes in the order in which they are told.
CLASSES: tuple[RateClass, ...] = ("at 1/2", "below", "above", "undecided")


def rate_class(interval: Ends) -> RateClass:
    """Class of an exponent by its interval; without an interval it is undecided."""
    low, high = interval
    if low is None or high is None:
        return "undecided"
    if HALF[0] <= low and high <= HALF[1]:
        return "at 1/2"
    if high < 0.5:
        return "below"
    if low > 0.5:
        return "above"
    return "undecided"


def agreement(interval: Ends, expected: float) -> Agreement:
    """Whether an exponent agrees with an expected one: rules as for 1/2, around ``expected``.

    It agrees only if its whole interval lies within 0.05 of it, and differs only if the interval
    lies on one side of it; a wide interval decides nothing.
    """
    low, high = (None if end is None else end + 0.5 - expected for end in interval)
    kind = rate_class((low, high))
    if kind == "at 1/2":
        return "agrees"
    return "undecided" if kind == "undecided" else "differs"


def rate_words(interval: Ends) -> str:
    """Class of an exponent as words that follow its interval."""
    name = rate_class(interval)
    if name == "at 1/2":
        return name
    return f"{name} 1/2" if name != "undecided" else "undecided whether 1/2"


def class_counts(intervals: Iterable[Ends]) -> dict[RateClass, int]:
    """How many exponents are in each class; every class is a key."""
    counts = Counter(rate_class(interval) for interval in intervals)
    return {name: counts[name] for name in CLASSES}


def class_words(counts: dict[RateClass, int]) -> str:
    """The counts as words, such as ``52 at 1/2, 1 below, 19 undecided``; "above" only if any is."""
    return ", ".join(
        f"{count} {name}" for name, count in counts.items() if count or name != "above"
    )
