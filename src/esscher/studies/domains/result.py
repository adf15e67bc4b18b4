"""The result of a comparison: the records that are stored, and their tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from esscher.core.codec import Count, Estimate, Hash, Index, Name, Record
from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.runs.old_result import Result

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.domains.study import DomainsStudy  # noqa: F401

#: One number per head, in the order of ``Domains.units``.
PerHead: TypeAlias = tuple[float | None, ...]
#: Verdicts about a head.
DIFFERS, UNDECIDED = "differs", "undecided"
#: Smallest number whose logarithm is taken; smaller ones (a head without any tilt) count as this.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Statistic:
    """One number of a head.

    Attributes
    ----------
    name
        Its name in results.
    title, short
        Its name in figures, and in tables.
    logarithmic
        Whether it is positive and skewed: then logarithms are compared, and effects are ratios of
        geometric means. Otherwise they are differences of means.
    """

    name: str
    title: str
    short: str
    logarithmic: bool

    def forward(self, values: Array) -> Array:
        """Return values on the scale on which blocks are compared."""
        return np.log(np.maximum(values, SMALLEST)) if self.logarithmic else values

    def backward(self, values: Array) -> Array:
        """Return from that scale to the statistic itself, or to a ratio."""
        return np.exp(values) if self.logarithmic else values


#: In the order of tables; the headline is about the first.
STATISTICS = {
    statistic.name: statistic
    for statistic in (
        Statistic("tokens", "tokens for 10% output error", "10%", True),
        Statistic("ess", "tokens that the median query attends", "ESS", True),
        Statistic("khat", "one-pass k-hat", "k-hat", False),
        Statistic("horizon", "horizon H", "H", True),
        Statistic("frobenius", "Frobenius horizon F", "F", True),
        Statistic("tau", "mean tilt tau", "tau", True),
        Statistic("sinks", "share of attention in sinks", "sinks", False),
        Statistic("delimiters", "share of attention in delimiters", "delimiters", False),
    )
}


class Corpus(Record, frozen=True, kw_only=True):
    """A corpus: the user's name of it, where it comes from, SHA-256 and length of its text."""

    name: Name
    source: Name
    text_hash: Hash
    characters: Count


class BlockCell(Record, frozen=True, kw_only=True):
    """A cell: a block of a corpus. Its table has one row per head, one column per statistic.

    Attributes
    ----------
    tokens
        How many there are, without delimiters.
    distinct, unknown
        Shares of different and of unknown tokens.
    """

    tokens: Count
    distinct: float
    unknown: float


class CorpusNumbers(Corpus, frozen=True, kw_only=True):
    """A corpus, means over its blocks, and medians of every statistic over the heads."""

    tokens: float
    distinct: float
    unknown: float
    median: dict[Name, Estimate]


class Pair(Record, frozen=True, kw_only=True):
    """By head, the effect of corpus b over (or minus) corpus a, with 95% interval over blocks."""

    a: Name
    b: Name
    effect: PerHead
    low: PerHead
    high: PerHead


class StatisticTest(Record, frozen=True, kw_only=True):
    """The comparison of all corpora in one statistic, by head.

    Attributes
    ----------
    p, adjusted
        p-values of the permutation test, and the same adjusted over the heads (Benjamini and
        Hochberg); None where nothing varies.
    differs
        Whether the adjusted p-value is at most the false discovery rate; otherwise the head is
        undecided.
    share
        Share of the variance over blocks that is between corpora.
    pairs
        Effects between two corpora.
    """

    p: PerHead
    adjusted: PerHead
    differs: tuple[bool, ...]
    share: PerHead
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Domains(Result["DomainsStudy"]):
    """How much the numbers of heads differ between corpora; dictionaries are by statistic.

    Attributes
    ----------
    blocks
        Blocks of every corpus; 0 while too few are measured to compare anything.
    smallest_p
        The smallest p-value that so many blocks allow.
    units
        Layer and head of every head that is compared.
    corpora
        Numbers of every corpus.
    tests
        Tests of all heads.
    numbers
        All that was measured, [corpus][block][head], to six digits.
    """

    blocks: Count
    smallest_p: float | None = None
    units: tuple[tuple[Index, Index], ...] = ()
    corpora: Annotated[tuple[CorpusNumbers, ...], Meta(max_length=1000)] = ()
    tests: dict[Name, StatisticTest] = field(default_factory=dict)
    numbers: dict[Name, tuple[tuple[PerHead, ...], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together: tables and figures go from one to another."""
        if not self.blocks:
            return
        names = self.tests.keys()
        if "tokens" not in names or not names <= STATISTICS.keys():
            raise InputError("it has blocks, but no tests")
        medians = [corpus.median.keys() for corpus in self.corpora]
        if any(part != names for part in (self.numbers.keys(), *medians)):
            raise InputError("its parts are not of the same statistics")
        if any(
            len(grid) != len(self.corpora) or {len(corpus) for corpus in grid} != {self.blocks}
            for grid in self.numbers.values()
        ):
            raise InputError("its numbers are not of all blocks")
        for name, test in self.tests.items():
            lists = [test.p, test.adjusted, test.differs, test.share]
            lists += chain.from_iterable(self.numbers[name])
            lists += [part for pair in test.pairs for part in (pair.effect, pair.low, pair.high)]
            if {len(part) for part in lists} != {len(self.units)}:
                raise InputError("its tests are not of all heads")

    def table(self) -> pd.DataFrame:
        """One row per statistic, head and pair of corpora.

        ``p``, ``adjusted_p`` (over the heads), ``share`` of the variance over blocks that is
        between corpora and ``verdict`` (``differs`` or ``undecided``) are those of the head on all
        corpora; ``effect`` is that of corpus b over (or minus) corpus a, with its 95% interval.
        """
        import pandas as pd

        columns = ["statistic", "layer", "head", "p", "adjusted_p", "share", "verdict"]
        columns += ["a", "b", "effect", "low", "high"]
        rows = []
        for name, test in self.tests.items():
            for i, unit in enumerate(self.units):
                verdict = DIFFERS if test.differs[i] else UNDECIDED
                tested = (name, *unit, test.p[i], test.adjusted[i], test.share[i], verdict)
                for pair in test.pairs:
                    effect = (pair.effect[i], pair.low[i], pair.high[i])
                    rows.append((*tested, pair.a, pair.b, *effect))
        return pd.DataFrame(rows, columns=columns)

    def per_block(self) -> pd.DataFrame:
        """One row per corpus, block and head, one column per statistic."""
        import pandas as pd

        rows = [
            (corpus.name, block, *unit, *(self.numbers[name][c][block][i] for name in self.tests))
            for c, corpus in enumerate(self.corpora)
            for block in range(self.blocks)
            for i, unit in enumerate(self.units)
        ]
        return pd.DataFrame(rows, columns=["corpus", "block", "layer", "head", *self.tests])

    def medians(self) -> pd.DataFrame:
        """One row per statistic and corpus: the median over heads, with its 95% interval."""
        import pandas as pd

        rows = [
            (name, corpus.name, corpus.median[name].value, *corpus.median[name].interval)
            for name in self.tests
            for corpus in self.corpora
        ]
        return pd.DataFrame(rows, columns=["statistic", "corpus", "median", "low", "high"])

    def shown(self) -> list[pd.DataFrame]:
        """Return the medians of every corpus."""
        return [self.medians()]
