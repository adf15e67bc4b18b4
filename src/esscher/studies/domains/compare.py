"""Do corpora differ in a head? One permutation test, with one assumption.

The unit is the block: values come as an array [head, corpus, block], on the scale on which they are
compared (logarithms of what is positive and skewed).

If the corpus does not matter, its blocks could have come from any other: they are exchangeable. The
variance of the corpora's means is compared with that after exchanging blocks between corpora, in
all ways or in 9,999 random ones. Under that assumption the p-value is exact whatever the law of the
values. Blocks must not overlap or depend on each other, and a corpus that differs in its spread
alone may count as different, too. p-values are adjusted over the heads (Benjamini and Hochberg), so
that of the heads said to differ a share of at most ``fdr`` does not. All other heads are undecided:
a difference that was not seen is not sameness.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray
from scipy import stats

from esscher.core.codec import Estimate
from esscher.core.shown import about
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics.intervals import discoveries, mean_and_interval
from esscher.runs.folder import Cell, CellRun
from esscher.studies.domains.result import (
    STATISTICS,
    CorpusNumbers,
    Domains,
    Pair,
    PerHead,
    Statistic,
    StatisticTest,
)

if TYPE_CHECKING:
    from esscher.studies.domains.study import DomainsStudy

#: Random exchanges of blocks; all of them if there are fewer.
PERMUTATIONS = 9_999
#: Exchanges that are worked on at a time.
BATCH = 256
#: A head whose values vary by less than this share of their size does not vary.
CONSTANT = 1e-12
#: Quantile of Student's law at the ends of 95% intervals.
UPPER = 0.975
#: Fewest blocks of every corpus from which anything is compared.
FEWEST = 3
#: Columns of a block's table that say which head it is.
UNIT = ["layer", "head"]


def varies(values: Array) -> NDArray[np.bool_]:
    """Return which rows [row, ...] are known everywhere and not constant."""
    flat = values.reshape(len(values), -1)
    known = np.isfinite(flat).all(axis=1)
    with np.errstate(invalid="ignore"):
        spread, size = np.ptp(flat, axis=1), np.abs(flat).max(axis=1)
        return np.asarray(known & (spread > CONSTANT * np.maximum(size, CONSTANT)))


def smallest_p(corpora: int, blocks: int) -> float:
    """Return the smallest p-value that the test can have."""
    orders = math.factorial(corpora)
    # ways to divide all blocks among the corpora, whose order is none
    ways: int = math.factorial(corpora * blocks) // (math.factorial(blocks) ** corpora * orders)
    smallest = 1 / ways
    return smallest if ways * orders <= PERMUTATIONS else max(smallest, 1 / (PERMUTATIONS + 1))


def permutation_p(values: Array, seed: int) -> Array:
    """Return the p-value of every row of [row, corpus, block]; ``nan`` where nothing varies."""
    p = np.full(len(values), np.nan)
    tested = varies(values)
    if tested.any():
        blocks = values[tested]
        # standardised: rounding is then far smaller than what two arrangements differ by
        blocks = blocks - blocks.mean(axis=(1, 2), keepdims=True)
        blocks = blocks / blocks.std(axis=(1, 2), keepdims=True)

        def between(*corpora: Array, axis: int) -> Array:
            return np.asarray(np.var([corpus.mean(axis=axis) for corpus in corpora], axis=0))

        p[tested] = stats.permutation_test(
            tuple(np.moveaxis(blocks, 1, 0)),
            between,
            vectorized=True,
            axis=-1,
            n_resamples=PERMUTATIONS,
            batch=BATCH,
            alternative="greater",
            random_state=random_stream(seed, "corpus permutations"),
        ).pvalue
    return p


def between_share(values: Array) -> Array:
    """Return the share of the variance over blocks that is between corpora, by row.

    Omega squared, ``(SSB - (C - 1) MSW)/(SST + MSW)``: 0 on average if there is no difference;
    negative ones are set to 0. ``nan`` where nothing varies.
    """
    _, corpora, blocks = values.shape
    middle = values.mean(axis=2)
    between = blocks * np.sum((middle - middle.mean(axis=1, keepdims=True)) ** 2, axis=1)
    inside = np.sum((values - middle[:, :, None]) ** 2, axis=(1, 2))
    noise = inside / (corpora * (blocks - 1))
    total = between + inside + noise
    share = np.full(len(values), np.nan)
    np.divide(between - (corpora - 1) * noise, total, out=share, where=varies(values))
    return np.asarray(np.maximum(share, 0.0))


def differences(first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Return the mean of ``second`` minus that of ``first`` over blocks (last axis), and its ends.

    The 95% interval is Welch's, by Student's law.
    """
    blocks = first.shape[-1]
    a, b = (np.asarray(side.var(axis=-1, ddof=1)) / blocks for side in (first, second))
    total, bottom = a + b, a**2 + b**2
    freedom = np.divide(
        (blocks - 1) * total**2, bottom, out=np.full_like(total, blocks - 1.0), where=bottom > 0
    )
    half = stats.t.ppf(UPPER, freedom) * np.sqrt(total)
    difference = second.mean(axis=-1) - first.mean(axis=-1)
    return difference, difference - half, difference + half


