"""Do corpora differ in a head? One permutation test, and the verdict.

The unit is the block: values come as an array [head, corpus, block], on the scale on which they are
compared (logarithms of what is positive and skewed).

**The test.** If the corpus does not matter, its blocks could have come from any other: they are
exchangeable. The variance of the corpora's means is compared with that after exchanging blocks
between corpora, in all ways or in 9,999 random ones. Under that assumption the p-value is exact
whatever the law of the values. Blocks must not overlap or depend on each other, and a corpus that
differs in its spread alone may be found, too. p-values are adjusted over the heads (Benjamini and
Hochberg), so that of the heads said to differ a share of at most ``fdr`` does not.

**The verdict.** A head *differs* if its adjusted p-value is at most ``fdr``. It is *the same* if
the 95% intervals of all its effects (Welch's, over blocks) lie within the margin: a factor of 1.25,
or a difference of 0.1. Otherwise it is *undecided*: finding nothing does not make it the same.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from esscher.core.codec import Estimate
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics.intervals import discoveries
from esscher.runs.folder import Cell, CellRun
from esscher.studies.domains.result import (
    DIFFERS,
    FACTOR,
    SAME,
    STATISTICS,
    UNDECIDED,
    CorpusNumbers,
    Domains,
    LayerMean,
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


def arrangements(corpora: int, blocks: int) -> int:
    """Return in how many ways all blocks can be divided among the corpora, whose order is none."""
    each = math.factorial(blocks) ** corpora * math.factorial(corpora)
    return int(math.factorial(corpora * blocks) // each)


def smallest_p(corpora: int, blocks: int) -> float:
    """Return the smallest p-value that the test can have."""
    ways = arrangements(corpora, blocks)
    exact = ways * math.factorial(corpora) <= PERMUTATIONS
    return 1 / ways if exact else max(1 / ways, 1 / (PERMUTATIONS + 1))


def permutation_p(values: Array, seed: int) -> Array:
    """Return the p-value of every row of [row, corpus, block]; ``nan`` where nothing varies."""
    p = np.full(len(values), np.nan)
    tested = varies(values)
    if tested.any():
        chosen = values[tested]
        # standardised: rounding is then far smaller than what two arrangements differ by
        chosen = chosen - chosen.mean(axis=(1, 2), keepdims=True)
        chosen = chosen / chosen.std(axis=(1, 2), keepdims=True)

        def between(*corpora: Array, axis: int) -> Array:
            return np.asarray(np.var([corpus.mean(axis=axis) for corpus in corpora], axis=0))

        p[tested] = stats.permutation_test(
            tuple(np.moveaxis(chosen, 1, 0)),
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
    return _welch(second.mean(axis=-1) - first.mean(axis=-1), a, b, blocks)


def median_difference(first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Return the median over heads of the differences of means over blocks, and its ends.

    The squared error of each side of [head, block] comes from leaving out one block at a time; with
    one head that is Welch's interval.
    """
    known = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    first, second = first[known], second[known]
    if not known.any():
        return np.array(np.nan), np.array(np.nan), np.array(np.nan)
    blocks = first.shape[1]
    middle = second.mean(axis=1) - first.mean(axis=1)
    squares = []
    for side in (first, second):
        # a mean without block b moves by (mean - block b)/(B - 1)
        moved = (side.mean(axis=1, keepdims=True) - side) / (blocks - 1)
        medians = np.median(middle[:, None] + (moved if side is second else -moved), axis=0)
        squares.append((blocks - 1) * np.asarray(medians.var()))
    return _welch(np.median(middle), squares[0], squares[1], blocks)


