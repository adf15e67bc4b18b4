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
from msgspec.structs import replace

from esscher.core.codec import Estimate
from esscher.core.errors import InputError
from esscher.core.shown import between, rates_said, two_digits
from esscher.core.validation import Array
from esscher.math.limits import GaussianStack, StackLimit
from esscher.math.statistics import LEVEL, Rate, fit_rate, resample
from esscher.math.statistics.intervals import Means, exponentials, mean_and_interval
from esscher.math.statistics.records import (
    class_counts,
    finite,
    rate_words,
)
from esscher.math.theory import exponents
from esscher.runs.folder import Cell, CellRun
from esscher.studies.deep.result import (
    STACK_CURVES,
    TERCILES,
    Deep,
    DeepCell,
    DeepLayer,
    LayerLimit,
    TercileHeads,
    Terciles,
)
from esscher.studies.deep.sampling import split_terciles
from esscher.studies.deep.stack import RESOLUTION, moment_entries
from esscher.studies.deep.study import DeepStackStudy, DeepStudy

NOTHING = "Nothing has been measured yet."
#: Smallest and largest value that a number of a model's end can have.
RANGES = {"kl": (0.0, np.inf), "top1": (0.0, 1.0), "cosine": (-1.0, 1.0)}
#: A measured limit agrees with the recursion if all of its entries are within this share of a
#: variance of it, beyond their intervals.
SAME = 0.1
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


def growth_factors(errors: Array, seed: int) -> tuple[list[Estimate | None], Estimate | None]:
    """Growth of the mean error from layer to layer, with intervals from resampled replicates.

    Parameters
    ----------
    errors
        Axes [replicate, layer], positive.
    seed
        Seed of the resampling.

    Returns
    -------
    list, Estimate
        One factor per layer, None for the first; their geometric mean, None of a single layer.
    """
    layers = errors.shape[1]
    if layers < 2:
        return [None], None
    # the logarithms of the mean errors take the place that sizes have in a rate
    resamples = resample(errors, np.arange(1.0, layers + 1), "mean", seed)
    steps = np.diff(np.eye(layers), axis=0)
    overall = (np.eye(layers)[-1] - np.eye(layers)[0]) / (layers - 1)
    ends = resamples.intervals(np.vstack([steps, overall]), LEVEL)
    with np.errstate(over="ignore"):  # an end beyond all numbers is no end: None
        value, low, high = (np.exp(part) for part in ends)
    factors = [
        Estimate(value=float(value[i]), interval=(finite(low[i]), finite(high[i])))
        for i in range(layers)
    ]
    return [None, *factors[:-1]], factors[-1]


def fitted(
    errors: Array, sizes: Sequence[int], seed: int, sharp: float | None = None, **options: Any
) -> Rate | None:
    """The rate of errors with axes [replicate, size]; None where there is none to be seen."""
    if len(sizes) < 2 or np.sum(np.mean(errors > 0, axis=0) > 0.5) < 2:
        return None
    rate = fit_rate(errors, np.asarray(sizes, dtype=np.float64), seed=seed, **options)
    return replace(rate, sharp=sharp)


def growth_by_size(
    errors: Mapping[str, Array], seed: int
) -> tuple[dict[str, list[list[Estimate | None]]], dict[str, tuple[Estimate | None, ...]]]:
    """Growth of errors [replicate, layer, size], by curve: of every layer, [layer][size]; overall.

    Parameters
    ----------
    errors
        By curve.
    seed
        Seed of the resampling.
    """
    layers, overall = {}, {}
    for curve, values in errors.items():
        sizes = [growth_factors(values[:, :, j], seed) for j in range(values.shape[2])]
        layers[curve] = [[steps[i] for steps, _ in sizes] for i in range(values.shape[1])]
        overall[curve] = tuple(whole for _, whole in sizes)
    return layers, overall


# -- models


