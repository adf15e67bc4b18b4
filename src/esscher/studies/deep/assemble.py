"""The answer in a few sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy
from msgspec.structs import asdict, replace

from esscher.core.codec import Interval
from esscher.core.errors import InputError
from esscher.core.shown import between, cosine_between, counted, rates_said, two_digits
from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.limits import GaussianStack, StackLimit
from esscher.math.statistics import LEVEL, Rate, fit_rate, resample
from esscher.math.statistics.intervals import exponentials, mean_and_interval
from esscher.math.statistics.records import Ends, class_counts, finite, rate_class
from esscher.math.theory import exponents
from esscher.runs.folder import Cell, CellRun
from esscher.studies.deep.result import (
    TERCILES,
    Curve,
    Damage,
    Deep,
    DeepCell,
    DeepEnd,
    DeepLayer,
    Growth,
    LayerLimit,
    Means,
    Perplexity,
    Terciles,
)
from esscher.studies.deep.sampling import (
    COLUMNS,
    DECODER_END,
    ENCODER_END,
    LAYER_METRICS,
    describe_terciles,
    split_terciles,
)
from esscher.studies.deep.stack import METRICS, RESOLUTION, moment_entries
from esscher.studies.deep.study import DeepStackStudy, DeepStudy

NOTHING = "Nothing has been measured yet."
#: What an interval of one passage is worth.
ONE_PASSAGE = "There is one passage: intervals cover the draws of its keys, not other texts."
#: A measured limit agrees with the recursion if all of its entries are within this share of a
#: variance of it, beyond their intervals.
SAME = 0.1


def stack_headline(
    sizes: Sequence[int], layers: Sequence[DeepLayer], growth: Growth | None, limit: LayerLimit
) -> str:
    """Say how errors grow in a Gaussian stack, and whether its limit is the recursion.

    Parameters
    ----------
    sizes, layers
        As the result has them.
    growth
        Of the map, at the largest size.
    limit
        That of the last layer.
    """
    first, last = layers[0], layers[-1]
    errors = [layer.error["map"].mean[-1] for layer in (first, last)]
    text = (
        f"At n = {sizes[-1]:,} a token is {two_digits(100 * errors[0])}% off its limit after one "
        f"layer and {two_digits(100 * errors[1])}% after {len(layers)}"
    )
    if growth is not None:
        text += f", a factor {between(growth.factor, growth.interval)} per layer"
    one, other = first.fit["map"], last.fit["map"]
    if one is not None and other is not None:
        ends = [
            f"{between(fit.exponent, fit.interval)} ({half(fit.interval)})" for fit in (one, other)
        ]
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


def model_headline(
    sizes: Sequence[int],
    way: str,
    eligible: Sequence[int],
    growth: Sequence[Growth | None],
    fits: Sequence[Rate | None],
    end: DeepEnd,
    terciles: Terciles | None,
) -> str:
    """Say what the middle size costs a model, and how fast the damage falls.

    Parameters
    ----------
    sizes, eligible, end, terciles
        As the result has them.
    way
        How the keys are drawn.
    growth, fits
        Of that way: growth by size, and exponents by layer.
    """
    middle = len(sizes) // 2
    keys = round(sum(eligible) / len(eligible))
    out = f"With {sizes[middle]} of {keys} keys drawn in every layer ({way}), "
    if end.kl and end.top1 and end.perplexity:
        found = end.perplexity[way]
        ratio = Curve(mean=found.ratio or (), interval=found.ratio_interval or ())
        out += (
            f"the next-token distribution is {_at(end.kl[way], middle)} nats from dense (KL), "
            f"the most likely token is the same in {_at(end.top1[way], middle, 100)}%, and "
            f"perplexity is {_at(ratio, middle)} times that of dense."
        )
        name = "KL"
    else:
        cosine = end.damage[way]
        shown = cosine_between(cosine.mean[middle], cosine.interval[middle])
        out += f"the embedding's cosine to dense is {shown}."
        name = "1 - cosine"
    sentences = [out]
    factor = growth[middle]
    if factor is not None:
        sentences.append(grows(factor))
    known = [fit.interval for fit in fits if fit is not None]
    if known:
        counts = class_counts(known)
        sentences.append(f"The error falls {rates_said(counts, 'layer')}.")
    fit = end.damage[way].fit
    if fit is not None:
        sentences.append(falls(name, fit.exponent, fit.interval))
    ratios = None if terciles is None else terciles.high_over_low
    if ratios is not None:
        ends = ratios.interval[middle]
        told = ends is not None and (ends[0] > 1 or ends[1] < 1)
        sentences.append(
            f"Sampling only the {TERCILES[-1]}-horizon third of the heads does "
            f"{between(ratios.mean[middle], ends)} times the damage of "
            f"the {TERCILES[0]}-horizon third" + ("." if told else ", which may be chance.")
        )
    if len(eligible) == 1:
        sentences.append(ONE_PASSAGE)
    return " ".join(sentences)


def grows(factor: Growth) -> str:
    """Say whether an error grows from layer to layer, if that can be told."""
    low, high = factor.interval
    shown = between(factor.factor, factor.interval)
    if low is None or high is None or low <= 1 <= high:
        return (
            "Whether the relative error of the tokens grows from layer to layer is undecided "
            f"(factor {shown} per layer)."
        )
    verb = "grows" if low > 1 else "shrinks"
    return f"The relative error of the tokens {verb} by a factor {shown} per layer."


def half(interval: Ends) -> str:
    """Class of an exponent as words."""
    name = rate_class(interval)
    words = {"at 1/2": name, "undecided": "undecided whether 1/2"}
    return words.get(name, f"{name} 1/2")


def falls(name: str, exponent: float, interval: Ends) -> str:
    """Say how fast something falls with n, if that can be told."""
    low, high = interval
    shown = between(exponent, interval)
    if low is None or high is None or low <= 0 <= high:
        return f"Whether {name} falls with n is undecided (exponent {shown})."
    return (
        f"{name} falls like n^-{shown}." if low > 0 else f"{name} rises with n (exponent {shown})."
    )


def _at(found: Curve, j: int, factor: float = 1.0) -> str:
    ends = found.interval[j]
    scaled = None if ends is None else (factor * ends[0], factor * ends[1])
    return between(factor * found.mean[j], scaled)


# Means, growth factors and rates with intervals, from replicates that are independent.


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


def means(values: Array, lowest: float = -np.inf, highest: float = np.inf) -> Means:
    """Mean, standard error and interval of every size: see :func:`mean_and_interval`."""
    found = mean_and_interval(values, lowest, highest)
    return Means(
        mean=tuple(found["mean"]),
        standard_error=tuple(found["standard_error"]),
        interval=_ends(found["interval"]),
    )


def ratios(logarithms: Array) -> Curve:
    """Exponential of the mean of every size, with its interval: see :func:`exponentials`."""
    found = exponentials(logarithms)
    return Curve(mean=tuple(found["mean"]), interval=_ends(found["interval"]))


def _ends(intervals: Sequence[Any]) -> tuple[Interval | None, ...]:
    return tuple(None if ends is None else (ends[0], ends[1]) for ends in intervals)


@dataclass(frozen=True)
class GrowthFactors:
    """Growth of an error: one factor per layer, None for the first, and their geometric mean."""

    steps: tuple[Growth | None, ...]
    overall: Growth | None


def growth_factors(errors: Array, seed: int) -> GrowthFactors:
    """Growth of the mean error from layer to layer, with intervals from resampled replicates.

    Parameters
    ----------
    errors
        Axes [replicate, layer], positive.
    seed
        Seed of the resampling.
    """
    layers = errors.shape[1]
    if layers < 2:
        return GrowthFactors((None,), None)
    # the logarithms of the mean errors take the place that sizes have in a rate
    resamples = resample(errors, np.arange(1.0, layers + 1), "mean", seed)
    steps = np.diff(np.eye(layers), axis=0)
    overall = (np.eye(layers)[-1] - np.eye(layers)[0]) / (layers - 1)
    value, low, high = resamples.intervals(np.vstack([steps, overall]), LEVEL)
    with np.errstate(over="ignore"):  # an end beyond all numbers is no end: None
        value, low, high = np.exp(value), np.exp(low), np.exp(high)
    found = [
        Growth(factor=float(value[i]), interval=(finite(low[i]), finite(high[i])))
        for i in range(layers)
    ]
    return GrowthFactors((None, *found[:-1]), found[-1])


def fitted(errors: Array, sizes: Sequence[int], seed: int, **options: Any) -> Rate | None:
    """The rate of errors with axes [replicate, size]; None where there is none to be seen."""
    if len(sizes) < 2 or np.sum(np.mean(errors > 0, axis=0) > 0.5) < 2:
        return None
    sharp = options.pop("sharp", None)
    rate = fit_rate(errors, np.asarray(sizes, dtype=np.float64), seed=seed, **options)
    return replace(rate, sharp=sharp)


# From the passages of a real model to errors by layer and what became of its end.
#
# Keys are drawn without replacement, so that errors vanish at n = E. Exponents are fitted to errors
# divided by the finite-population factor ``sqrt((E - n)/(E - 1))``, and to divergences (which are
# quadratic in the error) divided by its square; the errors themselves are reported as they are.
#
# Draws of one passage share its text, and are not independent. So every interval is over
# passages, the draws of a passage averaged first. With one passage means have no interval, and
# those of growth factors and exponents are over its draws: they cover the chance of the sample,
# not that of the text.

#: Smallest and largest value that a number of a model's end can have.
RANGES = {"kl": (0.0, np.inf), "top1": (0.0, 1.0), "cosine": (-1.0, 1.0)}


def assemble_model(study: DeepStudy, cells: Mapping[str, Cell], run: CellRun) -> Deep:
    """Return layers, overall growth, end and terciles; some passages may be missing."""
    passages = {name: cell for name, cell in cells.items() if name != "horizons"}
    measured = _Measured(passages, study, run)
    ways = [name for name in study.ways if name in measured.variants]
    growth = {
        way: [
            growth_factors(measured.independent(way, "residual")[:, :, j], study.seed)
            for j in range(len(study.sizes))
        ]
        for way in ways
    }
    depth = measured.values(ways[0], "residual").shape[1] if ways else 0
    layers = []
    for i in range(depth):
        errors: dict[str, Any] = {
            name: {way: means(measured.by_passage(way, quantity)[:, i], 0.0) for way in ways}
            for name, quantity in zip(("error", *LAYER_METRICS[1:]), LAYER_METRICS, strict=True)
        }
        layers.append(
            DeepLayer(
                layer=i,
                growth={way: tuple(found.steps[i] for found in growth[way]) for way in ways},
                fit={way: measured.fit(way, "residual", i) for way in ways},
                **errors,
            )
        )
    overall = {way: tuple(found.overall for found in growth[way]) for way in ways}
    end = _end(measured)
    terciles = _terciles(measured, study, cells["horizons"], run) if "horizons" in cells else None
    headline = NOTHING
    if layers:
        eligible, way = measured.eligible, ways[0]
        fits = [layer.fit[way] for layer in layers]
        headline = model_headline(study.sizes, way, eligible, overall[way], fits, end, terciles)
    return Deep.of(
        run,
        study,
        len(cells),
        headline,
        sizes=study.sizes,
        layers=tuple(layers),
        growth=overall,
        eligible=tuple(measured.eligible),
        end=end,
        terciles=terciles,
    )


def _end(measured: _Measured) -> DeepEnd:
    def of(name: str) -> dict[str, Means]:
        return {
            variant: means(measured.end_by_passage(variant, name), *RANGES[name])
            for variant in measured.variants
        }

    def damage(name: str) -> dict[str, Damage]:
        return {
            variant: Damage(**asdict(found), fit=measured.fit_end(variant, name))
            for variant, found in of(name).items()
        }

    if not measured.causal:
        return DeepEnd(cosine=damage("cosine"))
    perplexity = {}
    if measured.variants:
        dense = ratios(measured.dense_nll(measured.variants[0])[:, None])
        perplexity["dense"] = Perplexity(mean=dense.mean, interval=dense.interval)
    for variant in measured.variants:
        surprise = measured.end_by_passage(variant, "nll")
        own = ratios(surprise)
        ratio = ratios(surprise - measured.dense_nll(variant)[:, None])
        perplexity[variant] = Perplexity(
            mean=own.mean, interval=own.interval, ratio=ratio.mean, ratio_interval=ratio.interval
        )
    return DeepEnd(kl=damage("kl"), top1=of("top1"), perplexity=perplexity or None)


def _terciles(measured: _Measured, study: DeepStudy, cell: Cell, run: CellRun) -> Terciles:
    """What the terciles are, and how much more damage the highest does than the lowest."""
    shape = study.model_record
    rows = cell.about.horizons
    if rows is None or {len(row) for row in rows} != {shape.heads} or len(rows) != shape.layers:
        raise run.damaged("horizons", "it lacks the horizon of some heads of the model")
    assert study.terciles != "none"  # there would be no cell of horizons
    horizons = np.array(rows)
    ratio = None
    if all(name in measured.variants for name in TERCILES):
        low, high = (measured.damage(name) for name in ("low", "high"))
        if np.all(low > 0) and np.all(high > 0):
            ratio = ratios(np.log(high) - np.log(low))
    return Terciles(
        scope=study.terciles,
        keys=study.ways[0],
        heads=describe_terciles(horizons, split_terciles(horizons, study.terciles)),
        horizons=rows,
        error=_last_layer(measured, "residual"),
        common=_last_layer(measured, "common"),
        high_over_low=ratio,
    )


def _last_layer(measured: _Measured, quantity: str) -> dict[str, Means]:
    return {
        name: means(measured.by_passage(name, quantity)[:, -1], 0.0)
        for name in TERCILES
        if name in measured.variants
    }


@dataclass(frozen=True)
class _Passage:
    """What is known about a passage besides its errors."""

    eligible: int
    dense_nll: float


class _Measured:
    """The stored numbers of all passages, by variant and quantity."""

    def __init__(self, cells: Mapping[str, Cell], study: DeepStudy, run: CellRun) -> None:
        self._study = study
        self.causal = study.model_record.causal
        self._about: dict[int, _Passage] = {}
        tables = []
        for name, cell in cells.items():
            try:
                number, about = self._passage(cell.about)
                if name.split("-")[1] != str(number):
                    raise InputError(f"it is of passage {number}")
                tables.append(self._checked(cell.table).assign(passage=number))
            except (ValueError, LookupError, TypeError) as error:
                raise run.damaged(name, error) from error
            self._about[number] = about
        self._table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
        there = set(self._table["variant"]) if tables else set()
        self.variants = [name for name in study.variants if name in there]

    def _passage(self, about: DeepCell) -> tuple[int, _Passage]:
        nll = about.dense_nll if self.causal else 0.0
        if about.passage is None or about.eligible is None or nll is None:
            raise InputError("it lacks numbers of its passage")
        if about.eligible <= self._study.sizes[-1]:
            raise InputError(f"eligible is {about.eligible}, but sizes go beyond")
        return about.passage, _Passage(about.eligible, nll)

    def _checked(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table, if every variant in it has all numbers of a passage."""
        own = table[COLUMNS]
        own["value"].astype(np.float64)
        study, layers = self._study, self._study.model_record.layers
        ends = DECODER_END if self.causal else ENCODER_END
        wanted = dict.fromkeys(LAYER_METRICS, layers) | dict.fromkeys(ends, 1)
        for variant in own["variant"].unique():
            rows = own[own["variant"] == variant]
            found = rows["quantity"].value_counts().to_dict()
            each = study.draws * len(study.sizes)
            if found != {name: count * each for name, count in wanted.items()}:
                raise InputError(f"it lacks numbers of {variant!r}")
        return own

    @property
    def eligible(self) -> list[int]:
        """Number E of keys that can be drawn, by passage."""
        return [self._about[p].eligible for p in sorted(self._about)]

    def values(self, variant: str, quantity: str) -> Array:
        """Axes [draw, layer, size]: the draws of all passages, which are not independent."""
        shape = (-1, len(self._study.sizes), self._layers(quantity))
        return self._ordered(variant, quantity).reshape(shape).transpose(0, 2, 1)

    def by_passage(self, variant: str, quantity: str) -> Array:
        """Axes [passage, layer, size], the mean over draws."""
        values = self.values(variant, quantity)
        return np.asarray(values.reshape(-1, self._study.draws, *values.shape[1:]).mean(axis=1))

    def independent(self, variant: str, quantity: str) -> Array:
        """Axes [replicate, layer, size]: passages, or the draws of a single one."""
        return independent_errors(self.values(variant, quantity), self._study.draws)

    def end_by_passage(self, variant: str, quantity: str) -> Array:
        """Axes [passage, size], the mean over draws."""
        return self.by_passage(variant, quantity)[:, 0]

    def damage(self, variant: str) -> Array:
        """KL divergence, or 1 - cosine, by passage and size."""
        if self.causal:
            return self.end_by_passage(variant, "kl")
        return 1.0 - self.end_by_passage(variant, "cosine")

    def dense_nll(self, variant: str) -> Array:
        """Mean surprise of the dense model by passage, of those that have the variant."""
        return np.array([self._about[p].dense_nll for p in self._passages(variant)])

    def fit(self, variant: str, quantity: str, layer: int) -> Rate | None:
        """Rate of a layer's error, corrected for the finite population."""
        factor = np.sqrt(self._factors(variant))
        return self._rate(self.independent(variant, quantity)[:, layer] / factor)

    def fit_end(self, variant: str, quantity: str) -> Rate | None:
        """Rate of the KL divergence or of 1 - cosine, corrected for the finite population."""
        values = self.independent(variant, quantity)[:, 0]
        damage = np.maximum(1.0 - values, 0.0) if quantity == "cosine" else values
        return self._rate(damage / self._factors(variant))

    def _rate(self, errors: Array) -> Rate | None:
        return fitted(errors, self._study.sizes, self._study.seed)

    def _factors(self, variant: str) -> Array:
        """``(E - n)/(E - 1)`` by passage (or draw of a single one) and size."""
        passages = self._passages(variant)
        total = np.array([self._about[p].eligible for p in passages], dtype=np.float64)[:, None]
        n = np.asarray(self._study.sizes, dtype=np.float64)[None, :]
        return np.asarray((total - n) / (total - 1))

    def _passages(self, variant: str) -> list[int]:
        own = self._table[self._table["variant"] == variant]
        return sorted(int(p) for p in own["passage"].unique())

    def _layers(self, quantity: str) -> int:
        own = self._table[self._table["quantity"] == quantity]
        return int(own["layer"].nunique())

    def _ordered(self, variant: str, quantity: str) -> Array:
        table = self._table
        own = table[(table["variant"] == variant) & (table["quantity"] == quantity)]
        own = own.sort_values(["passage", "draw", "n", "layer"])
        return own["value"].to_numpy(dtype=np.float64)


