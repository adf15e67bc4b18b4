"""The law of several errors of the same replicates: mean, covariance and map tested together.

A floor, such as that of a finite reference, or hardmax, which makes laws of ln n, concerns all of
them; their noise is not the same, hence together they show more than each. Correlations are in the
resampled noise, since replicates are drawn again as wholes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.codec import Name, Record
from esscher.core.errors import InputError
from esscher.core.validation import as_numbers, as_sizes
from esscher.math.statistics.intervals import resample
from esscher.math.statistics.laws import (
    ENOUGH,
    EQUAL,
    ROUNDING,
    SIGNIFICANCE,
    Curves,
    bend_test,
    fit_line,
    floor_limit,
    from_logarithms,
    smooth_covariance,
    stacked_floor,
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
    values = {name: as_numbers(array, f"errors[{name!r}]") for name, array in errors.items()}
    shapes = {array.shape for array in values.values()}
    if len(shapes) != 1 or (shape := shapes.pop())[-1:] != n.shape or len(shape) != 2:
        raise InputError(
            "errors of all metrics must have the same axes [replicate, size], with "
            f"{len(n)} sizes; they are {[array.shape for array in values.values()]}"
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
    # each curve alone
    drawn = resamples.covariances
    parts = [
        replace(
            resamples,
            log_sizes=resamples.log_sizes[where],
            log_errors=resamples.log_errors[where],
            covariance=resamples.covariance[np.ix_(where, where)],
            draws=resamples.draws[:, where],
            covariances=None if drawn is None else drawn[:, where[:, None], where],
        )
        for where in places
    ]
    if not min(float(np.diag(part.covariance).max()) for part in parts) > ROUNDING:
        return untested_law(metrics, "all replicates are equal")
    curves = Curves(resamples, places, tuple(smooth_covariance(part) for part in parts))

    # the power of ln n that is closest to each curve, and a floor of half of the last errors
    logarithm, floor = np.empty_like(resamples.log_errors), stacked_floor(curves, EQUAL)
    for i, where in enumerate(places):
        x, y = curves.curve(i)
        logarithm[where] = y - fit_line("logarithmic", x, y, curves.covariances[i])[1]
    test = bend_test(curves, (logarithm, floor))
    share = floor_limit(curves)
    power = {"floor": test.power(floor), "logarithmic": test.power(logarithm)}
    faster = from_logarithms(curves)
    log_p = faster.p_value if faster.bend > 0 else 1.0
    # the curves that have a prediction, against it
    known = [i for i, metric in enumerate(metrics) if predicted and metric in predicted]
    against = None
    if predicted and known:
        logs = [
            np.log(as_numbers(predicted[metrics[i]], f"predicted[{metrics[i]!r}]")[usable])
            for i in known
        ]
        some = replace(
            curves,
            places=tuple(places[i] for i in known),
            covariances=tuple(curves.covariances[i] for i in known),
        )
        against = against_prediction(some, tuple(logs))

    seen = f"joint bend {test.bend:+.1f} standard errors, p = {test.p_value:.2g}"
    if test.p_value < SIGNIFICANCE:
        verdict = "bent" if test.bend > 0 else "undecided"
        words = f"{'not straight' if test.bend > 0 else 'the curves steepen'}, {seen}"
    elif (
        share < EQUAL
        and log_p < SIGNIFICANCE
        and min(power.values()) >= ENOUGH
        # none of the curves may be two powers, each judged alone
        and all(
            against_two_powers(part, covariance)[0]
            for part, covariance in zip(parts, curves.covariances, strict=True)
        )
    ):
        verdict, words = "power", f"straight, {seen}"
    else:
        verdict, words = "undecided", f"no bend is seen, {seen}"
    words += f"; a logarithmic law has p = {log_p:.2g}; {power_words(share, power, float(at[-1]))}"
    if against is not None:
        words += f"; {against.words}"
        if verdict == "power" and against.leaves:
            verdict = "undecided"
        elif verdict == "undecided" and test.p_value >= SIGNIFICANCE and against.follows:
            verdict = "as predicted"
    return SharedLaw(
        metrics=metrics,
        verdict=verdict,
        bend=test.bend,
        p_value=test.p_value,
        floor_share=share,
        power=power,
        predicted=against,
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
