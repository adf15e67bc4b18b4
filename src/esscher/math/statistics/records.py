"""Rates as they are stored and read; None stands for what is not finite."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from esscher.core.codec import Amount, Count, Interval, Name, Record

T = TypeVar("T")

#: One number per size, or per pair of sizes.
Numbers: TypeAlias = tuple[float | None, ...]
#: Ends of an interval.
Ends: TypeAlias = tuple[float | None, float | None]


class ByMetric(Record, Generic[T], frozen=True, kw_only=True):
    """The same about each error: of the mean output, of the covariance, of the map."""

    mean: T
    cov: T
    map: T

    def __getitem__(self, metric: str) -> T:
        found: T = getattr(self, metric)
        return found


class Means(Record, frozen=True, kw_only=True):
    """Means by size, with standard errors and intervals where there are replicates."""

    mean: tuple[float, ...]
    standard_error: tuple[float | None, ...]
    interval: tuple[Interval | None, ...]


class FittedLaw(Record, frozen=True, kw_only=True):
    """One law that was compared: see :class:`esscher.math.statistics.LawFit`."""

    parameters: dict[str, float]
    chi_square: float
    criterion: float
    weight: float
    p_value: float


class PredictedTest(Record, frozen=True, kw_only=True):
    """A curve against its prediction: see :class:`esscher.math.statistics.AgainstPrediction`."""

    drift: float
    drift_interval: Ends
    p_value: float
    floor_share: float
    floor_power: float


class SelectedLaw(Record, frozen=True, kw_only=True):
    """The law of a curve: see :class:`esscher.math.statistics.Selection`."""

    law: Name
    decisive: bool
    bend: float | None
    p_value: float | None
    largest_floor: float | None
    evidence: Name
    laws: dict[str, FittedLaw]
    verdict: Name = "undecided"
    rivals: tuple[Name, ...] = ()
    floor_share: float | None = None
    power: dict[str, float] = msgspec.field(default_factory=dict)
    predicted: PredictedTest | None = None


class SharedLaw(Record, frozen=True, kw_only=True):
    """All errors of the same replicates tested together.

    Attributes
    ----------
    metrics
        Errors that were tested.
    verdict
        ``"power"`` if all are straight, and a floor, a logarithm and two powers are excluded,
        ``"bent"`` if a bend is found, ``"undecided"`` else; ``"as predicted"`` if a prediction is
        all that decides.
    bend, p_value
        Joint departure from straight lines in standard errors, and its p-value.
    floor_share
        Upper 95% limit of a floor that takes the same share of every error at the largest size.
    power
        Probability with which the joint test finds a floor of half of every error there, and powers
        of ln n.
    predicted
        The same against the predicted curves; None without them.
    evidence
        The verdict in words.
    """

    metrics: tuple[Name, ...]
    verdict: Name
    bend: float | None
    p_value: float | None
    floor_share: float | None
    power: dict[str, float]
    predicted: PredictedTest | None
    evidence: Name


class LocalExponents(Record, frozen=True, kw_only=True):
    """Exponents between neighbouring sizes: see :class:`esscher.math.statistics.LocalSlopes`."""

    n: Numbers
    exponent: Numbers
    lower: Numbers
    upper: Numbers


class FittedRate(Record, frozen=True, kw_only=True):
    """A rate: see :class:`esscher.math.statistics.Rate`."""

    exponent: float
    interval: Ends
    standard_error: float | None
    constant: float | None
    constant_interval: Ends
    level: float
    summary: Name
    law: Name
    trusted: bool
    reasons: tuple[str, ...]
    predicted: float | None
    sharp: float | None
    paper_reference: float | None
    paper_bound: float | None
    n_replicates: Count
    seed: int
    sizes: Numbers
    mean: Numbers
    mean_standard_error: Numbers
    median: Numbers
    median_standard_error: Numbers
    lower: Numbers
    upper: Numbers
    weights: Numbers
    local: LocalExponents
    selection: SelectedLaw


class ReceivedTail(Record, frozen=True, kw_only=True):
    """The tail of received attention: see :class:`esscher.math.statistics.TailIndex`.

    Of several passages, the mean of each number.
    """

    exponent: float
    exponent_interval: Interval
    k: float
    interval: Interval
    standard_error: float
    k_with_sinks: float | None
    sinks: tuple[Amount, ...]
    sink_share: float
    n: Amount
    tail_count: Amount
    minimum_size: Amount
    level: float
    trusted: bool
    reasons: tuple[str, ...]
    clusters: Amount | None = None
    effective_count: Amount | None = None


def finite(value: float) -> float | None:
    """Return ``value`` as a float, or None if it is infinite or not a number."""
    return float(value) if math.isfinite(value) else None


def finite_list(values: Iterable[float]) -> list[float | None]:
    """Return a list of floats, None for those that are not finite."""
    return [finite(value) for value in values]


def finite_numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the same as a tuple, as records have it."""
    return tuple(finite(value) for value in values)


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
    found = rate_class((low, high))
    if found == "at 1/2":
        return "agrees"
    return "undecided" if found == "undecided" else "differs"


def rate_words(interval: Ends) -> str:
    """Class of an exponent as words that follow its interval."""
    name = rate_class(interval)
    if name == "at 1/2":
        return name
    return f"{name} 1/2" if name != "undecided" else "undecided whether 1/2"


def class_counts(intervals: Iterable[Ends]) -> dict[RateClass, int]:
    """How many exponents are in each class; every class is a key."""
    found = Counter(rate_class(interval) for interval in intervals)
    return {name: found[name] for name in CLASSES}


def class_words(counts: dict[RateClass, int]) -> str:
    """The counts as words, such as ``52 at 1/2, 1 below, 19 undecided``; "above" only if any is."""
    return ", ".join(
        f"{count} {name}" for name, count in counts.items() if count or name != "above"
    )