def _welch(difference: Any, a: Array, b: Array, blocks: int) -> tuple[Array, Array, Array]:
    """A difference and the ends of its interval, from the squared errors of both sides."""
    total, bottom = a + b, a**2 + b**2
    freedom = np.divide(
        (blocks - 1) * total**2, bottom, out=np.full_like(total, blocks - 1.0), where=bottom > 0
    )
    half = stats.t.ppf(UPPER, freedom) * np.sqrt(total)
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
    within = np.isfinite(values).all(axis=(1, 2))
    pairs = []
    for a, b in combinations(range(len(names)), 2):
        effect, low, high = differences(values[:, a], values[:, b])
        within &= (low > -statistic.margin) & (high < statistic.margin)
        effect, low, high = (statistic.backward(part) for part in (effect, low, high))
        typical = [
            statistic.backward(part) for part in median_difference(values[:, a], values[:, b])
        ]
        pairs.append(
            Pair(
                a=names[a],
                b=names[b],
                typical=_estimate(*typical),
                effect=_per_head(effect),
                low=_per_head(low),
                high=_per_head(high),
            )
        )
    verdict = np.where(adjusted <= fdr, DIFFERS, np.where(within, SAME, UNDECIDED))
    return StatisticTest(
        p=_per_head(p),
        adjusted=_per_head(adjusted),
        share=_per_head(between_share(values)),
        verdict=tuple(verdict.tolist()),
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
    for statistic in STATISTICS:
        name = statistic.name
        if name in first.table.columns:
            grid = [
                [c.table[name].to_numpy(dtype=np.float64) for c in row[:blocks]] for row in rows
            ]
            # what is the same everywhere (delimiters of a model without any) is no statistic
            if name == "tokens" or np.ptp(np.nan_to_num(grid)) > 0:
                numbers[name] = np.ascontiguousarray(np.moveaxis(np.array(grid), 2, 0))
    used = [statistic for statistic in STATISTICS if statistic.name in numbers]
    values = {s.name: s.forward(numbers[s.name]) for s in used}
    names = [corpus.name for corpus in study.corpora]
    tests = {s.name: compare(values[s.name], names, s, study.fdr, study.seed) for s in used}
    units = [(int(layer), int(head)) for layer, head in first.table[UNIT].to_numpy()]
    corpora = []
    for c, about in enumerate(study.corpora):
        read = [cell.about for cell in rows[c][:blocks]]
        corpora.append(
            CorpusNumbers(
                name=about.name,
                source=about.source,
                text_hash=about.text_hash,
                characters=about.characters,
                tokens=float(np.mean([block.tokens for block in read])),
                distinct=float(np.mean([block.distinct for block in read])),
                unknown=float(np.mean([block.unknown for block in read])),
                # the median over heads is one number per block; its interval is over the blocks
                median={
                    s.name: _over_blocks(_over_heads(np.nanmedian, values[s.name][:, c]), s)
                    for s in used
                },
            )
        )
    smallest = smallest_p(len(names), blocks)
    headline = _headline(tests["tokens"], study.fdr, smallest, blocks)
    if len(cells) < len(study.cells()):
        headline += f" So far from {blocks} blocks of every corpus."
    return Domains.of(
        run,
        study,
        len(cells),
        headline,
        blocks=blocks,
        smallest_p=smallest,
        units=tuple(units),
        corpora=tuple(corpora),
        tests=tests,
        layers={
            s.name: {
                name: tuple(_layer_means(values[s.name][:, c], units, s))
                for c, name in enumerate(names)
            }
            for s in used
        },
        numbers={
            name: tuple(
                tuple(_per_head(block, 6) for block in corpus) for corpus in grid.transpose(1, 2, 0)
            )
            for name, grid in numbers.items()
        },
    )


def _headline(test: StatisticTest, fdr: float, smallest: float, blocks: int) -> str:
    """Say in how many heads corpora differ, as far as the blocks can tell."""
    heads, differ, same = len(test.verdict), test.count(DIFFERS), test.count(SAME)
    said = (
        f"The tokens that a head needs for 10% output error differ between corpora beyond chance "
        f"in {differ} of {heads} heads (false discovery rate {100 * fdr:g}%), are the same in "
        f"{same} (within a factor of {FACTOR:g}), and undecided in {heads - differ - same}."
    )
    most = max(test.pairs, key=lambda pair: abs(np.log(pair.typical.value or 1.0)))
    low, high = most.typical.interval
    if most.typical.value is not None and low is not None and high is not None:
        said += (
            f" A typical head needs {most.typical.value:.2f} times ({low:.2f} to {high:.2f}) as "
            f"many on {most.b} as on {most.a}."
        )
    made = sum(p is not None for p in test.p)
    together = math.ceil(made * smallest / fdr * (1 - 1e-9))
    if together > made:
        said += (
            f" {blocks} blocks are too few to find any difference: no p-value can be below "
            f"{smallest:.2g}."
        )
    elif together > 1 and test.count(UNDECIDED):
        said += (
            f" With {blocks} blocks no p-value is below {smallest:.2g}: fewer than {together} "
            "heads that differ cannot be found."
        )
    return said


def _layer_means(
    values: Array, units: Sequence[tuple[int, int]], statistic: Statistic
) -> list[LayerMean]:
    """Mean over the heads of a layer of [head, block], with an interval over blocks."""
    layer_of = np.array([layer for layer, _ in units])
    means = []
    for layer in np.unique(layer_of):
        found = _over_blocks(_over_heads(np.nanmean, values[layer_of == layer]), statistic)
        low, high = found.interval
        means.append(LayerMean(layer=int(layer), low=low, value=found.value, high=high))
    return means


def _over_heads(summary: Any, values: Array) -> Array:
    """A summary over the heads whose number is known (first axis); ``nan`` where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(summary(values, axis=0))


def _over_blocks(blocks: Array, statistic: Statistic) -> Estimate:
    """Mean over blocks with Student's 95% interval, on the statistic's own scale."""
    middle, count = float(blocks.mean()), len(blocks)
    error = float(blocks.std(ddof=1)) / np.sqrt(count)
    half = float(stats.t.ppf(UPPER, count - 1)) * error
    parts = (statistic.backward(np.array(x)) for x in (middle, middle - half, middle + half))
    return _estimate(*parts)


def _estimate(value: Any, low: Any, high: Any) -> Estimate:
    return Estimate(value=_rounded(value), interval=(_rounded(low), _rounded(high)))


def _per_head(values: Array, digits: int = 5) -> PerHead:
    return tuple(_rounded(value, digits) for value in values)


def _rounded(value: Any, digits: int = 5) -> float | None:
    """A number with a few digits; None if it is not finite."""
    return float(f"{float(value):.{digits}g}") if np.isfinite(float(value)) else None
