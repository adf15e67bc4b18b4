"""The result: curves, exponents and one verdict per pattern, as they are stored and read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from esscher.core.codec import Count, Estimate, Index, Name, Record
from esscher.core.errors import InputError
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics import Rate
from esscher.math.statistics.intervals import Means
from esscher.math.statistics.records import ByMetric
from esscher.runs.old_result import Result, WithHeads

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.sparse.study import SparseLawStudy, SparseStudy

    AnySparse: TypeAlias = SparseStudy | SparseLawStudy

#: The pattern that the others are compared with, and the verdict on it.
RANDOM, IS_BASELINE = "random", "baseline"
#: Verdicts on the other patterns; see :func:`esscher.studies.sparse.compare.judge`.
KEEPS = "keeps the exponent"
FASTER = "converges faster"
SLOWER = "converges more slowly"
NEVER = "does not converge to dense"
UNDECIDED = "undecided"
#: Exponents that differ by no more than this are called the same: half of the width of what is
#: called 1/2 (``math/statistics/records.py``).
MARGIN = 0.05


class SparseCell(Record, frozen=True, kw_only=True):
    """A cell: a passage, or replicates of a law. Its table has one row per error.

    Attributes
    ----------
    units
        Layer and head of every head; (0, 0) for a law.
    replicates
        How many there are: draws on a passage, sequences of a law.
    norm, visible
        Root mean square norm of dense outputs, and keys that a query may see: means.
    """

    units: tuple[tuple[Index, Index], ...]
    replicates: Index
    norm: float
    visible: float


class SparsePattern(Record, frozen=True, kw_only=True):
    """A pattern, its errors against dense attention and how they compare with random selection.

    Attributes
    ----------
    title
        The pattern in words.
    curve
        Relative errors by budget.
    fit
        Rates of the errors divided by ``sqrt(1 - r/N)``.
    difference, ratio
        Exponent minus that of random selection; error over that of random selection (geometric
        mean over the budgets). None for random selection itself.
    verdict
        On the map.
    """

    title: Name
    curve: ByMetric[Means]
    fit: ByMetric[Rate]
    difference: ByMetric[Estimate] | None
    ratio: ByMetric[Estimate] | None
    verdict: Name


class HeadPattern(Record, frozen=True, kw_only=True):
    """Map errors of a pattern in a head by budget, and their exponent over passages."""

    exponent: Estimate
    error: tuple[float, ...]


class SparseHead(Record, frozen=True, kw_only=True):
    """The patterns in a head."""

    layer: Index
    head: Index
    patterns: dict[str, HeadPattern]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Sparse(WithHeads[SparseHead], Result["AnySparse"]):
    """The errors of sparse patterns, fitted and compared.

    Attributes
    ----------
    budgets
        Numbers of keys that a query attends.
    patterns
        By name.
    heads
        The same head by head; empty for a law.
    replicates
        Sequences of tokens, or passages.
    visible, norm
        Mean number of keys that a query may see, and root mean square norm of dense outputs.
    """

    budgets: tuple[Count, ...]
    patterns: dict[str, SparsePattern] = field(default_factory=dict)
    heads: tuple[SparseHead, ...] = ()
    replicates: Count = 0
    visible: float | None = None
    norm: float | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together: tables and figures go from one to another."""
        if not self.patterns:
            return
        if self.visible is None or RANDOM not in self.patterns:
            raise InputError("random selection was not measured, or the number of keys is missing")
        if any(unit.patterns.keys() != self.patterns.keys() for unit in self.heads):
            raise InputError("its heads lack some patterns")
        lengths = [len(p.error) for unit in self.heads for p in unit.patterns.values()]
        for pattern in self.patterns.values():
            for curve in (pattern.curve[metric] for metric in METRICS):
                lengths += map(len, (curve.mean, curve.standard_error, curve.interval))
        if not self.budgets or {*lengths} != {len(self.budgets)}:
            raise InputError("its curves do not have one number per budget")

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per pattern and metric; the verdict is on the map."""
        import pandas as pd

        rows = []
        for name, pattern in self.patterns.items():
            for metric in METRICS:
                fit, none = pattern.fit[metric], Estimate(value=None, interval=(None, None))
                ratio = none if pattern.ratio is None else pattern.ratio[metric]
                difference = none if pattern.difference is None else pattern.difference[metric]
                rows.append(
                    {
                        "pattern": name,
                        "metric": metric,
                        "exponent": fit.exponent,
                        "low": fit.interval[0],
                        "high": fit.interval[1],
                        "law": fit.law,
                        "trusted": fit.trusted,
                        "last_error": pattern.curve[metric].mean[-1],
                        "ratio": 1.0 if name == RANDOM else ratio.value,
                        "ratio_low": ratio.interval[0],
                        "ratio_high": ratio.interval[1],
                        "difference": 0.0 if name == RANDOM else difference.value,
                        "difference_low": difference.interval[0],
                        "difference_high": difference.interval[1],
                        "verdict": pattern.verdict if metric == "map" else "",
                    }
                )
        return pd.DataFrame(rows)

    def curves_table(self) -> pd.DataFrame:
        """Return a data frame of the errors, one row per pattern, metric and budget."""
        import pandas as pd

        return pd.DataFrame(
            {
                "pattern": name,
                "metric": metric,
                "budget": budget,
                "error": pattern.curve[metric].mean[b],
                "standard_error": pattern.curve[metric].standard_error[b],
            }
            for name, pattern in self.patterns.items()
            for metric in METRICS
            for b, budget in enumerate(self.budgets)
        )

    def heads_table(self) -> pd.DataFrame:
        """Return a data frame of map errors, one row per head and pattern; empty for a law."""
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": unit.layer,
                "head": unit.head,
                "pattern": name,
                "exponent": pattern.exponent.value,
                "low": pattern.exponent.interval[0],
                "high": pattern.exponent.interval[1],
                "last_error": pattern.error[-1],
            }
            for unit in self.heads
            for name, pattern in unit.patterns.items()
        )

    def shown(self) -> list[pd.DataFrame]:
        """Return the numbers of the map."""
        table = self.table()
        return [] if table.empty else [table[table["metric"] == "map"].drop(columns="metric")]
