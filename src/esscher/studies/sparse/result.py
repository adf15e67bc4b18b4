"""Numbers of sparse patterns, as they are stored and read."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import scipy

from esscher.core.codec import Count, Index, Name, Record
from esscher.core.errors import InputError
from esscher.core.shown import between, rates_said, two_digits
from esscher.math.statistics import Rate
from esscher.math.statistics.intervals import LEVEL
from esscher.math.statistics.records import ByMetric, Ends, class_counts, rate_class
from esscher.runs.result import Result, WithHeads

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
    """A cell: what :class:`esscher.studies.sparse.measure.Measurement` has besides errors.

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
    fit: ByMetric[Rate]
    bias: BiasCurve
    versus_random: ByMetric[VersusRandom] | None
    verdict: Name
    evidence: Name
    verdicts: ByMetric[Verdict]
    break_even: BreakEven
    fit_limit: ByMetric[Rate] | None = None


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


# The result: curves, fits and verdicts of every pattern.

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.sparse.study import SparseLawStudy, SparseStudy

    AnySparse: TypeAlias = SparseStudy | SparseLawStudy


#: The pattern that the others are compared with.
RANDOM = "random"
NOTHING = "Nothing has been measured yet."
KEEPS = "keeps the exponent"
CONSTANT = "changes the constant"
SLOWER = "converges more slowly"
FASTER = "converges faster"
AHEAD = "is ahead of random selection, by less and less"
NEVER = "does not converge to dense"
UNDECIDED = "undecided"
IS_BASELINE = "baseline"
#: Exponents that differ by no more than this are called the same. It is the half-width of what is
#: called 1/2 (``math/statistics/classes.py``).
MARGIN = 0.05
#: Verdicts in the order of the headline, with the verb in the plural.
SAID = {
    KEEPS: "keep the exponent",
    CONSTANT: "change only the constant",
    FASTER: "converge faster",
    SLOWER: "converge more slowly",
    NEVER: "do not converge to dense on these budgets",
    UNDECIDED: "are undecided",
}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Sparse(WithHeads[SparseHead], Result["AnySparse"]):
    """The errors of sparse patterns, fitted and compared.

    Attributes
    ----------
    budgets
        Numbers of keys that a query attends.
    patterns
        By name.
    heads, layers
        The same head by head and layer by layer; empty for a law.
    replicates
        Sequences of tokens, or passages.
    visible, norm
        Mean number of keys that a query may see, and root mean square norm of dense outputs.
    dense_against_limit
        Errors of dense attention against the infinite-token limit, where it is known.
    """

    budgets: tuple[Count, ...]
    patterns: dict[str, SparsePattern] = field(default_factory=dict)
    heads: tuple[SparseHead, ...] = ()
    layers: tuple[SparseLayer, ...] = ()
    replicates: Count = 0
    visible: float | None = None
    norm: float | None = None
    dense_against_limit: ByMetric[float] | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together: tables and figures go from one to another."""
        if not self.patterns:
            return
        if self.visible is None or RANDOM not in self.patterns:
            raise InputError("random selection was not measured, or the number of keys is missing")
        curves: list[tuple[float, ...] | None] = []
        for found in self.patterns.values():
            curves += [found.bias.square, found.bias.standard_error, found.bias.share]
            if (found.versus_random is None) != (found.break_even.crossing is None) or (
                found.break_even.crossing is None
            ) != (found.break_even.as_random is None):
                raise InputError("a pattern is compared with random selection in parts only")
            for by_metric in found.curve.by_reference.values():
                for metric in METRICS:
                    curve = by_metric[metric]
                    curves += [curve.mean, curve.median, curve.standard_error]
        for unit in (*self.heads, *self.layers):
            if unit.patterns.keys() != self.patterns.keys():
                raise InputError("its heads and layers lack some patterns")
            curves += [p.error for u in unit.patterns.values() for p in (u.mean, u.cov, u.map)]
        if not self.budgets or any(c is not None and len(c) != len(self.budgets) for c in curves):
            raise InputError("its curves do not have one number per budget")

    @property
    def subject(self) -> str:
        """What was measured, in words."""
        return self.study.in_words

    def table(self, reference: Reference = "dense") -> pd.DataFrame:
        """Return a data frame, one row per pattern and metric.

        Parameters
        ----------
        reference
            ``"dense"``, or ``"limit"`` for the fits against the infinite-token limit.

        Raises
        ------
        InputError
            If no limit is known.
        """
        import pandas as pd

        rows = []
        for name, found in self.patterns.items():
            fits = found.fit if reference == "dense" else found.fit_limit
            curves = found.curve.dense if reference == "dense" else found.curve.limit
            if fits is None or curves is None:
                raise InputError("these tokens have no known infinite-token limit")
            for metric in METRICS:
                fit = fits[metric]
                versus = None if found.versus_random is None else found.versus_random[metric]
                ratio = (None, None) if versus is None else versus.ratio_interval
                gap = (None, None) if versus is None else versus.exponent_difference_interval
                rows.append(
                    {
                        "pattern": name,
                        "metric": metric,
                        "exponent": fit.exponent,
                        "low": fit.interval[0],
                        "high": fit.interval[1],
                        "law": fit.law,
                        "trusted": fit.trusted,
                        "last_error": curves[metric].mean[-1],
                        "ratio": 1.0 if versus is None else versus.ratio,
                        "ratio_low": ratio[0],
                        "ratio_high": ratio[1],
                        "difference": 0.0 if versus is None else versus.exponent_difference,
                        "difference_low": gap[0],
                        "difference_high": gap[1],
                        "verdict": found.verdicts[metric].verdict,
                    }
                )
        return pd.DataFrame(rows)

    def curves_table(self) -> pd.DataFrame:
        """Return a data frame of the errors, one row per pattern, reference, metric and budget."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for name, found in self.patterns.items():
            for reference, by_metric in found.curve.by_reference.items():
                for metric in METRICS:
                    curve = by_metric[metric]
                    noise = curve.standard_error or [None] * len(self.budgets)
                    rows += [
                        {
                            "pattern": name,
                            "reference": reference,
                            "metric": metric,
                            "budget": r,
                            "error": error,
                            "standard_error": spread,
                        }
                        for r, error, spread in zip(self.budgets, curve.mean, noise, strict=True)
                    ]
        return pd.DataFrame(rows)

    def heads_table(self) -> pd.DataFrame:
        """Return a data frame, one row per head and pattern; empty for a law."""
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": unit.layer,
                "head": unit.head,
                "pattern": name,
                "exponent": found.map.exponent,
                "low": found.map.interval[0],
                "high": found.map.interval[1],
                "last_error": found.map.error[-1],
                "budget": found.budget,
                "state": found.state,
                "ratio": found.ratio,
                "ratio_low": found.ratio_interval[0],
                "ratio_high": found.ratio_interval[1],
                "against_random": found.against_random,
            }
            for unit in self.heads
            for name, found in unit.patterns.items()
        )

    def shown(self) -> list[pd.DataFrame]:
        """Return the exponents of the map."""
        table = self.table()
        return [] if table.empty else [table[table["metric"] == "map"].drop(columns="metric")]

    def __repr__(self) -> str:
        return f"{self.subject}\n{super().__repr__()}" if self.patterns else self.headline

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.subject)}</p>{super()._repr_html_()}"