def compare(
    values: Array, names: Sequence[str], statistic: Statistic, fdr: float, seed: int
) -> StatisticTest:
    """Compare corpora in one statistic.

    Parameters
    ----------
    values
        Axes [head, corpus, block], on the statistic's scale.
    names
        Names of the corpora.
    statistic
        The statistic.
    fdr
        False discovery rate.
    seed
        Seed of the permutations.
    """
    p = permutation_p(values, seed)
    adjusted = discoveries(p)
    pairs = []
    for a, b in combinations(range(len(names)), 2):
        ends = differences(values[:, a], values[:, b])
        effect, low, high = (_rounded(statistic.backward(part)) for part in ends)
        pairs.append(Pair(a=names[a], b=names[b], effect=effect, low=low, high=high))
    return StatisticTest(
        p=_rounded(p),
        adjusted=_rounded(adjusted),
        differs=tuple((adjusted <= fdr).tolist()),
        share=_rounded(between_share(values)),
        pairs=tuple(pairs),
    )


def assemble(study: DomainsStudy, cells: Mapping[str, Cell], run: CellRun) -> Domains:
    """Compare corpora by as many blocks of each as all have."""
    rows: list[list[Cell]] = [[] for _ in study.corpora]
    first: Cell | None = None
    for name, (corpus, block) in study.places().items():
        cell = cells.get(name)
        if cell is not None and len(rows[corpus]) == block:
            first = cell if first is None else first
            columns = list(cell.table.columns)
            if (
                not {*UNIT, "tokens"} <= set(columns)
                or columns != list(first.table.columns)
                or not all(np.issubdtype(kind, np.number) for kind in cell.table.dtypes)
                or not cell.table[UNIT].equals(first.table[UNIT])
            ):
                raise run.damaged(name, "its table is not of the same heads and statistics")
            rows[corpus].append(cell)
    blocks = min(len(row) for row in rows)
    if first is None or blocks < FEWEST:
        wanted = len(study.cells())
        headline = f"{len(cells)} of {wanted} blocks are measured: too few to compare corpora yet."
        return Domains.of(run, study, len(cells), headline, blocks=0)

    numbers: dict[str, Array] = {}  # [head, corpus, block]
    for name in STATISTICS:
        if name in first.table.columns:
            grid = np.array(
                [[c.table[name].to_numpy(dtype=np.float64) for c in row[:blocks]] for row in rows]
            )
            # what is the same everywhere (delimiters of a model without any) is no statistic
            if name == "tokens" or np.ptp(np.nan_to_num(grid)) > 0:
                numbers[name] = np.ascontiguousarray(np.moveaxis(grid, 2, 0))
    names = [corpus.name for corpus in study.corpora]
    tests: dict[str, StatisticTest] = {}
    medians: list[dict[str, Estimate]] = [{} for _ in names]
    for name, grid in numbers.items():
        statistic = STATISTICS[name]
        values = statistic.forward(grid)
        tests[name] = compare(values, names, statistic, study.fdr, study.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a number that no head has is nan
            # one number per block; its interval is over the blocks
            middle = np.nanmedian(values, axis=0)
        result = mean_and_interval(middle.T)
        for c, median in enumerate(medians):
            ends = result.interval[c] or (np.nan, np.nan)
            estimate = np.array([result.mean[c], *ends], dtype=np.float64)
            value, low, high = _rounded(statistic.backward(estimate))
            median[name] = Estimate(value=value, interval=(low, high))
    corpora = []
    for record, row, median in zip(study.corpora, rows, medians, strict=True):
        mean: dict[str, Any] = {
            name: float(np.mean([getattr(cell.about, name) for cell in row[:blocks]]))
            for name in ("tokens", "distinct", "unknown")
        }
        corpora.append(CorpusNumbers(**asdict(record), **mean, median=median))

    smallest = smallest_p(len(names), blocks)
    headline = _headline(tests["tokens"], corpora, study.fdr, smallest, blocks)
    if len(cells) < len(study.cells()):
        headline += f" So far from {blocks} blocks of every corpus."
    return Domains.of(
        run,
        study,
        len(cells),
        headline,
        blocks=blocks,
        smallest_p=smallest,
        units=tuple((int(layer), int(head)) for layer, head in first.table[UNIT].to_numpy()),
        corpora=tuple(corpora),
        tests=tests,
        numbers={
            name: tuple(
                tuple(_rounded(block, 6) for block in corpus) for corpus in grid.transpose(1, 2, 0)
            )
            for name, grid in numbers.items()
        },
    )


def _headline(
    test: StatisticTest,
    corpora: Sequence[CorpusNumbers],
    fdr: float,
    smallest: float,
    blocks: int,
) -> str:
    """Say in how many heads corpora differ, as far as the blocks can tell."""
    heads, differ = len(test.differs), sum(test.differs)
    text = (
        f"The tokens that a head needs for 10% output error differ between corpora beyond chance "
        f"in {differ} of {heads} heads (false discovery rate {100 * fdr:g}%); {heads - differ} are "
        "undecided."
    )
    medians = []
    for corpus in corpora:
        value, (low, high) = corpus.median["tokens"].value, corpus.median["tokens"].interval
        if value is not None and low is not None and high is not None:
            medians.append(f"{about(value)} ({about(low)} to {about(high)}) on {corpus.name}")
    if medians:
        text += f" The median head needs {', '.join(medians)}."
    made = sum(p is not None for p in test.p)
    together = math.ceil(made * smallest / fdr * (1 - 1e-9))
    if together > made:
        text += (
            f" {blocks} blocks are too few to find any difference: no p-value can be below "
            f"{smallest:.2g}."
        )
    elif together > 1 and differ < heads:
        text += (
            f" With {blocks} blocks no p-value is below {smallest:.2g}: fewer than {together} "
            "heads that differ cannot be found."
        )
    return text


def _rounded(values: Array, digits: int = 5) -> PerHead:
    """Numbers with a few digits; None for those that are not finite."""
    return tuple(float(f"{x:.{digits}g}") if np.isfinite(x) else None for x in values.tolist())
