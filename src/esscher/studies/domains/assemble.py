"""From the numbers of all blocks to what is said about the corpora."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.codec import Estimate
from esscher.core.shown import counted
from esscher.core.validation import Array
from esscher.runs.folder import Cell, CellRun
from esscher.studies.domains.comparison import varies
from esscher.studies.domains.decided import DIFFERENCE, FACTOR
from esscher.studies.domains.ranks import plan_transfer, rank_agreement
from esscher.studies.domains.records import (
    Corpus,
    CorpusNumbers,
    HeadCounts,
    LayerMean,
    Ranks,
    Scale,
    Transfer,
    Variance,
)
from esscher.studies.domains.result import Domains
from esscher.studies.domains.statistics import BY_NAME, STATISTICS, Statistic
from esscher.studies.domains.tested import AllTests, rounded, run_tests
from esscher.studies.domains.variance import components

if TYPE_CHECKING:
    from esscher.studies.domains.study import DomainsStudy

#: Fewest blocks of every corpus from which anything is compared.
FEWEST = 3
#: Columns of a block's table that say which head it is.
UNIT = ["layer", "head"]


def assemble(study: DomainsStudy, cells: Mapping[str, Cell], run: CellRun) -> Domains:
    """Compare corpora by as many blocks of each as all have."""
    found: list[list[Cell]] = [[] for _ in study.corpora]
    first: Cell | None = None
    for name, (corpus, block) in study.places().items():
        cell = cells.get(name)
        if cell is not None and len(found[corpus]) == block:
            first = cell if first is None else first
            _check_alike(run, name, cell, first)
            found[corpus].append(cell)
    blocks = min(len(row) for row in found)
    if blocks < FEWEST:
        wanted = len(study.cells())
        headline = f"{len(cells)} of {wanted} blocks are measured: too few to compare corpora yet."
        return Domains.of(run, study, len(cells), headline, blocks=0)
    return _compared(study, [row[:blocks] for row in found], len(cells), run)


def _check_alike(run: CellRun, name: str, cell: Cell, first: Cell) -> None:
    """Refuse a table that is not of the heads and statistics of the first."""
    columns = list(cell.table.columns)
    if {*UNIT, "tokens"} <= set(columns) and columns == list(first.table.columns):
        numbers = all(np.issubdtype(kind, np.number) for kind in cell.table.dtypes)
        if numbers and cell.table[UNIT].equals(first.table[UNIT]):
            return
    raise run.damaged(name, "its table is not of the same heads and statistics as the others")


def _compared(study: DomainsStudy, cells: list[list[Cell]], count: int, run: CellRun) -> Domains:
    fdr, seed = study.fdr, study.seed
    names = [corpus.name for corpus in study.corpora]
    first = cells[0][0].table
    used = [s for s in STATISTICS if s.name in first.columns]
    raw = {s.name: _grid(cells, s.name) for s in used}
    # what is the same everywhere (delimiters of a model without any) is no statistic
    used = [s for s in used if s.name == "tokens" or np.ptp(np.nan_to_num(raw[s.name])) > 0]
    values = {s.name: s.forward(raw[s.name]) for s in used}
    units = first[UNIT].to_numpy()
    tested = run_tests(values, used, names, units, fdr, seed, study.permutations)
    variance = {s.name: _components(values[s.name]) for s in used}
    transfer = plan_transfer(values["tokens"], names, fdr, seed)
    blocks = len(cells[0])
    headline = _headline(tested, variance["tokens"], transfer, len(units), fdr, blocks)
    if count < len(study.cells()):
        headline += f" So far from {blocks} blocks of every corpus."
    return Domains.of(
        run,
        study,
        count,
        headline,
        blocks=blocks,
        units=tuple((int(layer), int(head)) for layer, head in units),
        statistics={
            s.name: Scale(title=s.title, scale="ratio" if s.logarithmic else "difference")
            for s in used
        },
        corpora=tuple(
            _corpus(c, corpus, cells[c], values, fdr) for c, corpus in enumerate(study.corpora)
        ),
        tests=tested.tests,
        counts=tested.counts,
        correction=tested.correction,
        strongest=tested.strongest,
        variance=variance,
        rank={s.name: _ranks(values[s.name], names, seed) for s in used},
        transfer=transfer,
        layers={s.name: _layers(values[s.name], units, s, names, fdr) for s in used},
    )


def _grid(cells: list[list[Cell]], name: str) -> Array:
    """One statistic, axes [head, corpus, block]."""
    columns = [[cell.table[name].to_numpy(dtype=np.float64) for cell in row] for row in cells]
    return np.ascontiguousarray(np.moveaxis(np.array(columns), 2, 0))


def _known(values: Array) -> Array | None:
    """Heads whose number is known in every block; None if it is a constant of most of them.

    Sinks are such a number: where most heads have none, there is no variance to divide and no
    order to keep.
    """
    if np.mean(varies(values)) < 0.5:
        return None
    return values[np.isfinite(values).all(axis=(1, 2))]


def _components(values: Array) -> Variance | None:
    known = _known(values)
    found = None if known is None else components(known)
    return None if found is None else found.record()


def _ranks(values: Array, names: list[str], seed: int) -> Ranks | None:
    known = _known(values)
    return None if known is None else rank_agreement(known, names, seed)


def _corpus(
    index: int, about: Corpus, cells: Sequence[Cell], values: dict[str, Array], fdr: float
) -> CorpusNumbers:
    medians = {}
    for name, found in values.items():
        statistic = BY_NAME[name]
        # the median over heads is one number per block; its interval is over the blocks
        by_block = _over_heads(np.nanmedian, found[:, index])
        low, middle, high = (
            rounded(statistic.backward(np.array(x))) for x in _interval(by_block, fdr)
        )
        medians[name] = Estimate(value=middle, interval=(low, high))
    return CorpusNumbers(
        name=about.name,
        source=about.source,
        text_hash=about.text_hash,
        characters=about.characters,
        tokens=float(np.mean([cell.about.tokens for cell in cells])),
        distinct=float(np.mean([cell.about.distinct for cell in cells])),
        unknown=float(np.mean([cell.about.unknown for cell in cells])),
        median=medians,
    )


def _over_heads(summary: Callable[..., Any], values: Array) -> Array:
    """A summary over the heads whose number is known, by block; ``nan`` where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(summary(values, axis=0))


