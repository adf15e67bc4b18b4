"""From cells to the result: passages as one, fitted rates, what heads have in common, flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
import xarray as xr
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import bounds, joined
from esscher.engine.sampled.layer import PRODUCTS
from esscher.math.statistics import LEVEL, fit_rate, resampling_counts
from esscher.math.statistics.intervals import family_wise
from esscher.math.theory.cloud import EFFORT
from esscher.runs.study import Setup
from esscher.studies.probe.study import OnePass, ProbeData, ProbeSettings, Samples

#: Standard errors to each side of a 95% interval.
NORMAL = 1.96
#: Names of the errors in flags.
WORDS = {"mean": "mean", "cov": "covariance", "map": "map"}
#: Errors whose predicted exponents are flagged. That of the covariance was not worth it: it was
#: raised at 10 of 75 heads that were measured to be slow.
PREDICTED = ("mean", "map")
#: All flags, in the order in which a head has them.
FLAGS = (
    *("slow mean", "slow mean (predicted)", "prediction off (mean)"),
    *("slow covariance", "prediction off (covariance)"),
    *("slow map", "slow map (predicted)", "prediction off (map)"),
    *("not Gaussian", "reference", "fit"),
)
#: Level of the flags.
ALPHA = 0.05
#: Predicted exponents below this are slow: 1/2 less twice the error of predicted exponents.
PREDICTED_SLOW = 0.48
#: Share of reference error in the smallest measured error from which it is worth a flag.
REFERENCE = 0.2


def combine(setup: Setup[ProbeSettings], cells: Sequence[xr.Dataset]) -> ProbeData:
    """Fit every head and layer."""
    settings = setup.settings
    whole = joined(cells, "layer" if settings.mode == "pooled" else "passage")
    samples = Samples(whole)
    errors, layer_errors, products = (
        all_samples(array) for array in (samples.error, samples.layer_error, samples.product)
    )
    sizes = whole["size"].values.tolist()
    data = ProbeData.new(
        **{axis: whole[axis].values for axis in ("layer", "head", "metric", "size", "within")},
        **{axis: whole[axis].values for axis in ("entry", "rank")},
        other=whole["head"].values,
        errors=PRODUCTS,
        flag=FLAGS,
        replicate=range(errors.shape[-2]),
    )
    put_means(data.one_pass, samples.one_pass)
    data.replicate_error = errors
    fits = fitted(errors, sizes, settings.seed)
    put_fits(data, fits)
    data.side_by_side.put(fitted(layer_errors, sizes, settings.seed))
    put_together(data, products, settings)
    share = np.zeros(errors.shape[:3])
    if errors.shape[-2]:
        smallest = errors[..., -1].mean(axis=-1)
        noise = samples.reference_error.mean("passage").values
        np.divide(noise, smallest, out=share, where=(smallest > 0) & ~np.isnan(noise))
    data.reference_share = share.max(axis=-1)
    data.flagged = raised(data)
    return data


def all_samples(array: xr.DataArray) -> Array:
    """Return the samples of all passages side by side, the replicates of the first one first."""
    axes = [axis for axis in array.dims if axis not in ("passage", "replicate", "size", "pair")]
    last = ["size", "pair"] if "pair" in array.dims else ["size"]
    values = array.transpose(*axes, "passage", "replicate", *last).values
    count = len(axes)
    merged = (*values.shape[:count], -1, *values.shape[count + 2 :])
    if not values.size:  # nothing was sampled
        merged = (*values.shape[:count], 0, *values.shape[count + 2 :])
    return np.ascontiguousarray(values.reshape(merged))


def put_means(mean: OnePass, passages: OnePass) -> None:
    """Set means over the passages; of words, those of the first one.

    A number that is missing somewhere is missing. Predictions from different passages are
    independent: their mean has a smaller standard error.
    """
    dataset = passages.dataset
    for variable in mean.declared():
        array = dataset[variable.name].transpose(*variable.axes, "passage")
        if variable.kind == "U":
            values = array.isel(passage=0).values
        else:  # passages last: sums are then in the order in which those of a list are
            values = np.ascontiguousarray(array.values).mean(axis=-1)
        mean.dataset[variable.name] = variable.axes, values
    factor = dataset.sizes["passage"] ** -0.5
    mean.predicted_standard_error = factor * mean.predicted_standard_error
    mean.curve_exponent_error = factor * mean.curve_exponent_error
    unknown = mean.sink_received.isnull()
    mean.sink_token = mean.sink_token.where(~unknown, "").astype(str)


def fitted(errors: Array, sizes: Sequence[int], seed: int) -> NDArray[Any]:
    """Return rates of errors [..., replicate, size] as objects; None if nothing was sampled."""
    rates = np.empty(errors.shape[:-2], dtype=object)
    if errors.shape[-2]:
        n = np.asarray(sizes, dtype=np.float64)
        for place in np.ndindex(rates.shape):
            rates[place] = fit_rate(errors[place], n, seed=seed)
    return rates


def put_fits(data: ProbeData, rates: NDArray[Any]) -> None:
    """Set the measured rates of the heads, and the predicted exponents to compare them with."""
    sizes = data.dataset["size"].values
    predicted = data.one_pass.predicted_error.values
    exponents = data.one_pass.curve_exponent.values.copy()
    errors = np.full((*rates.shape, len(sizes), 3), np.nan)
    noise = np.full(rates.shape, np.nan)
    for place, rate in np.ndenumerate(rates):
        if rate is None:
            continue
        there = np.isin(sizes, rate.sizes)
        errors[place][there] = np.array([rate.mean, rate.lower, rate.upper], dtype=float).T
        noise[place] = np.nan if rate.standard_error is None else rate.standard_error
        # curves bend: the exponent of the predicted one takes the weights of the fit
        curve = predicted[place][there]
        if np.all(curve > 0):
            exponents[place] = rate.slope_of(curve)
    data.error, data.standard_error = errors, noise
    data.fit.put(rates)
    reach = NORMAL * data.one_pass.curve_exponent_error.values
    data.predicted_exponent = np.stack([exponents, exponents - reach, exponents + reach], axis=-1)


def put_together(data: ProbeData, products: Array, settings: ProbeSettings) -> None:
    """Set what the heads of each layer have in common, if there are several of them.

    Parameters
    ----------
    data
        What to fill in.
    products
        Axes [layer, error, replicate, size, pair].
    settings
        Of the study.
    """
    heads, sizes = data.dataset.sizes["head"], data.dataset["size"].values.tolist()
    names = ("correlation", "effective_heads", "amplification")
    data.fill(*names, *(v.name for v in data.projected.declared()))
    replicates = products.shape[2]
    if heads < 2 or replicates < FEWEST:
        return
    correlation, effective, whole = (getattr(data, name).values for name in names)
    projected = np.empty((len(products), len(PRODUCTS)), dtype=object)
    rows, columns = np.triu_indices(heads)
    for i, layer in enumerate(products):
        for k, pairs in enumerate(layer):
            both = np.empty((*pairs.shape[:-1], heads, heads))
            both[..., rows, columns] = both[..., columns, rows] = pairs
            correlation[i, k] = error_correlation(both[:, -1])
            for j in range(len(sizes)):
                effective[i, k, j] = effective_heads(both[:, j], settings.seed)
                whole[i, k, j] = amplification(both[:, j], settings.seed)
            # rounding can make the norm of a vanishing sum negative
            total = np.sqrt(np.maximum(both.sum(axis=(2, 3)), 0.0))
            projected[i, k] = fitted(total[None], sizes, settings.seed)[0]
    data.correlation, data.effective_heads, data.amplification = correlation, effective, whole
    data.projected.put(projected)


# Many heads: how much their errors have in common, and what their sum makes of it.
#
# Heads of a layer see the same tokens. With ``G_hg = <O_h e_h, O_g e_g>`` the inner products of
# their errors behind the output projection, one matrix per replicate,
#
#     R_hg = E G_hg / sqrt(E G_hh E G_gg)            correlation of errors
#     effective heads = (tr R)^2 / tr(R^2)           H for independent heads, 1 for identical ones
#     amplification = E|sum_h O_h e_h|^2 / sum_h E|O_h e_h|^2 = sum_hg E G_hg / sum_h E G_hh
#
# A correlation that is estimated from m replicates has a square that is too large by about 1/m, and
# a layer has many pairs. The squares ``(E G_hg)^2`` and the products ``E G_hh E G_gg`` are
# therefore estimated from pairs of DIFFERENT replicates, which takes that part out. Intervals
# resample replicates; copies of a replicate in a resample are no different ones.

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


def effective_heads(products: Array, seed: int) -> list[float]:
    """Effective number of independent heads, with its interval, from products [replicate, H, H]."""
    heads = products.shape[1]
    rows, columns = np.triu_indices(heads, 1)
    cross = products[:, rows, columns]
    squares = np.diagonal(products, axis1=1, axis2=2)
    pairs = squares[:, rows] * squares[:, columns]

    def statistic(copies: Array) -> Array:
        # sums over pairs of different replicates: all pairs less those of a replicate with itself
        above = (copies @ cross) ** 2 - copies**2 @ cross**2
        sums = copies @ squares
        below = sums[:, rows] * sums[:, columns] - copies**2 @ pairs
        # nothing is left of a resample that has one replicate only, nor of heads without errors
        some = below > 1e-9 * sums[:, rows] * sums[:, columns]
        ratio = np.divide(above, below, out=np.zeros_like(below), where=some)
        trace = heads + 2 * ratio.sum(axis=1)
        return np.asarray(heads**2 / np.clip(trace, heads, heads**2))

    return _with_interval(statistic, len(products), seed)


def amplification(products: Array, seed: int) -> list[float]:
    """``E|sum_h O_h e_h|^2 / sum_h E|O_h e_h|^2``, with its interval."""
    whole = products.sum(axis=(1, 2))
    parts = np.trace(products, axis1=1, axis2=2)

    def statistic(copies: Array) -> Array:
        below = copies @ parts
        ratio = np.divide(copies @ whole, below, out=np.ones(len(copies)), where=below > 0)
        return np.asarray(ratio)

    return _with_interval(statistic, len(products), seed)


def _with_interval(statistic: Callable[[Array], Array], replicates: int, seed: int) -> list[float]:
    """A function of how often each replicate counts, with its interval by resampling."""
    value = float(statistic(np.ones((1, replicates)))[0])
    if replicates < FEWEST:
        return bounds(value, None)
    rng = random_stream(seed, "many heads")
    copies = resampling_counts(replicates, RESAMPLES, rng)
    copies = copies[np.count_nonzero(copies, axis=1) >= 3]  # fewer say nothing about variation
    low, high = np.quantile(
        statistic(copies.astype(np.float64)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    )
    return [value, min(float(low), value), max(float(high), value)]


# Flags: what stands out at a head, for mean, covariance and map apart.
#
# A flag about an exponent is a statement about its interval, and there are as many statements as
# heads: p-values (Student's, so that few replicates decide little) are adjusted over all of them
# (Holm), so that with 95% probability not one flag of a kind is false. How often those that one
# pass gives are right has been measured (documentation, "Flags against measurements").


def raised(data: ProbeData) -> NDArray[np.bool_]:
    """Return which flags are raised, [layer, head, flag]."""
    flags = {name: np.zeros(data.reference_share.shape, dtype=bool) for name in FLAGS}
    one_pass, freedom = data.one_pass, data.dataset.sizes["replicate"] - 1.0
    trusted = data.fit.trusted.sel(metric="mean")
    for metric, word in WORDS.items():
        exponent, noise, predicted, sharp, alone, error = (
            array.sel(metric=metric).values
            for array in (
                data.fit.exponent.sel(bound="value"),
                data.standard_error,
                data.predicted_exponent.sel(bound="value"),
                one_pass.sharp,
                one_pass.curve_exponent,
                one_pass.curve_exponent_error,
            )
        )
        flags[f"slow {word}"] = significant(exponent - 0.5, noise, freedom, below=True)
        if metric in PREDICTED:
            slow = significant(alone - PREDICTED_SLOW, error, EFFORT.groups - 1.0, below=True)
            flags[f"slow {word} (predicted)"] = slow
        fewest = min(freedom, EFFORT.groups - 1.0)
        off = significant(exponent - predicted, np.hypot(noise, error), fewest)
        flags[f"prediction off ({word})"] = off
        if metric == "mean":
            flags["not Gaussian"] = significant(exponent - sharp, noise, freedom)
            flags["fit"] = np.isfinite(exponent) & ~trusted.values
    flags["reference"] = data.reference_share.values > REFERENCE
    return np.stack([flags[name] for name in FLAGS], axis=-1)


def significant(
    values: Array, noise: Array, freedom: float, *, below: bool = False
) -> NDArray[np.bool_]:
    """Tell which numbers are not 0, or are below it.

    All of them are tested together (Holm); NaN is not significant.
    """
    t = values / (np.where(noise > 0, noise, 1e-12) + 0 * noise)  # NaN stays
    p = scipy.special.stdtr(freedom, t if below else -np.abs(t)) * (1 if below else 2)
    return np.asarray(family_wise(p.ravel()) <= ALPHA).reshape(values.shape)
