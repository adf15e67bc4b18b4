"""The law of several errors of the same replicates: mean, covariance and map tested together.

A floor, such as that of a finite reference, or hardmax, which makes laws of ln n, concerns all of
them; their noise is not the same, hence together they show more than each. Correlations are in the
resampled noise, since replicates are drawn again as wholes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.codec import Name, Record
from esscher.core.errors import InputError
from esscher.core.validation import Array, as_numbers, as_sizes
from esscher.math.statistics.detection import (
    ENOUGH,
    EQUAL,
    SIGNIFICANCE,
    Curves,
    bend_test,
    floor_limit,
    from_logarithms,
    stacked_floor,
)
from esscher.math.statistics.intervals import Resamples, resample
from esscher.math.statistics.laws import (
    ROUNDING,
    fit_line,
    smooth_covariance,
)
from esscher.math.statistics.selection import (
    FEWEST_REPLICATES,
    FEWEST_SIZES,
    AgainstPrediction,
    against_prediction,
    against_two_powers,
    power_words,
)


class SharedLaw(Record, frozen=True, kw_only=True):
    """All errors of the same replicates tested together.

    Attributes
    ----------
    metrics
        Errors that were tested.
    verdict
        ``"power"`` if all are straight, and a floor, a logarithm and two powers are excluded,
        ``"bent"`` if a bend is found, ``"undecided"`` else; ``"as predicted"`` if a prediction is
        all that decides.
    bend, p_value
        Joint departure from straight lines in standard errors, and its p-value.
    floor_share
        Upper 95% limit of a floor that takes the same share of every error at the largest size.
    power
        Probability with which the joint test finds a floor of half of every error there, and powers
        of ln n.
    predicted
        The same against the predicted curves; None without them.
    evidence
        The verdict in words.
    """

    metrics: tuple[Name, ...]
    verdict: Name
    bend: float | None
    p_value: float | None
    floor_share: float | None
    power: dict[str, float]
    predicted: AgainstPrediction | None
    evidence: Name


def joint_law(
    errors: Mapping[str, ArrayLike],
    sizes: ArrayLike,
    *,
    seed: int = 0,
    predicted: Mapping[str, ArrayLike] | None = None,
) -> SharedLaw:
    """Test the mean errors of several metrics together.

    Parameters
    ----------
    errors
        By metric, axes [replicate, size], of the same replicates; ``nan`` at the sizes above the
        last of a replicate that ended early.
    sizes
        Strictly increasing numbers of tokens.
    seed
        Seed of the resampling.
    predicted
        Predicted errors at the sizes, by metric. Metrics without a prediction are left out of the
        test against it.

    Raises
    ------
    InputError
        For metrics of different shapes.
    """
    n = as_sizes(sizes)
    values = {metric: as_numbers(found, f"errors[{metric!r}]") for metric, found in errors.items()}
    shapes = {found.shape for found in values.values()}
    if len(shapes) != 1 or (shape := shapes.pop())[-1:] != n.shape or len(shape) != 2:
        raise InputError(
            "errors of all metrics must have the same axes [replicate, size], with "
            f"{len(n)} sizes; they are {[found.shape for found in values.values()]}"
        )
    stacked = np.stack(list(values.values()), axis=2)
    usable = np.all(np.sum(stacked > 0, axis=0) > 0.5 * np.sum(stacked >= 0, axis=0), axis=1)
    # by size first, so that a replicate that ended early is cut off at one place
    used = stacked[:, usable].reshape(len(stacked), -1)
    metrics, at = tuple(values), n[usable]
    if len(at) < FEWEST_SIZES or np.isfinite(used).all(axis=1).sum() < FEWEST_REPLICATES:
        return untested_law(metrics, f"{len(at)} sizes and {len(used)} replicates are too few")
    resamples = resample(used, np.repeat(at, len(metrics)), "mean", seed)
    places = tuple(np.arange(len(at)) * len(metrics) + i for i in range(len(metrics)))
    parts = [_part(resamples, where) for where in places]
    if not min(float(np.diag(part.covariance).max()) for part in parts) > ROUNDING:
        return untested_law(metrics, "all replicates are equal")
    curves = Curves(resamples, places, tuple(smooth_covariance(part) for part in parts))
    return _judged(curves, metrics, float(at[-1]), _known(curves, metrics, usable, predicted or {}))


def _judged(
    curves: Curves,
    metrics: tuple[str, ...],
    largest: float,
    known: tuple[Curves, tuple[Array, ...]],
) -> SharedLaw:
    logarithm, floor = _logarithms(curves), stacked_floor(curves, EQUAL)
    test = bend_test(curves, (logarithm, floor))
    share = floor_limit(curves)
    power = {"floor": test.power(floor), "logarithmic": test.power(logarithm)}
    faster = from_logarithms(curves)
    log_p = faster.p_value if faster.bend > 0 else 1.0
    predicted = against_prediction(*known) if known[1] else None
    seen = f"joint bend {test.bend:+.1f} standard errors, p = {test.p_value:.2g}"
    if test.p_value < SIGNIFICANCE:
        verdict = "bent" if test.bend > 0 else "undecided"
        words = f"{'not straight' if test.bend > 0 else 'the curves steepen'}, {seen}"
    elif (
        share < EQUAL
        and log_p < SIGNIFICANCE
        and min(power.values()) >= ENOUGH
        and _single_powers(curves)
    ):
        verdict, words = "power", f"straight, {seen}"
    else:
        verdict, words = "undecided", f"no bend is seen, {seen}"
    words += f"; a logarithmic law has p = {log_p:.2g}; {power_words(share, power, largest)}"
    if predicted is not None:
        words += f"; {predicted.words}"
        if verdict == "power" and predicted.leaves:
            verdict = "undecided"
        elif verdict == "undecided" and test.p_value >= SIGNIFICANCE and predicted.follows:
            verdict = "as predicted"
    return SharedLaw(
        metrics=metrics,
        verdict=verdict,
        bend=test.bend,
        p_value=test.p_value,
        floor_share=share,
        power=power,
        predicted=predicted,
        evidence=words,
    )


def untested_law(metrics: tuple[str, ...], why: str) -> SharedLaw:
    """Return the verdict where there is nothing to test."""
    return SharedLaw(
        metrics=metrics,
        verdict="undecided",
        bend=None,
        p_value=None,
        floor_share=None,
        power={},
        predicted=None,
        evidence=f"not tested: {why}",
    )


def _part(resamples: Resamples, at: NDArray[np.int64]) -> Resamples:
    """One curve of several."""
    own = resamples.covariance[np.ix_(at, at)]
    drawn = resamples.covariances
    return replace(
        resamples,
        log_sizes=resamples.log_sizes[at],
        log_errors=resamples.log_errors[at],
        covariance=own,
        draws=resamples.draws[:, at],
        covariances=None if drawn is None else drawn[:, at[:, None], at],
    )


def _single_powers(curves: Curves) -> bool:
    """Whether none of the curves may be two powers, each judged alone."""
    parts = [_part(curves.resamples, at) for at in curves.places]
    return all(
        against_two_powers(part, covariance)[0]
        for part, covariance in zip(parts, curves.covariances, strict=True)
    )


def _known(
    curves: Curves,
    metrics: tuple[str, ...],
    usable: Array,
    predicted: Mapping[str, ArrayLike],
) -> tuple[Curves, tuple[Array, ...]]:
    """The curves that have a prediction, and its logarithm."""
    there = [i for i, metric in enumerate(metrics) if metric in predicted]
    logs = tuple(
        np.log(as_numbers(predicted[metrics[i]], f"predicted[{metrics[i]!r}]")[usable])
        for i in there
    )
    own = replace(
        curves,
        places=tuple(curves.places[i] for i in there),
        covariances=tuple(curves.covariances[i] for i in there),
    )
    return own, logs


def _logarithms(curves: Curves) -> Array:
    """The power of ln n that is closest to each curve."""
    out = np.empty_like(curves.resamples.log_errors)
    for i, at in enumerate(curves.places):
        x, y = curves.curve(i)
        out[at] = y - fit_line("logarithmic", x, y, curves.covariances[i])[1]
    return out