def assemble_model(study: DeepStudy, cells: Mapping[str, Cell], run: CellRun) -> Deep:
    """Return layers, overall growth, end and terciles; some passages may be missing."""
    passages = {name: cell for name, cell in cells.items() if name != "horizons"}
    known, values = read_passages(passages, study, run)
    n = np.asarray(study.sizes, dtype=np.float64)[None, :]
    # (E - n)/(E - 1) by passage (or draw of a single one) and size
    factors = {}
    for variant, rows in known.items():
        total = np.array([count for _, count, _ in rows], dtype=np.float64)[:, None]
        factors[variant] = (total - n) / (total - 1)

    def independent(variant: str, quantity: str) -> Array:
        """Axes [replicate, layer, size]: passages, or the draws of a single one."""
        numbers = values[variant][quantity]
        return independent_errors(numbers.reshape(-1, *numbers.shape[2:]), study.draws)

    ways = [way for way in study.ways if way in known]
    residual = {way: independent(way, "residual") for way in ways}
    growth, overall = growth_by_size(residual, study.seed)
    layers = tuple(
        DeepLayer(
            layer=i,
            error={
                way: mean_and_interval(values[way]["residual"].mean(axis=1)[:, i], lowest=0.0)
                for way in ways
            },
            growth={way: tuple(growth[way][i]) for way in ways},
            fit={
                way: fitted(residual[way][:, i] / np.sqrt(factors[way]), study.sizes, study.seed)
                for way in ways
            },
        )
        for i in range(study.model_record.layers if ways else 0)
    )

    end: dict[str, dict[str, Means]] = {}
    damage: dict[str, Rate | None] = {}
    # KL divergence or 1 - cosine, by passage and size
    costs: dict[str, Array] = {}
    main = "kl" if study.model_record.causal else "cosine"
    for variant, rows in known.items():
        of_passages = {name: part.mean(axis=1)[:, 0] for name, part in values[variant].items()}
        for name, (lowest, highest) in RANGES.items():
            if name in of_passages:
                end.setdefault(name, {})[variant] = mean_and_interval(
                    of_passages[name], lowest, highest
                )
        if main == "kl":
            surprise = of_passages["nll"]
            dense = np.array([nll for *_, nll in rows])[:, None]
            perplexity = end.setdefault("perplexity", {})
            if not perplexity:
                perplexity["dense"] = exponentials(dense)
            perplexity[variant] = exponentials(surprise)
            end.setdefault("ratio", {})[variant] = exponentials(surprise - dense)
            costs[variant], cost = of_passages["kl"], independent(variant, "kl")[:, 0]
        else:
            costs[variant] = 1.0 - of_passages["cosine"]
            cost = np.maximum(1.0 - independent(variant, "cosine")[:, 0], 0.0)
        damage[variant] = fitted(cost / factors[variant], study.sizes, study.seed)

    terciles = None
    if "horizons" in cells:
        horizons = cells["horizons"].about.horizons
        shape = (study.model_record.layers, study.model_record.heads)
        if horizons is None or (len(horizons), *{len(row) for row in horizons}) != shape:
            raise run.damaged("horizons", "it lacks the horizon of some heads of the model")
        terciles = _terciles(study, horizons, costs)
    eligible = {number: count for rows in known.values() for number, count, _ in rows}
    counts = [eligible[number] for number in sorted(eligible)]
    headline = NOTHING
    if layers:
        headline = model_headline(
            study.sizes, ways[0], counts, overall[ways[0]], layers, end, damage, terciles
        )
    return Deep.of(
        run,
        study,
        len(cells),
        headline,
        sizes=study.sizes,
        layers=layers,
        growth=overall,
        eligible=tuple(counts),
        end=end,
        damage=damage,
        terciles=terciles,
    )


def read_passages(
    cells: Mapping[str, Cell], study: DeepStudy, run: CellRun
) -> tuple[dict[str, list[tuple[int, int, float]]], dict[str, dict[str, Array]]]:
    """Return what is known of passages, and their numbers, by what was sampled.

    Of every passage its number, its keys that can be drawn and the mean surprise of the dense
    model (0 for an encoder); numbers are [passage, draw, layer, size], by quantity.

    Raises
    ------
    InputError
        If a cell is damaged.
    """
    record, causal = study.model_record, study.model_record.causal
    quantities = ("residual", *(("kl", "top1", "nll") if causal else ("cosine",)))
    parts: dict[str, dict[int, tuple[int, float, dict[str, Array]]]] = {}
    for name, cell in cells.items():
        about: DeepCell = cell.about
        try:
            nll = about.dense_nll if causal else 0.0
            if about.number is None or about.eligible is None or nll is None:
                raise InputError("it lacks numbers of its passage")
            if str(about.number) != name.split("-")[1]:
                raise InputError(f"it is of passage {about.number}")
            if about.eligible <= study.sizes[-1]:
                raise InputError(f"eligible is {about.eligible}, but sizes go beyond")
            for variant in cell.table["variant"].unique():
                table = cell.table[cell.table["variant"] == variant]
                numbers = {}
                for quantity in quantities:
                    rows = table[table["quantity"] == quantity].sort_values(["draw", "layer", "n"])
                    shape = (study.draws, record.layers if quantity == "residual" else 1, -1)
                    array = rows["value"].to_numpy(dtype=np.float64).reshape(shape)
                    if array.shape[2] != len(study.sizes):
                        raise InputError(f"it lacks numbers of {variant!r}")
                    numbers[quantity] = array
                by_passage = parts.setdefault(str(variant), {})
                by_passage[about.number] = (about.eligible, nll, numbers)
        except (ValueError, LookupError, TypeError) as error:
            raise run.damaged(name, error) from error
    known, values = {}, {}
    for variant in [variant for variant in study.variants if variant in parts]:
        passages = sorted(parts[variant].items())
        known[variant] = [(number, count, nll) for number, (count, nll, _) in passages]
        values[variant] = {
            quantity: np.stack([numbers[quantity] for _, (_, _, numbers) in passages])
            for quantity in quantities
        }
    return known, values


