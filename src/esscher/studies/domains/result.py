"""The result: what differs between corpora, and how much."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from esscher.core.codec import Count, Index, Name
from esscher.core.errors import InputError
from esscher.runs.folder import CONFIG, read_run
from esscher.runs.result import Result
from esscher.studies.domains.records import (
    CorpusNumbers,
    Correction,
    Difference,
    HeadCounts,
    LayerMean,
    Ranks,
    Scale,
    StatisticTests,
    Transfer,
    Variance,
    shares_of,
)
from esscher.studies.domains.statistics import BY_NAME

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.domains.study import DomainsStudy


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Domains(Result["DomainsStudy"]):
    """What differs between corpora, and how much; dictionaries are by statistic.

    Attributes
    ----------
    blocks
        Blocks of every corpus; 0 while too few are measured to compare anything.
    units
        Layer and head of every head that is compared.
    statistics
        What is compared.
    corpora
        Numbers of every corpus.
    tests, counts, correction, strongest
        Tests of all heads, heads that differ (also ``"any"``), all tests together, and the largest
        differences.
    variance, rank
        Where the variance comes from, and whether heads keep their order; None where a statistic
        is a constant of most heads.
    transfer
        How wrong a plan made on one corpus is on another.
    layers
        Means over the heads of a layer, by corpus.
    """

    blocks: Count
    units: tuple[tuple[Index, Index], ...] = ()
    statistics: dict[Name, Scale] = field(default_factory=dict)
    corpora: Annotated[tuple[CorpusNumbers, ...], Meta(max_length=1000)] = ()
    tests: dict[Name, StatisticTests] = field(default_factory=dict)
    counts: dict[Name, HeadCounts] = field(default_factory=dict)
    correction: Correction | None = None
    strongest: tuple[Difference, ...] = ()
    variance: dict[Name, Variance | None] = field(default_factory=dict)
    rank: dict[Name, Ranks | None] = field(default_factory=dict)
    transfer: Transfer | None = None
    layers: dict[Name, dict[Name, tuple[LayerMean, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together: tables and figures go from one to another."""
        if not self.blocks:
            return
        names, corpora = set(self.statistics), {corpus.name for corpus in self.corpora}
        by_statistic = (self.tests, self.variance, self.rank, self.layers)
        if self.correction is None or self.transfer is None or "any" not in self.counts:
            raise InputError("it has blocks, but no tests")
        if not names <= BY_NAME.keys() or any(set(part) != names for part in by_statistic):
            raise InputError("its parts are not of the same statistics")
        if not names <= self.counts.keys() or any(d.statistic not in names for d in self.strongest):
            raise InputError("its parts are not of the same statistics")
        if any(set(c.median) != names for c in self.corpora):
            raise InputError("its corpora do not have the same statistics")
        if any(set(found) != corpora for found in self.layers.values()):
            raise InputError("its layers are not of its corpora")
        for test in self.tests.values():
            omnibus = test.omnibus
            lists = [omnibus.p, omnibus.adjusted, omnibus.holm, omnibus.share]
            for pair in test.pairs:
                lists += [pair.effect, pair.low, pair.high, pair.adjusted]
                if not {pair.a, pair.b} <= corpora:
                    raise InputError("its pairs are not of its corpora")
            sizes = {len(found) for found in lists}
            sizes |= {len(found) for found in (test.classes, test.power) if found}
            if sizes - {len(self.units)}:
                raise InputError("its tests are not of all heads")

    def at(self, fdr: float) -> Domains:
        """Return the same measurements, tested at another false discovery rate.

        Raises
        ------
        InputError
            If the run has no directory, or the rate is none.
        """
        if self.folder is None or not (self.folder / CONFIG).exists():
            raise InputError(
                "the blocks of this result are not stored; give out= to keep them, and "
                "esscher.load() its directory"
            )
        study: DomainsStudy = replace(self.study, fdr=fdr).checked()
        run = read_run(self.folder, study.name).typed(study.cell)
        return study.assemble(study.stored(run), run)

    def table(self) -> pd.DataFrame:
        """One row per head and statistic: p-values of the test of all corpora.

        ``p``, ``adjusted_p`` (false discovery rate), ``holm_p`` (family-wise), ``share`` of the
        variance over the blocks that is between corpora, ``class`` (differs, the same within the
        margin, undecided) and ``power`` (to find a shift of one corpus by the margin).
        """
        import pandas as pd

        rows = []
        for name, found in self.tests.items():
            test = found.omnibus
            for i, (layer, head) in enumerate(self.units):
                row = {"statistic": name, "layer": layer, "head": head, "p": test.p[i]}
                row |= {"adjusted_p": test.adjusted[i], "holm_p": test.holm[i]}
                row |= {"share": test.share[i], "class": None, "power": None}
                if found.classes:
                    row |= {"class": found.classes[i], "power": found.power[i]}
                rows.append(row)
        return pd.DataFrame(rows)

    def differences(self) -> pd.DataFrame:
        """One row per statistic, head and pair of corpora, with an interval and a p-value.

        ``effect`` is that of corpus b over (or minus) corpus a; the intervals hold for the
        discoveries together.
        """
        import pandas as pd

        rows = []
        for name, found in self.tests.items():
            for pair in found.pairs:
                for (layer, head), *numbers in zip(
                    self.units, pair.effect, pair.low, pair.high, pair.adjusted, strict=True
                ):
                    rows.append((name, layer, head, pair.a, pair.b, *numbers))
        columns = ["statistic", "layer", "head", "a", "b", "effect", "low", "high", "adjusted_p"]
        return pd.DataFrame(rows, columns=columns)

    def medians(self) -> pd.DataFrame:
        """One row per corpus: median over the heads of each statistic, with its interval."""
        import pandas as pd

        rows = []
        for corpus in self.corpora:
            row: dict[str, str | float | None] = {
                "corpus": corpus.name,
                "distinct": corpus.distinct,
                "unknown": corpus.unknown,
            }
            for name, found in corpus.median.items():
                low, high = found.interval
                row |= {name: found.value, f"{name}_low": low, f"{name}_high": high}
            rows.append(row)
        return pd.DataFrame(rows)

    def variance_table(self) -> pd.DataFrame:
        """One row per statistic: where its variance comes from, and how sure that is."""
        import pandas as pd

        rows = []
        for name, found in self.variance.items():
            if found is None:
                continue
            row: dict[str, str | float | None] = {"statistic": name}
            row |= shares_of(found.shares)
            row |= {f"{k} +-": error for k, error in shares_of(found.standard_errors).items()}
            low, high = found.head_over_corpus_interval
            rows.append(row | {"head / corpus": found.head_over_corpus, "low": low, "high": high})
        return pd.DataFrame(rows)

    def strongest_table(self) -> pd.DataFrame:
        """The largest differences of every statistic, by the near end of their intervals."""
        import pandas as pd

        rows = [
            (BY_NAME[found.statistic].title, f"{found.layer}.{found.head}", found.a, found.b,
             found.effect, *found.interval, found.adjusted)
            for found in self.strongest
        ]  # fmt: skip
        columns = ["statistic", "head", "a", "b", "effect", "low", "high", "adjusted_p"]
        return pd.DataFrame(rows, columns=columns)

    def shown(self) -> list[pd.DataFrame]:
        """Return medians over the heads of every corpus, without their intervals."""
        table = self.medians()
        kept = [name for name in table.columns.astype(str) if not name.endswith(("_low", "_high"))]
        return [table[kept]]
