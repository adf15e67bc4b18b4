"""Do corpora differ? Tests whose unit is the block.

Values come as an array [row, corpus, block], a row being one statistic of one head, on the scale
on which it is compared (logarithms of what is positive and skewed).

**All corpora at once**: the sum of squared distances of the corpora's means from their weighted
mean, each divided by its variance over the blocks, with its p-value from permutations of the
blocks. Blocks are what is exchangeable if corpora do not differ, so that the test is exact,
whatever the law of the values. Dividing by variances (Welch's statistic) is what makes it a test of
means rather than of spreads; six blocks know their variance badly, so it is drawn 30% of the way to
the mean over the corpora. Measured at the level 5%
(2,000 rows each, +- 0.5%), 3 to 8 corpora of 6 blocks: 4.8 to 5.7% with equal variances (normal,
skewed, heavy-tailed); 5.7 to 7.5% if one corpus varies three times as much, where the plain F
statistic rejects 8.5 to 12.1%. It finds a shift of 1.5 standard deviations in one of 3 to 8 normal
corpora of equal variance in 56 to 67% of rows (F: 60 to 69%), and more often than F with unequal
ones. All rows share the permutations.

**Two corpora**: Welch's t. With few blocks there are few permutations (924 of 6 + 6 blocks), so
that no exact p-value would survive a correction for thousands of comparisons. How far Welch's
p-values can be believed on these very blocks is measured: see :func:`halves_check`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array

#: Most permutations, however many a corrected p-value of fdr takes.
MOST = 100_000
#: How far a corpus' variance is drawn to the mean over the corpora.
SHRINK = 0.3
#: Variance, as a share of the total, that even constant corpora are taken to have.
LEAST = 1e-12
#: Permutations and rows that are worked on at a time: what fits the cache.
PERMUTATIONS, ROWS = 256, 256
#: Two statistics that differ by less than this share are the same.
SAME = 1e-9
#: A row whose values vary by less than this share of their size does not vary.
CONSTANT = 1e-12
#: Splits of a corpus into halves that are tried.
SPLITS = 40


@dataclass(frozen=True, eq=False)
class Omnibus:
    """Whether a row differs between corpora.

    Attributes
    ----------
    p
        p-values by row; ``nan`` where all values are equal.
    share
        Share of the variance over the blocks that is between corpora, by row: omega squared, which
        is 0 on average when there is no difference (negative ones are set to 0).
    permutations
        How many permutations p-values come from.
    smallest
        The smallest p-value that this many blocks, and permutations, allow.
    """

    p: Array
    share: Array
    permutations: int
    smallest: float


def varies(values: Array) -> NDArray[np.bool_]:
    """Rows [row, ...] that are known everywhere and not constant."""
    flat = values.reshape(len(values), -1)
    known = np.isfinite(flat).all(axis=1)
    spread, size = np.zeros(len(flat)), np.zeros(len(flat))
    spread[known] = np.ptp(flat[known], axis=1)
    size[known] = np.abs(flat[known]).max(axis=1)
    return known & (spread > CONSTANT * np.maximum(size, CONSTANT))


def omnibus(values: Array, fdr: float, seed: int, permutations: int) -> Omnibus:
    """Permutation test of every row of [row, corpus, block].

    There are at least so many ``permutations``, and twice as many as a corrected p-value of ``fdr``
    takes, up to 100,000.
    """
    rows, corpora, blocks = values.shape
    tested = varies(values)
    p, share = np.full(rows, np.nan), np.full(rows, np.nan)
    ways = arrangements(corpora, blocks)
    wanted = int(np.clip(np.ceil(2 * max(tested.sum(), 1) / fdr), permutations, MOST))
    exact = corpora == 2 and ways <= wanted
    count = ways if exact else wanted
    if tested.any():
        chosen = values[tested]
        share[tested] = _share(chosen)
        p[tested] = _permuted(chosen, count, exact, seed)
    smallest = 1 / ways if exact else max(1 / (count + 1), 1 / ways)
    return Omnibus(p, share, count, smallest)


def arrangements(corpora: int, blocks: int) -> int:
    """Ways to divide all blocks among the corpora, which p-values are made from."""
    each = math.factorial(blocks) ** corpora * math.factorial(corpora)
    return int(math.factorial(corpora * blocks) // each)


def _share(values: Array) -> Array:
    """Omega squared: ``(SSB - (C - 1) MSW)/(SST + MSW)``."""
    _, corpora, blocks = values.shape
    middle = values.mean(axis=2)
    between = blocks * np.sum((middle - middle.mean(axis=1, keepdims=True)) ** 2, axis=1)
    inside = np.sum((values - middle[:, :, None]) ** 2, axis=(1, 2))
    noise = inside / (corpora * (blocks - 1))
    return np.asarray(
        np.maximum((between - (corpora - 1) * noise) / (between + inside + noise), 0.0)
    )


def _permuted(values: Array, count: int, exact: bool, seed: int) -> Array:
    """p-values from ``count`` permutations, or from all arrangements of two corpora."""
    rows, corpora, blocks = values.shape
    total = corpora * blocks
    flat = values.reshape(rows, total)
    flat = flat - flat.mean(axis=1, keepdims=True)
    columns = np.ascontiguousarray((flat / flat.std(axis=1, keepdims=True)).T)
    squares = columns**2
    seen = _statistic(np.eye(total)[None].reshape(1, corpora, blocks, total).sum(axis=2),
                      columns, squares, blocks)[0]  # fmt: skip
    reached = np.zeros(rows)
    chunks = _arrangements(corpora, blocks) if exact else _random(corpora, blocks, count, seed)
    for member in chunks:
        for start in range(0, rows, ROWS):
            part = slice(start, start + ROWS)
            found = _statistic(member, columns[:, part], squares[:, part], blocks)
            reached[part] += np.count_nonzero(found >= seen[part] * (1 - SAME), axis=0)
    # the arrangement that was seen counts as one of them: the p-value is valid for any count
    return reached / count if exact else (reached + 1) / (count + 1)


def _statistic(
    member: Array, columns: Array, squares: Array, blocks: int, shrink: float = SHRINK
) -> Array:
    """``sum_c w_c (m_c - m)^2`` by permutation and row.

    Parameters
    ----------
    member
        1 where a block belongs to a corpus, axes [permutation, corpus, block].
    columns, squares
        Values and their squares, axes [block, row].
    blocks
        Blocks of a corpus.
    shrink
        How far a corpus' variance is drawn to the mean over the corpora.
    """
    size, corpora, total = member.shape
    flat = member.reshape(-1, total)
    middle = (flat @ columns).reshape(size, corpora, -1) / blocks
    spread = (flat @ squares).reshape(size, corpora, -1) - blocks * middle**2
    spread = np.maximum(spread, 0.0) / (blocks - 1)
    shrunk = (1 - shrink) * spread + shrink * spread.mean(axis=1, keepdims=True) + LEAST
    weight = blocks / shrunk
    first = np.einsum("pcr,pcr->pr", weight, middle)
    second = np.einsum("pcr,pcr,pcr->pr", weight, middle, middle)
    return np.asarray(second - first**2 / weight.sum(axis=1))


def _arrangements(corpora: int, blocks: int) -> Iterator[Array]:
    """All ways to divide blocks between two corpora; the first block stays in the first."""
    total = corpora * blocks
    sets = np.array(list(combinations(range(1, total), blocks - 1)))
    for start in range(0, len(sets), PERMUTATIONS):
        some = sets[start : start + PERMUTATIONS]
        first = np.zeros((len(some), total))
        first[:, 0] = 1
        np.put_along_axis(first, some, 1.0, axis=1)
        yield np.stack([first, 1 - first], axis=1)


def _random(corpora: int, blocks: int, count: int, seed: int) -> Iterator[Array]:
    """Random permutations of all blocks."""
    rng = random_stream(seed, "corpus permutations")
    total = corpora * blocks
    places = np.arange(total)
    for start in range(0, count, PERMUTATIONS):
        size = min(PERMUTATIONS, count - start)
        order = rng.permuted(np.tile(places, (size, 1)), axis=1)
        member = np.zeros((size, corpora, total))
        np.put_along_axis(member, order.reshape(size, corpora, blocks), 1.0, axis=2)
        yield member


@dataclass(frozen=True, eq=False)
class Pairs:
    """Comparisons of two corpora, axes [row, pair].

    Attributes
    ----------
    pairs
        Numbers of the corpora, the first below the second.
    difference
        Mean of the second minus mean of the first.
    standard_error, freedom
        Its standard error, and Welch's degrees of freedom.
    p
        p-values; ``nan`` where all values are equal.
    """

    pairs: tuple[tuple[int, int], ...]
    difference: Array
    standard_error: Array
    freedom: Array
    p: Array

    def intervals(self, level: float) -> tuple[Array, Array]:
        """Lower and upper ends."""
        half = scipy.stats.t.ppf((1 + level) / 2, self.freedom) * self.standard_error
        return self.difference - half, self.difference + half


def compare_pairs(values: Array) -> Pairs:
    """Welch's t of every row of [row, corpus, block] and every pair of corpora."""
    _, corpora, blocks = values.shape
    pairs = tuple(combinations(range(corpora), 2))
    first, second = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    middle = values.mean(axis=2)
    squares = values.var(axis=2, ddof=1) / blocks
    p, difference, error, freedom = welch(
        middle[:, first], middle[:, second], squares[:, first], squares[:, second], blocks
    )
    return Pairs(pairs, difference, error, freedom, p)