# From the replicates of a Gaussian stack to errors, growth and exponents, and to its limit.
#
# The limit is measured, against the exact recursion. Moments of n tokens are biased by b/n plus
# higher orders. Two sizes cancel the first: in every replicate ``(n2 m2 - n1 m1)/(n2 - n1)``.
# Over replicates these have a mean and a standard error, and each number is compared with the
# recursion in units of the latter.
#
# A bias of b/n takes ``H^2 < 1/2``, where the mean squared error of the map falls like 1/n, and
# sizes past the burn-in ``e^{F^2 + tau^2}``. Otherwise the samples may be far from their limit
# whatever it is: then no verdict is given. Nor is one when layers have amplified the error of a
# token to the size of the token itself: the noise would then agree with any recursion. For the
# same reason the measured limit agrees only if the intervals of ALL entries (together at 95%) end
# within a tenth of a variance of the recursion: with fewer replicates they end beyond it, and the
# verdict is undecided.

#: Fields of the asymptotic exponents that belong to the metrics.
_SHARP = {"map": "map_rms", "mean": "mean", "cov": "cov"}


def assemble_stack(study: DeepStackStudy, cells: Mapping[str, Cell], run: CellRun) -> Deep:
    """Return layers, overall growth and the measured limit."""
    if not cells:
        return Deep.of(run, study, 0, NOTHING, sizes=study.sizes)
    tables = [_checked_replicate(name, cell, study, run) for name, cell in cells.items()]
    errors, moments = _arrays(tables, study)
    stack, exact = study.stack()
    pair = (study.sizes[-2], study.sizes[-1])
    doubt = doubts(stack, pair[0], errors["map"][:, :, -2].mean(axis=0).tolist())
    growth = {
        metric: [
            growth_factors(errors[metric][:, :, j], study.seed) for j in range(len(study.sizes))
        ]
        for metric in METRICS
    }
    asymptotic = exponents(study.horizon)
    burn_in = np.exp(np.maximum.accumulate([h.frobenius**2 + h.tau @ h.tau for h in _heads(stack)]))
    layers = tuple(
        DeepLayer(
            layer=i,
            horizon=float(exact.horizons[i][0]),
            error={m: means(errors[m][:, i], 0.0) for m in METRICS},
            growth={m: tuple(found.steps[i] for found in growth[m]) for m in METRICS},
            fit={
                m: fitted(
                    errors[m][:, i],
                    study.sizes,
                    study.seed,
                    sharp=getattr(asymptotic, _SHARP[m]),
                    resolution=RESOLUTION,
                    burn_in=float(burn_in[i]),
                )
                for m in METRICS
            },
        )
        for i in range(study.depth)
    )
    overall = {m: tuple(found.overall for found in growth[m]) for m in METRICS}
    limit = compare_with_recursion(moments, pair, exact, doubt)
    return Deep.of(
        run,
        study,
        len(cells),
        stack_headline(study.sizes, layers, overall["map"][-1], limit[-1]),
        sizes=study.sizes,
        layers=layers,
        growth=overall,
        limit=limit,
    )


