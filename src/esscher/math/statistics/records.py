"""Rates as they are stored and read; None stands for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar

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
