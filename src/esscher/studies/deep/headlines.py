"""The answer in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from esscher.core.shown import between, cosine_between, rates_said, two_digits
from esscher.math.statistics.records import Ends, FittedRate, class_counts, rate_class
from esscher.studies.deep.records import (
    TERCILES,
    Curve,
    DeepEnd,
    DeepLayer,
    Growth,
    LayerLimit,
    Terciles,
)

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
    fits: Sequence[FittedRate | None],
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