def _terciles(
    study: DeepStudy, rows: tuple[tuple[float, ...], ...], costs: Mapping[str, Array]
) -> Terciles:
    """What the terciles are, and how much more damage the highest does than the lowest."""
    assert study.terciles != "none"  # there would be no cell of horizons
    horizons = np.array(rows)
    heads = {}
    for name, by_layer in split_terciles(horizons, study.terciles).items():
        third = np.array([horizons[layer, head] for layer in by_layer for head in by_layer[layer]])
        heads[name] = TercileHeads(
            heads=len(third),
            horizon_min=float(third.min()) if len(third) else None,
            horizon_median=float(np.median(third)) if len(third) else None,
            horizon_max=float(third.max()) if len(third) else None,
        )
    ratio = None
    if all(name in costs for name in TERCILES):
        low, high = costs["low"], costs["high"]
        if np.all(low > 0) and np.all(high > 0):
            ratio = exponentials(np.log(high) - np.log(low))
    return Terciles(
        scope=study.terciles,
        keys=study.ways[0],
        heads=heads,
        horizons=rows,
        high_over_low=ratio,
    )


def model_headline(
    sizes: Sequence[int],
    way: str,
    eligible: Sequence[int],
    growth: Sequence[Estimate | None],
    layers: Sequence[DeepLayer],
    end: Mapping[str, Mapping[str, Means]],
    damage: Mapping[str, Rate | None],
    terciles: Terciles | None,
) -> str:
    """Say what the middle size costs a model, and how fast the damage falls.

    Parameters
    ----------
    sizes, eligible, layers, end, damage, terciles
        As the result has them.
    way
        How the keys are drawn.
    growth
        Of that way, by size.
    """
    middle = len(sizes) // 2

    def at(quantity: str, factor: float = 1.0) -> str:
        curve = end[quantity][way]
        ends = curve.interval[middle]
        scaled = None if ends is None else (factor * ends[0], factor * ends[1])
        return between(factor * curve.mean[middle], scaled)

    keys = round(sum(eligible) / len(eligible))
    text = f"With {sizes[middle]} of {keys} keys drawn in every layer ({way}), "
    if "kl" in end:
        text += (
            f"the next-token distribution is {at('kl')} nats from dense (KL), "
            f"the most likely token is the same in {at('top1', 100)}%, and "
            f"perplexity is {at('ratio')} times that of dense."
        )
    else:
        cosine = end["cosine"][way]
        shown = between(cosine.mean[middle], cosine.interval[middle], "d3")
        text += f"the embedding's cosine to dense is {shown}."
    sentences = [text]
    factor = growth[middle]
    if factor is not None and factor.value is not None:
        low, high = factor.interval
        shown = between(factor.value, factor.interval)
        if low is None or high is None or low <= 1 <= high:
            sentences.append(
                "Whether the relative error of the tokens grows from layer to layer is undecided "
                f"(factor {shown} per layer)."
            )
        else:
            verb = "grows" if low > 1 else "shrinks"
            sentences.append(
                f"The relative error of the tokens {verb} by a factor {shown} per layer."
            )
    fits = [fit.interval for layer in layers if (fit := layer.fit[way]) is not None]
    if fits:
        sentences.append(f"The error falls {rates_said(class_counts(fits), 'layer')}.")
    fit = damage[way]
    if fit is not None:
        name, shown = "KL" if "kl" in end else "1 - cosine", between(fit.exponent, fit.interval)
        low, high = fit.interval
        if low is None or high is None or low <= 0 <= high:
            sentences.append(f"Whether {name} falls with n is undecided (exponent {shown}).")
        elif low > 0:
            sentences.append(f"{name} falls like n^-{shown}.")
        else:
            sentences.append(f"{name} rises with n (exponent {shown}).")
    ratio = None if terciles is None else terciles.high_over_low
    if ratio is not None:
        ends = ratio.interval[middle]
        told = ends is not None and (ends[0] > 1 or ends[1] < 1)
        sentences.append(
            f"Sampling only the {TERCILES[-1]}-horizon third of the heads does "
            f"{between(ratio.mean[middle], ends)} times the damage of "
            f"the {TERCILES[0]}-horizon third" + ("." if told else ", which may be chance.")
        )
    if len(eligible) == 1:
        sentences.append(
            "There is one passage: intervals cover the draws of its keys, not other texts."
        )
    return " ".join(sentences)


