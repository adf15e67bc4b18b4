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
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy import stats

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import joined
from esscher.math.statistics.intervals import discoveries, mean_bounds
from esscher.runs.result import NotFinished
from esscher.runs.study import Setup
from esscher.studies.domains.study import (
    LINEAR,
    BlockNumbers,
    DomainsData,
    DomainsSettings,
    cell_name,
)

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
#: Verdicts on a head.
DIFFERS, UNDECIDED = "differs", "undecided"
#: Smallest number whose logarithm is taken; smaller ones (a head without any tilt) count as this.
SMALLEST = 1e-12


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


def differences(first: Array, second: Array) -> Array:
    """Return the mean of ``second`` minus that of ``first`` over blocks (last axis), [..., bound].

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
    return np.stack([difference, difference - half, difference + half], axis=-1)


def compare(
    numbers: Array, statistic: str, fdr: float, seed: int
) -> dict[str, NDArray[np.generic]]:
    """Compare corpora in one statistic.

    Parameters
    ----------
    numbers
        Axes [layer, head, corpus, block].
    statistic
        Name of what the numbers are.
    fdr
        False discovery rate.
    seed
        Seed of the permutations.

    Returns
    -------
    dict
        Variables of :class:`DomainsData` by their names, without the axis of statistics.
    """
    heads, corpora = numbers.shape[:-2], numbers.shape[-2]
    values = numbers.reshape(-1, *numbers.shape[-2:])
    logarithmic = statistic not in LINEAR
    if logarithmic:
        values = np.log(np.maximum(values, SMALLEST))
    p = permutation_p(values, seed)
    adjusted = discoveries(p)
    pairs = combinations(range(corpora), 2)
    effect = np.stack([differences(values[:, a], values[:, b]) for a, b in pairs], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a number that no head has is nan
        # a number per block, so that its interval is over the blocks
        median = mean_bounds(np.nanmedian(values, axis=0).T)
    if logarithmic:
        effect, median = np.exp(effect), np.exp(median)
    return {
        "p": p.reshape(heads),
        "adjusted_p": adjusted.reshape(heads),
        "verdict": np.where(adjusted <= fdr, DIFFERS, UNDECIDED).reshape(heads),
        "share": between_share(values).reshape(heads),
        "effect": effect.reshape(*heads, *effect.shape[1:]),
        "median": median,
    }


def combine(setup: Setup[DomainsSettings], cells: Mapping[str, xr.Dataset]) -> DomainsData:
    """Compare corpora by as many blocks of each as all have.

    Raises
    ------
    NotFinished
        If these are too few to compare anything.
    """
    settings, names = setup.settings, [corpus.name for corpus in setup.records["texts"]]
    blocks, corpora = 0, range(len(names))
    while all(cell_name(i, blocks) in cells for i in corpora):
        blocks += 1
    if blocks < FEWEST:
        raise NotFinished(f"{blocks} blocks of every corpus are measured; it takes {FEWEST}")
    rows = [joined((cells[cell_name(i, b)] for b in range(blocks)), "block") for i in corpora]
    together = BlockNumbers(joined(rows, "corpus"))
    numbers = together.number.transpose("statistic", "layer", "head", "corpus", "block")
    # what is the same everywhere (delimiters of a model without any) is no statistic
    varying = np.ptp(np.nan_to_num(numbers.values), axis=(1, 2, 3, 4)) > 0
    numbers = numbers.isel(statistic=varying | (numbers["statistic"] == "tokens").values)
    data = DomainsData.new(
        **{str(axis): numbers[axis].values for axis in numbers.dims},
        pair=[f"{b} to {a}" for a, b in combinations(names, 2)],
    )
    data.number, data.length = numbers, together.length
    data.distinct, data.unknown = together.distinct, together.unknown
    tests = [
        compare(grid, name, settings.fdr, settings.seed)
        for name, grid in zip(numbers["statistic"].values.tolist(), numbers.values, strict=True)
    ]
    for variable in tests[0]:
        setattr(data, variable, [test[variable] for test in tests])
    return data