def _heads(stack: GaussianStack) -> list[WeightHead]:
    """The one head of every layer, over the law that reaches it."""
    return [layer.heads[0] for layer in stack.layers]


def _checked_replicate(name: str, cell: Cell, study: DeepStackStudy, run: CellRun) -> pd.DataFrame:
    """The table of a replicate, if it has a value for every metric, size and layer."""
    try:
        found = cell.table["quantity"].value_counts()
        wanted = len(study.sizes) * study.depth
        rows = {metric: int(found[metric]) for metric in METRICS}
        if any(count != wanted for count in rows.values()) or found["moment"] % (2 * study.depth):
            raise ValueError(f"it does not have {counted(wanted, 'value')} of each error")
        cell.table["value"].astype(np.float64)
    except (ValueError, LookupError, TypeError) as error:
        raise run.damaged(name, error) from error
    return cell.table


def _arrays(
    tables: Sequence[pd.DataFrame], study: DeepStackStudy
) -> tuple[dict[str, Array], Array]:
    """Errors by metric, [replicate, layer, size], and moments, [replicate, size, layer, entry]."""
    table = pd.concat(
        [found.assign(replicate=i) for i, found in enumerate(tables)], ignore_index=True
    )
    shape = (len(tables), len(study.sizes), study.depth)
    errors = {}
    for metric in METRICS:
        own = table[table["quantity"] == metric].sort_values(["replicate", "n", "layer"])
        errors[metric] = own["value"].to_numpy().reshape(shape).transpose(0, 2, 1)
    own = table[table["quantity"] == "moment"].sort_values(["replicate", "n", "layer", "entry"])
    moments = own["value"].to_numpy().reshape(len(tables), 2, study.depth, -1)
    return errors, np.asarray(moments)


