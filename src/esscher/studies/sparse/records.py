"""Numbers of sparse patterns, as they are stored and read."""

from __future__ import annotations

from typing import Literal, TypeAlias

from esscher.core.codec import Index, Name, Record
from esscher.math.statistics.records import ByMetric, Ends, FittedRate

#: Errors that are measured, as in a sweep.
METRICS = ("mean", "cov", "map")
#: Whether a number of keys lies on the grid of budgets, or below or above all of it.
State: TypeAlias = Literal["inside", "below", "above"]
Reference: TypeAlias = Literal["dense", "limit"]
#: Whether a pattern's error is smaller than that of random selection.
AgainstRandom: TypeAlias = Literal["better", "worse", "undecided"]
#: One number per budget.
Curve: TypeAlias = tuple[float, ...]


class SparseCell(Record, frozen=True, kw_only=True):
    """A cell: what :class:`esscher.studies.sparse.measurement.Measurement` has besides errors.

    Attributes
    ----------
    shape
        Of the errors in the table: [reference, pattern, metric, unit, replicate, budget].
    """

    units: tuple[tuple[Index, Index], ...]
    references: tuple[Reference, ...]
    shape: tuple[Index, Index, Index, Index, Index, Index]
    norms: tuple[tuple[float, ...], ...]
    visible: float
    dense_limit: tuple[tuple[float, ...], ...]


class ErrorCurve(Record, frozen=True, kw_only=True):
    """Relative errors by budget: mean, median, and standard error where there are replicates."""

    mean: Curve
    median: Curve
    standard_error: Curve | None


class ErrorCurves(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Errors against dense attention, and against the limit where there is one."""

    dense: ByMetric[ErrorCurve]
    limit: ByMetric[ErrorCurve] | None = None

    @property
    def by_reference(self) -> dict[Reference, ByMetric[ErrorCurve]]:
        """Those that are there, by what outputs are compared with."""
        found: dict[Reference, ByMetric[ErrorCurve]] = {"dense": self.dense}
        return found if self.limit is None else found | {"limit": self.limit}


class BiasCurve(Record, frozen=True, kw_only=True):
    """Squared bias of the outputs by budget, and its share of the squared error.

    None where there are too few replicates; ``exponent`` is that of the bias along the budgets.
    """

    square: Curve | None
    standard_error: Curve | None
    share: Curve | None
    exponent: float | None


class VersusRandom(Record, frozen=True, kw_only=True):
    """A pattern compared with random selection: see :class:`.compare.Comparison`."""

    exponent_difference: float | None
    exponent_difference_interval: Ends
    ratio: float | None
    ratio_interval: Ends
    last_ratio: float | None
    last_ratio_interval: Ends


class Verdict(Record, frozen=True, kw_only=True):
    """Verdict on a pattern, with the evidence in words."""

    verdict: Name
    evidence: Name


class Reached(Record, frozen=True, kw_only=True):
    """Budget at which an error is reached, with its interval; None beyond the grid."""

    target: float
    budget: float | None
    interval: Ends
    state: State


class RandomKeys(Record, frozen=True, kw_only=True):
    """Random keys that are worth ``keys`` keys of a pattern."""

    keys: float
    random_keys: float | None
    interval: Ends
    state: State


class Crossing(Record, frozen=True, kw_only=True):
    """Budget at which one curve crosses another, and what that means."""

    budget: float | None
    interval: Ends
    says: Name


class BreakEven(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Budgets that are worth the same.

    Attributes
    ----------
    for_target
        Budget for a relative map error of 10%.
    crossing, as_random
        Compared with random selection; None for random selection itself.
    against
        By pattern, for the consistent estimate.
    """

    for_target: Reached
    crossing: Crossing | None = None
    as_random: RandomKeys | None = None
    against: dict[str, Crossing] | None = None


class SparsePattern(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All that was found about a pattern.

    Attributes
    ----------
    title, random
        The pattern in words, and whether it chooses by chance.
    curve, fit, fit_limit
        Errors, and their rates against dense attention and against the limit, if there is one.
    bias
        The part of the error that averaging does not remove.
    versus_random
        None for random selection itself.
    verdict, evidence
        On the map.
    verdicts
        On every metric.
    break_even
        Budgets that are worth the same.
    """

    title: Name
    random: bool
    curve: ErrorCurves
    fit: ByMetric[FittedRate]
    bias: BiasCurve
    versus_random: ByMetric[VersusRandom] | None
    verdict: Name
    evidence: Name
    verdicts: ByMetric[Verdict]
    break_even: BreakEven
    fit_limit: ByMetric[FittedRate] | None = None


class UnitCurve(Record, frozen=True, kw_only=True):
    """Errors of a head or a layer by budget, and their exponent over passages."""

    exponent: float
    interval: Ends
    error: Curve


class UnitPattern(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A pattern in a head or a layer, and the budget for a relative map error of 10%.

    Attributes
    ----------
    mean, cov, map
        Errors by budget, with their exponents.
    budget, state
        Keys for a relative map error of 10%.
    ratio, ratio_interval
        Map error at the largest budget over that of random selection (geometric mean over
        passages, paired); None for random selection itself.
    against_random
        Whether it is smaller there, after Holm over all heads (or all layers): a statement about
        all of them at once, however they depend on each other.
    """

    mean: UnitCurve
    cov: UnitCurve
    map: UnitCurve
    budget: float | None
    state: State
    ratio: float | None = None
    ratio_interval: Ends = (None, None)
    against_random: AgainstRandom | None = None


class SparseLayer(Record, frozen=True, kw_only=True):
    """The patterns in a layer."""

    layer: Index
    patterns: dict[str, UnitPattern]


class SparseHead(SparseLayer, frozen=True, kw_only=True):
    """The patterns in a head."""

    head: Index
