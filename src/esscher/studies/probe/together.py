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

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import structs

from esscher.core.codec import Estimate
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.sampled.layer import PRODUCTS, LayerMeasurement
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics import LEVEL, Rate, fit_rate, resampling_counts
from esscher.studies.probe.result import (
    AtSize,
    HeadsTogether,
    Magnitudes,
    Matrix,
    ProbeHead,
    SharedErrors,
    SharedExponents,
)

#: Resamples of the replicates.
RESAMPLES = 1000
#: Fewest replicates of which an interval is made.
FEWEST = 4


def heads_together(
    measured: LayerMeasurement, heads: Sequence[ProbeHead], rates: Mapping[str, Rate], seed: int
) -> HeadsTogether | None:
    """Return what the heads of a layer have in common; None for one head, or too few replicates.

    Parameters
    ----------
    measured
        Errors of the layer, with products.
    heads
        Its heads, with their fits.
    rates
        Rates of the heads side by side.
    seed
        Of resampling.
    """
    if measured.products is None or len(measured.heads) < 2:
        return None
    if measured.products.shape[1] < FEWEST:
        return None
    by_error = {
        name: _shared(measured.products[kind], measured.sizes, heads, rates[name], name, seed)
        for kind, name in enumerate(PRODUCTS)
    }
    norms = measured.errors[METRICS.index("mean"), :-1, :, -1].T
    return HeadsTogether(
        **structs.asdict(by_error["mean"]),
        heads=measured.heads,
        map=by_error["map"],
        magnitudes=Magnitudes(
            correlation=_matrix(magnitude_correlation(norms)),
            effective_heads=effective_magnitudes(norms, seed),
        ),
    )


def _shared(
    products: Array,
    sizes: Sequence[int],
    heads: Sequence[ProbeHead],
    layer: Rate,
    metric: str,
    seed: int,
) -> SharedErrors:
    """Numbers at the largest size, and the two short ones at every size."""
    # rounding can make the norm of a vanishing sum negative
    projected = np.sqrt(np.maximum(products.sum(axis=(2, 3)), 0.0))
    rate = fit_rate(projected, np.asarray(sizes, dtype=np.float64), seed=seed)
    every = tuple(
        AtSize(
            n=int(n),
            effective_heads=effective_heads(products[:, j], seed),
            amplification=amplification(products[:, j], seed),
        )
        for j, n in enumerate(sizes)
    )
    each = np.array([head.fit[metric].exponent for head in heads if head.fit is not None])
    worst = int(np.argmin(each))
    return SharedErrors(
        correlation=_matrix(error_correlation(products[:, -1])),
        effective_heads=every[-1].effective_heads,
        amplification=every[-1].amplification,
        by_size=every,
        fit_projected=rate,
        exponents=SharedExponents(
            heads_mean=float(each.mean()),
            heads_worst=float(each[worst]),
            worst_head=heads[worst].head,
            side_by_side=layer.exponent,
            side_by_side_interval=layer.interval,
            projected=rate.exponent,
            projected_interval=rate.interval,
        ),
    )


def _matrix(values: Array) -> Matrix:
    return tuple(tuple(row) for row in values.tolist())


def error_correlation(products: Array) -> Array:
    """``R`` from inner products [replicate, H, H]; 0 where a head has no error."""
    mean = products.mean(axis=0)
    scale = np.sqrt(np.diagonal(mean))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(mean / np.outer(scale, scale)))


def magnitude_correlation(magnitudes: Array) -> Array:
    """Correlation over replicates of the norms of errors [replicate, H]."""
    centred = magnitudes - magnitudes.mean(axis=0)
    return error_correlation(centred[:, :, None] * centred[:, None, :])


def effective_heads(products: Array, seed: int) -> Estimate:
    """Effective number of independent heads, with its interval, from products [replicate, H, H]."""
    heads = products.shape[1]
    rows, columns = np.triu_indices(heads, 1)
    cross = products[:, rows, columns]
    own = np.diagonal(products, axis1=1, axis2=2)
    pairs = own[:, rows] * own[:, columns]

    def estimate(copies: Array) -> Array:
        # sums over pairs of different replicates: all pairs less those of a replicate with itself
        squares = (copies @ cross) ** 2 - copies**2 @ cross**2
        sums = copies @ own
        below = sums[:, rows] * sums[:, columns] - copies**2 @ pairs
        # nothing is left of a resample that has one replicate only, nor of heads without errors
        some = below > 1e-9 * sums[:, rows] * sums[:, columns]
        ratio = np.divide(squares, below, out=np.zeros_like(below), where=some)
        trace = heads + 2 * ratio.sum(axis=1)
        return np.asarray(heads**2 / np.clip(trace, heads, heads**2))

    return _with_interval(estimate, len(products), seed)


def effective_magnitudes(magnitudes: Array, seed: int) -> Estimate:
    """The same number for the norms of errors [replicate, H], from their correlations.

    The square of a correlation over m replicates is corrected as in an adjusted R squared.
    """
    heads = magnitudes.shape[1]
    rows, columns = np.triu_indices(heads, 1)

    def estimate(copies: Array) -> Array:
        share = copies / copies.sum(axis=1, keepdims=True)
        mean = share @ magnitudes
        products = magnitudes[:, rows] * magnitudes[:, columns]
        covariance = share @ products - mean[:, rows] * mean[:, columns]
        variance = np.maximum(share @ magnitudes**2 - mean**2, 0.0)
        below = variance[:, rows] * variance[:, columns]
        square = np.divide(covariance**2, below, out=np.zeros_like(below), where=below > 0)
        # a resample has fewer different replicates than draws
        different = 1 / np.sum(share**2, axis=1, keepdims=True)
        adjusted = 1 - (1 - square) * (different - 1) / np.maximum(different - 2, 1)
        trace = heads + 2 * adjusted.sum(axis=1)
        return np.asarray(heads**2 / np.clip(trace, heads, heads**2))

    return _with_interval(estimate, len(magnitudes), seed)


def amplification(products: Array, seed: int) -> Estimate:
    """``E|sum_h O_h e_h|^2 / sum_h E|O_h e_h|^2``, with its interval."""
    whole = products.sum(axis=(1, 2))
    own = np.trace(products, axis1=1, axis2=2)

    def estimate(copies: Array) -> Array:
        below = copies @ own
        return np.asarray(
            np.divide(copies @ whole, below, out=np.ones(len(copies)), where=below > 0)
        )

    return _with_interval(estimate, len(products), seed)


def _with_interval(estimate: Callable[[Array], Array], replicates: int, seed: int) -> Estimate:
    value = float(estimate(np.ones((1, replicates)))[0])
    if replicates < FEWEST:
        return Estimate(value=value, interval=(None, None))
    rng = random_stream(seed, "many heads")
    copies = resampling_counts(replicates, RESAMPLES, rng)
    copies = copies[np.count_nonzero(copies, axis=1) >= 3]  # fewer say nothing about variation
    low, high = np.quantile(estimate(copies.astype(np.float64)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, interval=(float(min(low, value)), float(max(high, value))))