#: Squared horizon from which on the map's mean squared error no longer falls like 1/n.
LARGEST_SQUARE = 0.5
#: Relative error of a token, at the smaller size, from which on there is no verdict.
LARGEST_ERROR = 0.3


def extrapolate(moments: Array, sizes: tuple[int, int]) -> Array:
    """Richardson's extrapolation of moments with axes [replicate, size, ...] to infinite n."""
    small, large = sizes
    return np.asarray((large * moments[:, 1] - small * moments[:, 0]) / (large - small))


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
    moments: Array,
    sizes: tuple[int, int],
    limit: StackLimit,
    doubt: Sequence[str | None] | None = None,
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
    measured = extrapolate(moments, sizes)
    count, _, entries = measured.shape
    out = []
    for i in range(limit.depth):
        exact = moment_entries(limit.means[i + 1], limit.covariances[i + 1])
        found = LayerLimit(
            layer=i,
            entries=entries,
            measured=tuple(measured[:, i].mean(axis=0).tolist()),
            exact=tuple(exact.tolist()),
            doubt=None if doubt is None else doubt[i],
        )
        if count > 1:
            error = measured[:, i].std(axis=0, ddof=1) / np.sqrt(count)
            scores = (measured[:, i].mean(axis=0) - exact) / error
            bound = float(scipy.stats.t.ppf(1 - (1 - LEVEL) / (2 * entries), count - 1))
            largest = float(np.abs(scores).max())
            variance = float(np.trace(limit.covariances[i + 1])) / limit.means.shape[1]
            agrees, why = _agrees(measured[:, i] - exact, error, bound, variance)
            found = replace(
                found,
                standard_error=tuple(error.tolist()),
                largest=largest,
                rms=float(np.sqrt(np.mean(scores**2))),
                resolution=float(np.median(error)) / variance,
                bound=bound,
                agrees=None if found.doubt else agrees,
                doubt=found.doubt or why,
            )
        out.append(found)
    return tuple(out)


def _agrees(
    deviations: Array, error: Array, bound: float, variance: float
) -> tuple[bool | None, str | None]:
    """Whether a measured limit is the recursion, and why that is undecided.

    Parameters
    ----------
    deviations
        Measured minus exact, [replicate, entry].
    error, bound
        Standard errors, and how many of them hold all entries together.
    variance
        Mean variance of a coordinate.
    """
    off = np.abs(deviations.mean(axis=0))
    if np.any(off > bound * error):
        return False, None
    reach = float(np.max(off + bound * error)) / variance
    if reach <= SAME:
        return True, None
    count = len(deviations)
    # if the recursion is right, deviations are noise, and fall with the standard errors
    needed = int(np.ceil(count * (reach / SAME) ** 2))
    return None, (
        f"the intervals of its {len(off)} entries reach {100 * reach:.3g}% of a variance from it, "
        f"and {100 * SAME:g}% is the margin; about {needed:,} replicates instead of {count} would "
        "do, if it is right"
    )
