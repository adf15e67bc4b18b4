"""The result of a comparison: what is compared, the records that are stored, and their tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from esscher.core.codec import Count, Estimate, Hash, Index, Name, Record
from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.domains.study import DomainsStudy  # noqa: F401

#: One number per head, in the order of ``Domains.units``.
PerHead: TypeAlias = tuple[float | None, ...]
#: Verdicts about a head.
DIFFERS, SAME, UNDECIDED = "differs", "the same", "undecided"
#: Corpora are the same in a head if they differ by less than this factor, or by less than this
#: difference of k-hat and shares: a convention, about twice what other text of the same corpus
#: makes of the tokens that a head needs.
FACTOR, DIFFERENCE = 1.25, 0.1
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

    @property
    def margin(self) -> float:
        """Effect below which corpora are the same, on the scale on which blocks are compared."""
        return float(np.log(FACTOR)) if self.logarithmic else DIFFERENCE


#: In the order of tables; the verdict about a head is that about the first.
STATISTICS = (
    Statistic("tokens", "tokens for 10% output error", "10%", True),
    Statistic("ess", "tokens that the median query attends", "ESS", True),
    Statistic("khat", "one-pass k-hat", "k-hat", False),
    Statistic("horizon", "horizon H", "H", True),
    Statistic("frobenius", "Frobenius horizon F", "F", True),
    Statistic("tau", "mean tilt tau", "tau", True),
    Statistic("sinks", "share of attention in sinks", "sinks", False),
    Statistic("delimiters", "share of attention in delimiters", "delimiters", False),
)
BY_NAME = {statistic.name: statistic for statistic in STATISTICS}


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
    """Effects of corpus b over (or minus) corpus a.

    Attributes
    ----------
    typical
        That of the median head, with 95% interval over blocks.
    effect, low, high
        By head, with 95% intervals over blocks.
    """

    a: Name
    b: Name
    typical: Estimate
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
    share
        Share of the variance over blocks that is between corpora.
    verdict
        ``differs``, ``the same`` (within the margin) or ``undecided``.
    pairs
        Effects between two corpora.
    """

    p: PerHead
    adjusted: PerHead
    share: PerHead
    verdict: tuple[Name, ...]
    pairs: tuple[Pair, ...]

    def count(self, verdict: str) -> int:
        """Return the number of heads with a verdict."""
        return self.verdict.count(verdict)


class LayerMean(Record, frozen=True, kw_only=True):
    """Mean over the heads of a layer, with its 95% interval over blocks."""

    layer: Index
    low: float | None
    value: float | None
    high: float | None


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
    layers
        Means over the heads of a layer, by corpus.
    numbers
        All that was measured, [corpus][block][head], to six digits.
    """

    blocks: Count
    smallest_p: float | None = None
    units: tuple[tuple[Index, Index], ...] = ()
    corpora: Annotated[tuple[CorpusNumbers, ...], Meta(max_length=1000)] = ()
    tests: dict[Name, StatisticTest] = field(default_factory=dict)
    layers: dict[Name, dict[Name, tuple[LayerMean, ...]]] = field(default_factory=dict)
    numbers: dict[Name, tuple[tuple[PerHead, ...], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together: tables and figures go from one to another."""
        if not self.blocks:
            return
        names, corpora = set(self.tests), {corpus.name for corpus in self.corpora}
        if "tokens" not in names or not names <= BY_NAME.keys():
            raise InputError("it has blocks, but no tests")
        medians = [corpus.median.keys() for corpus in self.corpora]
        if any(part != names for part in (self.layers.keys(), self.numbers.keys(), *medians)):
            raise InputError("its parts are not of the same statistics")
        if any(set(means) != corpora for means in self.layers.values()):
            raise InputError("its layers are not of its corpora")
        if any({len(b) for b in grid} != {self.blocks} for grid in self.numbers.values()):
            raise InputError("its numbers are not of all blocks")
        for name, test in self.tests.items():
            lists = [test.p, test.adjusted, test.share, test.verdict]
            lists += chain.from_iterable(self.numbers[name])
            for pair in test.pairs:
                lists += [pair.effect, pair.low, pair.high]
                if not {pair.a, pair.b} <= corpora:
                    raise InputError("its pairs are not of its corpora")
            if {len(part) for part in lists} != {len(self.units)}:
                raise InputError("its tests are not of all heads")

    def table(self) -> pd.DataFrame:
        """One row per statistic, head and pair of corpora.

        ``p``, ``adjusted_p`` (over the heads), ``share`` of the variance over blocks that is
        between corpora and ``verdict`` are those of the head on all corpora; ``effect`` is that of
        corpus b over (or minus) corpus a, with its 95% interval.
        """
        import pandas as pd

        columns = ["statistic", "layer", "head", "p", "adjusted_p", "share", "verdict"]
        columns += ["a", "b", "effect", "low", "high"]
        rows = [
            (name, *unit, *tested, pair.a, pair.b, pair.effect[i], pair.low[i], pair.high[i])
            for name, test in self.tests.items()
            for i, (unit, *tested) in enumerate(
                zip(self.units, test.p, test.adjusted, test.share, test.verdict, strict=True)
            )
            for pair in test.pairs
        ]
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
        """Return one row per statistic: heads by verdict, and the largest typical effect."""
        import pandas as pd

        rows = []
        for name, test in self.tests.items():
            pair = self.widest(name)
            counts = {verdict: test.count(verdict) for verdict in (DIFFERS, SAME, UNDECIDED)}
            row = {"statistic": BY_NAME[name].title, **counts, "a": pair.a, "b": pair.b}
            low, high = pair.typical.interval
            rows.append(row | {"effect": pair.typical.value, "low": low, "high": high})
        return [pd.DataFrame(rows)]

    def widest(self, statistic: str) -> Pair:
        """Return the two corpora between which the typical head differs most."""
        log = BY_NAME[statistic].logarithmic

        def size(pair: Pair) -> float:
            effect = pair.typical.value
            return -1.0 if effect is None else abs(float(np.log(effect) if log else effect))

        return max(self.tests[statistic].pairs, key=size)