def student(found: Sparse) -> float:
    """Standard errors to each side of a 95% interval over the replicates."""
    return float(scipy.special.stdtrit(max(found.replicates - 1, 1), (1 + LEVEL) / 2))


def count_heads(heads: Sequence[SparseHead], pattern: str) -> dict[AgainstRandom, int]:
    """In how many heads a pattern is better, worse or undecided against random selection."""
    found = Counter(unit.patterns[pattern].against_random for unit in heads)
    return {name: found[name] for name in get_args(AgainstRandom)}


def headline(patterns: Mapping[str, SparsePattern], heads: Sequence[SparseHead] = ()) -> str:
    """The answer in a few sentences."""
    groups = [
        f"{_listed(names)} {words if len(names) > 1 else _singular(verdict)}"
        for verdict, words in SAID.items()
        if (names := [n for n, p in patterns.items() if p.verdict == verdict])
    ]
    sentences = [_baseline(patterns[RANDOM].fit.map)]
    if groups:
        sentences.append(
            f"Compared with it (exponents within {MARGIN:g} count as equal): {'; '.join(groups)}."
        )
    if heads:
        counts = class_counts(unit.patterns[RANDOM].map.interval for unit in heads)
        sentences.append(f"With random keys the error falls {rates_said(counts, 'head')}.")
    return " ".join(sentences)


def _baseline(fit: Rate) -> str:
    """The exponent of random selection, and whether it is 1/2."""
    low, high = fit.interval
    if low is None or high is None:
        return f"Random selection: the error falls with exponent {two_digits(fit.exponent)}."
    return (
        "Random selection: the error falls with the number of keys, with exponent "
        f"{between(fit.exponent, fit.interval)}, {rate_words(fit.interval)}."
    )


def rate_words(interval: Ends) -> str:
    """Class of an exponent as words that follow its interval."""
    name = rate_class(interval)
    if name == "at 1/2":
        return name
    return f"{name} 1/2" if name != "undecided" else "undecided whether 1/2"


def _singular(verdict: str) -> str:
    if verdict == NEVER:
        return f"{verdict} on these budgets"
    return spoken(verdict)


def spoken(verdict: str) -> str:
    """A verdict as what follows the name of a pattern in a sentence."""
    return f"is {verdict}" if verdict == UNDECIDED else verdict


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