def _interval(blocks: Array, fdr: float) -> tuple[float, float, float]:
    """Lower end, mean and upper end of Student's interval over blocks (last axis)."""
    middle, count = float(blocks.mean()), len(blocks)
    error = float(blocks.std(ddof=1)) / np.sqrt(count)
    half = float(scipy.stats.t.ppf(1 - fdr / 2, count - 1)) * error
    return middle - half, middle, middle + half


def _layers(
    values: Array, units: NDArray[np.int64], statistic: Statistic, names: list[str], fdr: float
) -> dict[str, tuple[LayerMean, ...]]:
    """Mean over the heads of a layer, by corpus, with an interval over blocks."""
    out: dict[str, tuple[LayerMean, ...]] = {}
    for c, name in enumerate(names):
        rows = []
        for layer in np.unique(units[:, 0]):
            by_block = _over_heads(np.nanmean, values[units[:, 0] == layer, c])
            low, value, high = (
                rounded(statistic.backward(np.array(x))) for x in _interval(by_block, fdr)
            )
            rows.append(LayerMean(layer=int(layer), low=low, value=value, high=high))
        out[name] = tuple(rows)
    return out


def _headline(
    tested: AllTests,
    variance: Variance | None,
    transfer: Transfer,
    heads: int,
    fdr: float,
    blocks: int,
) -> str:
    """The answer in a few sentences."""
    sentences = [_differ(tested, heads, fdr, blocks)]
    if variance is not None and variance.head_over_corpus:
        low, high = variance.head_over_corpus_interval
        ratio, most, least = variance.head_over_corpus, "head", "corpus"
        if ratio < 1:
            ratio, most, least = 1 / ratio, least, most
            low, high = (1 / high, 1 / low) if high is not None and low else (None, None)
        within = "" if high is None else f" (95%: {low:.2g} to {high:.2g})"
        sentences.append(
            f"How many tokens 10% output error takes depends {ratio:.2g} times as much on the "
            f"{most} as on the {least}{within}."
        )
    sentences.append(
        f"Planned on one corpus, it is off by a factor of {transfer.factor:.2f} on another for a "
        f"typical head, and by {transfer.factor_within:.2f} on other text of the same corpus."
    )
    return " ".join(sentences)


def _differ(tested: AllTests, heads: int, fdr: float, blocks: int) -> str:
    """How many heads differ, are the same, and are undecided, as far as the blocks can tell."""
    counts, test = tested.counts["any"], tested.correction
    if not test.decides:
        return (
            f"{blocks} blocks are too few to decide whether corpora differ: no p-value can be "
            f"below {test.smallest_p:.2g}, and the false discovery rate is {100 * fdr:g}%. Use at "
            f"least {test.blocks_for_any} blocks. {_same(counts)}."
        )
    said = (
        f"Corpora differ beyond chance in {counts.heads} of {heads} heads (false discovery rate "
        f"{100 * fdr:g}%; {counts.heads_holm} family-wise); {_same(counts)}."
    )
    if counts.undecided and test.least_found is not None and test.least_found > 1:
        said += (
            f" With {blocks} blocks no difference can be found unless {test.least_found:,} of "
            f"{test.omnibus_tests:,} tests have the smallest possible p-value, "
            f"{test.smallest_p:.2g}; one alone takes {test.takes(blocks)}."
        )
    return said


def _same(counts: HeadCounts) -> str:
    return (
        f"{counted(counts.same or 0, 'head')} {'is' if counts.same == 1 else 'are'} the same on "
        f"all corpora (within a factor of {FACTOR:g}, or {DIFFERENCE:g}), {counts.undecided} "
        "undecided"
    )