def welch(
    first: Array, second: Array, first_square: Array, second_square: Array, count: int
) -> tuple[Array, Array, Array, Array]:
    """p-value, difference, standard error and degrees of freedom, from means and their variances.

    Parameters
    ----------
    first, second
        Means of ``count`` values each.
    first_square, second_square
        Squared standard errors of these means.
    count
        Number of values behind each mean.
    """
    difference = second - first
    total = first_square + second_square
    error = np.sqrt(total)
    bottom = first_square**2 + second_square**2
    freedom = np.divide(
        (count - 1) * total**2, bottom, out=np.full_like(total, count - 1.0), where=bottom > 0
    )
    moved = np.abs(difference) > CONSTANT * np.maximum(np.abs(first), np.abs(second))
    t = np.divide(difference, error, out=np.zeros_like(error), where=error > 0)
    p = 2 * scipy.stats.t.sf(np.abs(t), freedom)
    # two constants: the only evidence is that the blocks fell apart into their corpora
    p = np.where(error > 0, p, np.where(moved, 2 / math.comb(2 * count, count), np.nan))
    p = np.where(np.isfinite(difference), p, np.nan)
    return np.asarray(p), difference, error, freedom


def half_splits(blocks: int, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Ways to split blocks into two halves (the odd one left out): all, or 40 at random."""
    half = blocks // 2
    if math.comb(blocks, half) <= 2 * SPLITS:
        sides = [np.array(side) for side in combinations(range(blocks), half)]
    else:
        rng = random_stream(seed, "corpus halves")
        sides = [np.sort(rng.choice(blocks, size=half, replace=False)) for _ in range(SPLITS)]
    splits = []
    for side in sides:
        rest = np.setdiff1d(np.arange(blocks), side)[:half]
        # of two halves that are each other's rest, one
        if 2 * half < blocks or len(sides) == SPLITS or side[0] == 0:
            splits.append((side, rest))
    return splits


def halves_check(values: Array, fdr: float, seed: int) -> tuple[int, int]:
    """Welch's test where nothing differs: between the halves of each corpus, in all splits.

    Returns how many of the p-values are at most ``fdr``, and how many there are. A share near or
    below fdr says that the p-values of pairs can be believed on these blocks.
    """
    rejected = made = 0
    for side, rest in half_splits(values.shape[2], seed):
        if len(side) < 2:
            continue
        one, two = values[:, :, side], values[:, :, rest]
        p, *_ = welch(
            one.mean(axis=2), two.mean(axis=2),
            one.var(axis=2, ddof=1) / len(side), two.var(axis=2, ddof=1) / len(rest), len(side),
        )  # fmt: skip
        rejected += int(np.count_nonzero(p <= fdr))
        made += int(np.count_nonzero(np.isfinite(p)))
    return rejected, made
