"""Many heads: how much their errors have in common, and what their sum makes of it.

Heads of a layer see the same tokens. With ``G_hg = <O_h e_h, O_g e_g>`` the inner products of their
errors behind the output projection, one matrix per replicate,

    R_hg = E G_hg / sqrt(E G_hh E G_gg)            correlation of errors
    effective heads = (tr R)^2 / tr(R^2)           H for independent heads, 1 for identical ones
    amplification = E|sum_h O_h e_h|^2 / sum_h E|O_h e_h|^2 = sum_hg E G_hg / sum_h E G_hh

A correlation that is estimated from m replicates has a square that is too large by about 1/m, and a
layer has many pairs. The squares ``(E G_hg)^2`` and the products ``E G_hh E G_gg`` are therefore
estimated from pairs of DIFFERENT replicates, which takes that part out. Intervals resample
replicates; copies of a replicate in a resample are no different ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from esscher.core.codec import Estimate
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, resampling_counts

#: Resamples of the replicates.
RESAMPLES = 1000
#: Fewest replicates of which an interval is made.
FEWEST = 4


def error_correlation(products: Array) -> Array:
    """``R`` from inner products [replicate, H, H]; 0 where a head has no error."""
    mean = products.mean(axis=0)
    scale = np.sqrt(np.diagonal(mean))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(mean / np.outer(scale, scale)))


def effective_heads(products: Array, seed: int) -> Estimate:
    """Effective number of independent heads, with its interval, from products [replicate, H, H]."""
    heads = products.shape[1]
    rows, columns = np.triu_indices(heads, 1)
    cross = products[:, rows, columns]
    squares = np.diagonal(products, axis1=1, axis2=2)
    pairs = squares[:, rows] * squares[:, columns]

    def estimate(copies: Array) -> Array:
        # sums over pairs of different replicates: all pairs less those of a replicate with itself
        above = (copies @ cross) ** 2 - copies**2 @ cross**2
        sums = copies @ squares
        below = sums[:, rows] * sums[:, columns] - copies**2 @ pairs
        # nothing is left of a resample that has one replicate only, nor of heads without errors
        some = below > 1e-9 * sums[:, rows] * sums[:, columns]
        ratio = np.divide(above, below, out=np.zeros_like(below), where=some)
        trace = heads + 2 * ratio.sum(axis=1)
        return np.asarray(heads**2 / np.clip(trace, heads, heads**2))

    return _with_interval(estimate, len(products), seed)


def amplification(products: Array, seed: int) -> Estimate:
    """``E|sum_h O_h e_h|^2 / sum_h E|O_h e_h|^2``, with its interval."""
    whole = products.sum(axis=(1, 2))
    parts = np.trace(products, axis1=1, axis2=2)

    def estimate(copies: Array) -> Array:
        below = copies @ parts
        ratio = np.divide(copies @ whole, below, out=np.ones(len(copies)), where=below > 0)
        return np.asarray(ratio)

    return _with_interval(estimate, len(products), seed)


def _with_interval(estimate: Callable[[Array], Array], replicates: int, seed: int) -> Estimate:
    """A function of how often each replicate counts, with its interval by resampling."""
    value = float(estimate(np.ones((1, replicates)))[0])
    if replicates < FEWEST:
        return Estimate(value=value, interval=(None, None))
    rng = random_stream(seed, "many heads")
    copies = resampling_counts(replicates, RESAMPLES, rng)
    copies = copies[np.count_nonzero(copies, axis=1) >= 3]  # fewer say nothing about variation
    low, high = np.quantile(estimate(copies.astype(np.float64)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, interval=(float(min(low, value)), float(max(high, value))))