# -- Gaussian stacks


def assemble_stack(study: DeepStackStudy, cells: Mapping[str, Cell], run: CellRun) -> Deep:
    """Return layers, overall growth and the measured limit."""
    if not cells:
        return Deep.of(run, study, 0, NOTHING, sizes=study.sizes)
    errors, moments = read_replicates(cells, study, run)
    stack, exact = study.stack()
    pair = (study.sizes[-2], study.sizes[-1])
    doubt = doubts(stack, pair[0], errors["map"][:, :, -2].mean(axis=0).tolist())
    growth, overall = growth_by_size(errors, study.seed)
    asymptotic = exponents(study.horizon)
    sharp = {"map": asymptotic.map_rms, "mean": asymptotic.mean, "cov": asymptotic.cov}
    heads = [layer.heads[0] for layer in stack.layers]
    burn_in = np.exp(np.maximum.accumulate([h.frobenius**2 + h.tau @ h.tau for h in heads]))
    layers = tuple(
        DeepLayer(
            layer=i,
            horizon=float(exact.horizons[i][0]),
            error={
                curve: mean_and_interval(errors[curve][:, i], lowest=0.0) for curve in STACK_CURVES
            },
            growth={curve: tuple(growth[curve][i]) for curve in STACK_CURVES},
            fit={
                curve: fitted(
                    errors[curve][:, i],
                    study.sizes,
                    study.seed,
                    sharp=sharp[curve],
                    resolution=RESOLUTION,
                    burn_in=float(burn_in[i]),
                )
                for curve in STACK_CURVES
            },
        )
        for i in range(study.depth)
    )
    limit = compare_with_recursion(moments, pair, exact, doubt)
    return Deep.of(
        run,
        study,
        len(cells),
        _stack_headline(study.sizes, layers, overall["map"][-1], limit[-1]),
        sizes=study.sizes,
        layers=layers,
        growth=overall,
        limit=limit,
    )


def read_replicates(
    cells: Mapping[str, Cell], study: DeepStackStudy, run: CellRun
) -> tuple[dict[str, Array], Array]:
    """Errors by metric, [replicate, layer, size], and moments, [replicate, size, layer, entry]."""
    errors: dict[str, list[Array]] = {curve: [] for curve in STACK_CURVES}
    moments = []
    for name, cell in cells.items():

        def values(quantity: str, cell: Cell = cell) -> Array:
            rows = cell.table[cell.table["quantity"] == quantity]
            rows = rows.sort_values(["n", "layer", "entry"])
            return np.asarray(rows["value"].to_numpy(dtype=np.float64))

        try:
            for curve, replicates in errors.items():
                replicates.append(values(curve).reshape(len(study.sizes), study.depth).T)
            moments.append(values("moment").reshape(2, study.depth, -1))
            if moments[-1].shape != moments[0].shape or not moments[0].size:
                raise InputError("it does not have the moments of the other replicates")
        except (ValueError, LookupError, TypeError) as error:
            raise run.damaged(name, error) from error
    return {curve: np.stack(parts) for curve, parts in errors.items()}, np.stack(moments)


def doubts(stack: GaussianStack, size: int, errors: Sequence[float]) -> list[str | None]:
    """Why samples of a size cannot be extrapolated, by layer; None where they can.

    A layer inherits the doubts about those before it.

    Parameters
    ----------
    stack
        The stack, its heads over the laws that reach them.
    size
        The smaller of the two sizes.
    errors
        Relative error of a token at that size, after every layer.
    """
    out: list[str | None] = []
    doubt: str | None = None
    for i, layer in enumerate(stack.layers):
        for head in layer.heads:
            log_burn_in = head.frobenius**2 + float(head.tau @ head.tau)
            if doubt is None and head.horizon**2 >= LARGEST_SQUARE:
                doubt = (
                    f"layer {i} has H = {head.horizon:.3g}, and from H^2 = {LARGEST_SQUARE} on the "
                    "bias does not fall like 1/n"
                )
            elif doubt is None and np.log(size) < log_burn_in:
                doubt = f"n = {size} is below the burn-in of layer {i}, e^{log_burn_in:.3g} tokens"
        if doubt is None and errors[i] > LARGEST_ERROR:
            doubt = (
                f"at n = {size} a token is off by {100 * errors[i]:.3g}% after layer {i}; from "
                f"{100 * LARGEST_ERROR:g}% on the noise would agree with anything"
            )
        out.append(doubt)
    return out


