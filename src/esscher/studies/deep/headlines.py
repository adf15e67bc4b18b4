"""The answer in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from esscher.core.codec import Interval
from esscher.math.statistics.records import Ends
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
        f"At n = {sizes[-1]:,} the error of a token is {100 * errors[0]:.3g}% after one layer and "
        f"{100 * errors[1]:.3g}% after {len(layers)}"
    )
    if growth is not None:
        text += f", a factor {_with_ends(growth.factor, growth.interval, 4)} per layer"
    one, other = first.fit["map"], last.fit["map"]
    if one is not None and other is not None:
        ends = [_with_ends(fit.exponent, fit.interval) for fit in (one, other)]
        text += f"; its exponent is {ends[0]} after the first layer and {ends[1]} after the last"
    if limit.doubt is not None:
        return f"{text}. Whether the recursion is the limit cannot be seen here: {limit.doubt}."
    if limit.agrees is None:
        return f"{text}."
    return (
        f"{text}. The measured limit of depth {len(layers)} "
        f"{'equals' if limit.agrees else 'DIFFERS FROM'} the recursion: the largest of "
        f"{limit.entries} deviations is {limit.largest:.2f} standard errors (bound "
        f"{limit.bound:.2f}; a standard error is {100 * (limit.resolution or 0.0):.2g}% of a "
        "variance)."
    )


def model_headline(
    sizes: Sequence[int],
    way: str,
    eligible: Sequence[int],
    growth: Sequence[Growth | None],
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
    growth
        Of that way, by size.
    """
    middle = len(sizes) // 2
    keys = round(sum(eligible) / len(eligible))
    out = f"With {sizes[middle]} of {keys} keys drawn in every layer ({way}), "
    if end.kl and end.top1 and end.perplexity:
        ratio = end.perplexity[way].ratio or ()
        out += (
            f"the next-token law is {_at(end.kl[way], middle)} nats from the dense one (KL), "
            f"the most likely token is the same in {_at(end.top1[way], middle, 100)}%, and "
            f"perplexity rises by a factor {ratio[middle]:.3g}."
        )
        name = "KL"
    else:
        out += f"the embedding's cosine to the dense one is {_at(end.damage[way], middle)}."
        name = "1 - cosine"
    sentences = [out]
    factor = growth[middle]
    if factor is not None:
        sentences.append(
            "The relative error of the tokens grows by a factor "
            f"{_with_ends(factor.factor, factor.interval, 4)} per layer."
        )
    fit = end.damage[way].fit
    if fit is not None:
        sentences.append(falls(name, fit.exponent, fit.interval))
    ratios = None if terciles is None else terciles.high_over_low
    if ratios is not None:
        sentences.append(
            f"Drawing the keys of the {TERCILES[-1]}-horizon third of the heads only does "
            f"{_with_ends(ratios.mean[middle], ratios.interval[middle])} times the damage of "
            f"the {TERCILES[0]}-horizon third."
        )
    return " ".join(sentences)


def falls(name: str, exponent: float, interval: Ends) -> str:
    """Say how fast something falls with n, if that can be told."""
    low, high = interval
    shown = _with_ends(exponent, interval, 2)
    if low is None or high is None or low <= 0 <= high:
        return f"Whether {name} falls with n cannot be told here (exponent {shown})."
    return (
        f"{name} falls like n^-{shown}." if low > 0 else f"{name} rises with n (exponent {shown})."
    )


def _at(found: Curve, j: int, factor: float = 1.0) -> str:
    ends = found.interval[j]
    scaled = None if ends is None else (factor * ends[0], factor * ends[1])
    return _with_ends(factor * found.mean[j], scaled)


def _with_ends(value: float, ends: Ends | Interval | None, digits: int = 3) -> str:
    if ends is None or ends[0] is None or ends[1] is None:
        return f"{value:.{digits}g}"
    return f"{value:.{digits}g} ({ends[0]:.{digits}g} to {ends[1]:.{digits}g})"
