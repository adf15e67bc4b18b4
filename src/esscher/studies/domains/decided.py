"""What a comparison of corpora can decide: attainable p-values, sameness, and power.

A test that finds nothing says that corpora are the same only if it would have found a difference.
So every head and statistic is one of three: it *differs* beyond chance; it is the *same*, when all
pairs of corpora differ by less than a margin beyond chance (two one-sided tests of every pair, the
largest p-value of them, corrected like all others); or it is *undecided*. Beside it stands the
power: how likely a shift of one corpus by the margin would have been found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.statistics.intervals import discoveries
from esscher.studies.domains.comparison import Pairs, arrangements, varies
from esscher.studies.domains.records import HeadCounts
from esscher.studies.domains.statistics import Statistic

DIFFERS, SAME, UNDECIDED = "differs", "the same", "undecided"
#: Corpora are the same in a head if they differ by less than this factor, or by less than this
#: difference of k-hat, exponents and shares: a convention, about twice what other text of the same
#: corpus makes of the tokens that a head needs.
FACTOR, DIFFERENCE = 1.25, 0.1
#: Power that blocks are counted for, and the most that are counted.
WANTED, MOST_BLOCKS = 0.8, 1024


def margin(statistic: Statistic) -> float:
    """The margin of a statistic, on the scale on which it is compared."""
    return math.log(FACTOR) if statistic.logarithmic else DIFFERENCE


def least_blocks(corpora: int, level: float) -> int:
    """Fewest blocks of every corpus with which a p-value can be as small as ``level``."""
    blocks = 2
    while arrangements(corpora, blocks) * level < 1 and blocks < MOST_BLOCKS:
        blocks += 1
    return blocks


def classify(adjusted: Array, values: Array, pairs: Pairs, margins: Array, fdr: float) -> list[str]:
    """Class of every row of [row, corpus, block].

    Parameters
    ----------
    adjusted
        p-values of the test of all corpora, adjusted.
    values, pairs
        What is compared, and its comparisons by pairs.
    margins
        Margin of every row.
    fdr
        False discovery rate.
    """
    same = discoveries(same_p(pairs, margins))
    known = np.isfinite(values).all(axis=(1, 2))
    constant = known & ~varies(values)
    out = []
    for row, p in enumerate(adjusted):
        if p <= fdr:
            out.append(DIFFERS)
        elif constant[row] or same[row] <= fdr:
            out.append(SAME)
        else:
            out.append(UNDECIDED)
    return out


def same_p(pairs: Pairs, margins: Array) -> Array:
    """p-values of "some two corpora differ by the margin or more", by row."""
    reach = margins[:, None] - np.abs(pairs.difference)
    t = np.divide(
        reach, pairs.standard_error,
        out=np.where(reach > 0, np.inf, -np.inf), where=pairs.standard_error > 0,
    )  # fmt: skip
    p = np.asarray(scipy.stats.t.sf(t, pairs.freedom))
    # a pair that was not tested (both the same constant) differs by nothing
    p = np.where(np.isfinite(pairs.difference), p, np.nan)
    return np.asarray(p.max(axis=1))


def power(values: Array, margins: Array, level: float, smallest: float) -> Array:
    """Probability that a shift of one corpus by the margin has a p-value of at most ``level``.

    From the F law, with the variance over the blocks of [row, corpus, block]; 0 where no p-value
    can be that small, ``nan`` where nothing varies.
    """
    _, corpora, blocks = values.shape
    variance = values.var(axis=2, ddof=1).mean(axis=1)
    if smallest > level:
        return np.where(np.isfinite(variance), 0.0, np.nan)
    return _power(variance, margins, corpora, blocks, level)


def _power(variance: Array, margins: Array, corpora: int, blocks: int, level: float) -> Array:
    top, bottom = corpora - 1, corpora * (blocks - 1)
    critical = scipy.stats.f.isf(level, top, bottom)
    found = np.full(len(variance), np.nan)
    known = np.isfinite(variance) & (variance > 0)
    # the sum of squares of one mean that is off by the margin
    apart = blocks * margins[known] ** 2 * top / corpora / variance[known]
    # beyond 1e4 the law is far above every critical value, and the function slow
    found[known] = 1 - scipy.special.ncfdtr(top, bottom, np.minimum(apart, 1e4), critical)
    return found


def blocks_for(values: Array, margins: Array, level: float) -> int | None:
    """Blocks of every corpus with which the median row has a power of 80%; None beyond 1,024."""
    corpora = values.shape[1]
    variance = values.var(axis=2, ddof=1).mean(axis=1)
    known = np.isfinite(variance) & (variance > 0)
    if not known.any():
        return None
    middle = np.array([np.median((variance / margins**2)[known])])
    count = max(least_blocks(corpora, level), 3)
    while count <= MOST_BLOCKS:
        if _power(middle, np.ones(1), corpora, count, level)[0] >= WANTED:
            return count
        count += max(1, count // 20)
    return None


def head_counts(grid: Sequence[Sequence[str]], family_wise: int) -> HeadCounts:
    """Heads of each class, by their classes [statistic, head]; ``family_wise`` of them differ so.

    A head differs if it does in any statistic, and is the same if it is in all of them.
    """
    by_head = list(zip(*grid, strict=True))
    differs = sum(DIFFERS in head for head in by_head)
    same = sum(all(said == SAME for said in head) for head in by_head)
    return HeadCounts(
        heads=differs,
        heads_holm=family_wise,
        same=same,
        undecided=len(by_head) - differs - same,
    )