def compare_with_recursion(
    moments: Array, sizes: tuple[int, int], limit: StackLimit, doubt: Sequence[str | None]
) -> tuple[LayerLimit, ...]:
    """Measured limit of every layer against the recursion.

    Parameters
    ----------
    moments
        Axes [replicate, size, layer, entry]: two sizes, entries as ``moment_entries`` has them.
    sizes
        The two sizes.
    limit
        The exact recursion.
    doubt
        By layer, why there is no verdict; see :func:`doubts`.
    """
    small, large = sizes
    # Richardson's extrapolation to infinite n
    measured = (large * moments[:, 1] - small * moments[:, 0]) / (large - small)
    count, _, entries = measured.shape
    out = []
    for i in range(limit.depth):
        exact = moment_entries(limit.means[i + 1], limit.covariances[i + 1])
        mean = measured[:, i].mean(axis=0)
        noise: dict[str, Any] = {"doubt": doubt[i]}
        if count > 1:
            error = measured[:, i].std(axis=0, ddof=1) / np.sqrt(count)
            scores = (mean - exact) / error
            bound = float(scipy.stats.t.ppf(1 - (1 - LEVEL) / (2 * entries), count - 1))
            variance = float(np.trace(limit.covariances[i + 1])) / limit.means.shape[1]
            off = np.abs((measured[:, i] - exact).mean(axis=0))
            reach = float(np.max(off + bound * error)) / variance
            agrees = None
            if np.any(off > bound * error):
                agrees = False
            elif reach <= SAME:
                agrees = True
            elif doubt[i] is None:
                # if the recursion is right, deviations are noise, and fall with standard errors
                needed = int(np.ceil(count * (reach / SAME) ** 2))
                noise["doubt"] = (
                    f"the intervals of its {entries} entries reach {100 * reach:.3g}% of a "
                    f"variance from it, and {100 * SAME:g}% is the margin; about {needed:,} "
                    f"replicates instead of {count} would do, if it is right"
                )
            noise |= {
                "standard_error": tuple(error.tolist()),
                "largest": float(np.abs(scores).max()),
                "rms": float(np.sqrt(np.mean(scores**2))),
                "resolution": float(np.median(error)) / variance,
                "bound": bound,
                "agrees": None if doubt[i] else agrees,
            }
        out.append(
            LayerLimit(
                layer=i,
                entries=entries,
                measured=tuple(mean.tolist()),
                exact=tuple(exact.tolist()),
                **noise,
            )
        )
    return tuple(out)


def _stack_headline(
    sizes: Sequence[int], layers: Sequence[DeepLayer], growth: Estimate | None, limit: LayerLimit
) -> str:
    """Say how errors grow in a Gaussian stack, and whether its limit is the recursion."""
    first, last = layers[0], layers[-1]
    errors = [layer.error["map"].mean[-1] for layer in (first, last)]
    text = (
        f"At n = {sizes[-1]:,} a token is {two_digits(100 * errors[0])}% off its limit after one "
        f"layer and {two_digits(100 * errors[1])}% after {len(layers)}"
    )
    if growth is not None and growth.value is not None:
        text += f", a factor {between(growth.value, growth.interval)} per layer"
    ends = [
        f"{between(fit.exponent, fit.interval)} ({rate_words(fit.interval)})"
        for fit in (first.fit["map"], last.fit["map"])
        if fit is not None
    ]
    if len(ends) == 2:
        text += f"; its exponent is {ends[0]} after the first layer and {ends[1]} after the last"
        counts = class_counts(fit.interval for layer in layers if (fit := layer.fit["map"]))
        text += f". The error falls {rates_said(counts, 'layer')}"
    if limit.agrees is None:
        doubt = limit.doubt or "one replicate has no standard error"
        return f"{text}. Whether the recursion gives the limit is undecided: {doubt}."
    within = f"agrees with the recursion within {100 * SAME:g}% of a variance"
    return (
        f"{text}. The measured limit of depth {len(layers)} "
        f"{within if limit.agrees else 'DIFFERS FROM the recursion'}: the largest of "
        f"{limit.entries} deviations is {limit.largest:.2f} standard errors (bound "
        f"{limit.bound:.2f}; a standard error is {100 * (limit.resolution or 0.0):.2g}% of a "
        "variance)."
    )
