"""From passages of a model, or replicates of a Gaussian stack, to layers, growth, rates and limits.

**Models.** Keys are drawn without replacement, so that errors vanish at n = E. Exponents are fitted
to errors divided by the finite-population factor ``sqrt((E - n)/(E - 1))``, and to divergences
(which are quadratic in the error) divided by its square; the errors themselves are reported as they
are. Draws of one passage share its text, and are not independent. So every interval is over
passages, the draws of a passage averaged first. With one passage means have no interval, and those
of growth factors and exponents are over its draws: they cover the chance of the sample, not that of
the text.

**Gaussian stacks.** The limit is measured, against the exact recursion. Moments of n tokens are
biased by b/n plus higher orders. Two sizes cancel the first: in every replicate ``(n2 m2 - n1
m1)/(n2 - n1)``. Over replicates these have a mean and a standard error, and each number is compared
with the recursion in units of the latter.

A bias of b/n takes ``H^2 < 1/2``, where the mean squared error of the map falls like 1/n, and sizes
past the burn-in ``e^{F^2 + tau^2}``. Otherwise the samples may be far from their limit whatever it
is: then no verdict is given. Nor is one when layers have amplified the error of a token to the size
of the token itself: the noise would then agree with any recursion. For the same reason the measured
limit agrees only if the intervals of ALL entries (together at 95%) end within a tenth of a variance
of the recursion: with fewer replicates they end beyond it, and the verdict is undecided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
import xarray as xr

from esscher.core.validation import Array
from esscher.core.variables import joined
from esscher.math.limits import AttentionLayer, StackLimit
from esscher.math.statistics import LEVEL, Rate, fit_rate, resample
from esscher.math.statistics.intervals import mean_bounds
from esscher.runs.result import NotFinished
from esscher.runs.study import Setup
from esscher.studies.deep.sampling import split_terciles
from esscher.studies.deep.stack import RESOLUTION, moment_entries, random_stack
from esscher.studies.deep.study import (
    TERCILES,
    DeepData,
    DeepSettings,
    DeepStackSettings,
    DepthData,
    PassageErrors,
    Replicate,
    StackData,
)

#: Smallest and largest value that a number of a model's end can have.
RANGES = {"kl": (0.0, np.inf), "top1": (0.0, 1.0), "cosine": (-1.0, 1.0)}
#: A measured limit agrees with the recursion if all of its entries are within this share of a
#: variance of it, beyond their intervals.
SAME = 0.1
#: Verdicts on it.
AGREES, DIFFERS, UNDECIDED = "agrees", "differs", "undecided"
#: Squared horizon from which on the map's mean squared error no longer falls like 1/n.
LARGEST_SQUARE = 0.5
#: Relative error of a token, at the smaller size, from which on there is no verdict.
LARGEST_ERROR = 0.3


def independent_errors(values: Array, draws: int) -> Array:
    """Errors of what is independent: passages, their draws averaged, or draws of a single passage.

    Draws of one passage share its text. Taken for replicates, they make intervals too narrow: where
    two thirds of the variance are the passage's, with 4 draws of 8 passages, 24% of the 95%
    intervals of a growth factor miss it, and 4% of those over passages
    (``tests/studies/deep/test_passages.py``).

    Parameters
    ----------
    values
        Axes [passage and draw, ...], draws of a passage side by side.
    draws
        Draws per passage.
    """
    passages = values.reshape(-1, draws, *values.shape[1:])
    return np.asarray(passages.mean(axis=1) if len(passages) > 1 else passages[0])


def growth_factors(errors: Array, seed: int) -> tuple[Array, Array]:
    """Growth of the mean error from layer to layer, with intervals from resampled replicates.

    Parameters
    ----------
    errors
        Axes [replicate, layer], positive.
    seed
        Seed of the resampling.

    Returns
    -------
    Array, Array
        A factor per layer, [layer, bound], and their geometric mean, [bound]; NaN for the first
        layer, and for the mean over a single one.
    """
    layers = errors.shape[1]
    factors = np.full((layers + 1, 3), np.nan)
    if layers > 1:
        # the logarithms of the mean errors take the place that sizes have in a rate
        resamples = resample(errors, np.arange(1.0, layers + 1), seed)
        steps = np.diff(np.eye(layers), axis=0)
        overall = (np.eye(layers)[-1] - np.eye(layers)[0]) / (layers - 1)
        ends = resamples.intervals(np.vstack([steps, overall]), LEVEL)
        with np.errstate(over="ignore"):  # an end beyond all numbers is no end
            factors[1:] = np.exp(np.stack(ends, axis=-1))
    factors[np.isinf(factors)] = np.nan
    return factors[:-1], factors[-1]


def fitted(errors: Array, sizes: Sequence[int], seed: int, **options: Any) -> Rate | None:
    """The rate of errors with axes [replicate, size]; None where there is none to be seen."""
    if len(sizes) < 2 or np.sum(np.mean(errors > 0, axis=0) > 0.5) < 2:
        return None
    return fit_rate(errors, np.asarray(sizes, dtype=np.float64), seed=seed, **options)


def set_layers(
    data: DepthData,
    errors: Array,
    factors: Array | float,
    sizes: Sequence[int],
    seed: int,
    options: Sequence[Mapping[str, Any]],
) -> None:
    """Set the errors of all replicates, how they grow from layer to layer, and fall with n.

    Parameters
    ----------
    data
        What to fill in.
    errors
        Axes [curve, replicate, layer, size].
    factors
        What errors are divided by before they are fitted.
    sizes, seed
        Sizes, and seed of the resampling.
    options
        Of the fits, by layer.
    """
    data.replicate_error = errors
    growth = [
        [growth_factors(curve[:, :, j], seed) for j in range(errors.shape[-1])] for curve in errors
    ]
    steps = np.array([[layers for layers, _ in curve] for curve in growth])
    data.growth = steps.swapaxes(1, 2)
    data.growth_per_layer = [[overall for _, overall in curve] for curve in growth]
    data.fit.put(
        [
            [fitted(curve[:, i], sizes, seed, **given) for i, given in enumerate(options)]
            for curve in errors / factors
        ]
    )


# -- models


def combine_passages(setup: Setup[DeepSettings], cells: Mapping[str, xr.Dataset]) -> DeepData:
    """Return layers, growth, end and terciles, of the passages that are measured in full.

    Raises
    ------
    NotFinished
        If there is none.
    """
    settings, seed, causal = setup.settings, setup.settings.seed, setup.model.causal
    passages = [cells[name] for name in settings.cells if name in cells]
    if not passages:
        raise NotFinished("no passage is measured")
    whole = joined(passages, "passage")
    measured, ways, sampled = PassageErrors(whole), list(settings.ways), whole["sampled"].values
    numbers, draws = whole["passage"].values, settings.draws
    labels = {"head": range(setup.model.heads)} if settings.terciles != "none" else {}
    data = DeepData.new(
        **labels,
        curve=ways,
        sampled=sampled,
        passage=numbers,
        replicate=numbers if len(numbers) > 1 else range(draws),
        layer=whole["layer"].values,
        size=settings.sizes,
    )
    data.eligible = measured.eligible
    # (E - n)/(E - 1) by passage and size; a single passage has that of all of its draws
    keys, n = measured.eligible.values[:, None].astype(float), np.array(settings.sizes, float)
    factors = (keys - n) / (keys - 1)

    def independent(values: Array) -> Array:
        return independent_errors(values.reshape(-1, *values.shape[2:]), draws)

    by_draw = measured.error.sel(sampled=ways).values
    errors = np.array([independent(way) for way in by_draw])
    layers: list[dict[str, Any]] = [{}] * errors.shape[2]
    set_layers(data, errors, np.sqrt(factors)[:, None], settings.sizes, seed, layers)
    data.error = [mean_bounds(way.mean(axis=1), lowest=0.0) for way in by_draw]
    # the draws of a passage averaged, [sampled, passage, size]
    end = {name: whole[name].values.mean(axis=2) for name in (*RANGES, "nll") if name in whole}
    for name, (lowest, highest) in RANGES.items():
        if name in end:
            setattr(data, name, [mean_bounds(s, lowest, highest) for s in end[name]])
    if causal:
        dense = measured.dense_nll.values[:, None]
        data.dense_perplexity = np.exp(mean_bounds(dense))[0]
        data.perplexity = [np.exp(mean_bounds(s)) for s in end["nll"]]
        data.ratio = [np.exp(mean_bounds(s - dense)) for s in end["nll"]]
    damage = np.array([independent(s) for s in whole["kl" if causal else "cosine"].values])
    data.replicate_damage = damage if causal else np.maximum(1.0 - damage, 0.0)
    data.damage.put(
        [fitted(s / factors, settings.sizes, seed) for s in data.replicate_damage.values]
    )
    if settings.terciles != "none":
        data.horizon = cells["horizons"]["horizon"]
        data.tercile = split_terciles(data.horizon.values, settings.terciles)
        costs = end["kl"] if causal else 1.0 - end["cosine"]
        low, high = (costs[list(sampled).index(name)] for name in (TERCILES[0], TERCILES[-1]))
        if np.all(low > 0) and np.all(high > 0):
            data.high_over_low = np.exp(mean_bounds(np.log(high) - np.log(low)))
    return data


# -- Gaussian stacks


def combine_replicates(settings: DeepStackSettings, cells: Sequence[xr.Dataset]) -> StackData:
    """Return layers, growth and the measured limit."""
    replicates = Replicate(joined(cells, "replicate"))
    sizes, seed = settings.sizes, settings.seed
    data = StackData(replicates.dataset.drop_vars(["error", "limit"]))
    errors = replicates.error.values
    stack, exact = random_stack(settings)
    data.error = [mean_bounds(curve, lowest=0.0) for curve in errors]
    heads = [layer.head for layer in stack]
    burn_in = np.exp(np.maximum.accumulate([h.frobenius**2 + h.tau @ h.tau for h in heads]))
    layers = [{"resolution": RESOLUTION, "burn_in": float(tokens)} for tokens in burn_in]
    set_layers(data, errors, 1.0, sizes, seed, layers)
    data.horizon = exact.horizons
    means = errors[data.dataset["curve"].values.tolist().index("map"), :, :, -2].mean(axis=0)
    doubt = doubts(stack, sizes[-2], means.tolist())
    compare_with_recursion(data, replicates.limit.values, exact, doubt)
    return data


def doubts(stack: Sequence[AttentionLayer], size: int, errors: Sequence[float]) -> list[str | None]:
    """Why samples of a size cannot be extrapolated, by layer; None where they can.

    A layer inherits the doubts about those before it.

    Parameters
    ----------
    stack
        The layers, their heads over the laws that reach them.
    size
        The smaller of the two sizes.
    errors
        Relative error of a token at that size, after every layer.
    """
    out: list[str | None] = []
    doubt: str | None = None
    for i, layer in enumerate(stack):
        head, error = layer.head, errors[i]
        log_burn_in = head.frobenius**2 + float(head.tau @ head.tau)
        if doubt is None and head.horizon**2 >= LARGEST_SQUARE:
            doubt = (
                f"layer {i} has H = {head.horizon:.3g}, and from H^2 = {LARGEST_SQUARE} on the "
                "bias does not fall like 1/n"
            )
        elif doubt is None and np.log(size) < log_burn_in:
            doubt = f"n = {size} is below the burn-in of layer {i}, e^{log_burn_in:.3g} tokens"
        elif doubt is None and error > LARGEST_ERROR:
            doubt = (
                f"at n = {size} a token is off by {100 * error:.3g}% after layer {i}; from "
                f"{100 * LARGEST_ERROR:g}% on the noise would agree with anything"
            )
        out.append(doubt)
    return out


def compare_with_recursion(
    data: StackData, limits: Array, recursion: StackLimit, doubt: Sequence[str | None]
) -> None:
    """Compare the measured limit of every layer with the recursion.

    Parameters
    ----------
    data
        What to fill in.
    limits
        Axes [replicate, layer, entry], extrapolated; entries as ``moment_entries`` has them.
    recursion
        The exact recursion.
    doubt
        By layer, why there is no verdict; see :func:`doubts`.
    """
    count, depth, entries = limits.shape
    exact = np.array(
        [
            moment_entries(mean, covariance)
            for mean, covariance in zip(recursion.means[1:], recursion.covariances[1:], strict=True)
        ]
    )
    mean, noise = limits.mean(axis=0), np.full((depth, entries), np.nan)
    bound = np.nan
    if count > 1:
        noise = limits.std(axis=0, ddof=1) / np.sqrt(count)
        bound = float(scipy.stats.t.ppf(1 - (1 - LEVEL) / (2 * entries), count - 1))
    traces = np.trace(recursion.covariances[1:], axis1=1, axis2=2)
    variance = traces / recursion.means.shape[1]
    off = np.abs((limits - exact).mean(axis=0))
    scores = (mean - exact) / noise
    data.measured, data.exact, data.standard_error = mean, exact, noise
    data.largest = np.abs(scores).max(axis=1)
    data.largest_bound = np.full(depth, bound)
    data.rms = np.sqrt(np.mean(scores**2, axis=1))
    data.resolution = np.median(noise, axis=1) / variance
    verdicts, reasons = [], []
    for i, reason in enumerate(doubt):
        differs = bool(np.any(off[i] > bound * noise[i]))
        reach = float(np.max(off[i] + bound * noise[i])) / variance[i]
        if count == 1:
            reason = reason or "one replicate has no standard error"
        elif reason is None and not differs and reach > SAME:
            # if the recursion is right, deviations are noise, and fall with standard errors
            needed = int(np.ceil(count * (reach / SAME) ** 2))
            reason = (
                f"the intervals of its {entries} entries reach {100 * reach:.3g}% of a "
                f"variance from it, and {100 * SAME:g}% is the margin; about {needed:,} "
                f"replicates instead of {count} would do, if it is right"
            )
        verdicts.append(UNDECIDED if reason else DIFFERS if differs else AGREES)
        reasons.append(reason or "")
    data.agreement, data.doubt = verdicts, reasons
