"""What one pass says about a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import HeadWeights
from esscher.engine.sampled.layer import HeadNumbers
from esscher.math.coupling import CoupledMoments
from esscher.math.statistics import received_exponent, resampling_counts
from esscher.math.statistics.records import ByMetric, Ends
from esscher.math.tails.cloud import cloud_tails
from esscher.math.tails.directions import QUICK
from esscher.math.tails.records import Cloud
from esscher.math.theory import exponents
from esscher.math.theory.empirical import empirical_map_square
from esscher.math.theory.sharp_exponents import Exponents
from esscher.studies.probe.records import (
    ByTolerance,
    HeadStatistics,
    PredictedError,
    PredictedExponents,
    Psi,
    Quantiles,
    RangeExponent,
    Sink,
    Sinks,
)

#: Relative output errors for which the number of tokens is given.
TOLERANCES = {"percent_5": 0.05, "percent_10": 0.1, "percent_20": 0.2}
#: Queries from which the map error is predicted; the standard error is over them.
PREDICTING = 16
#: Distance of the integration nodes: coarser than the queries' own spread needs by far.
STEP = 0.8
#: Numbers of tokens among which those for a tolerance are looked for.
GRID = np.geomspace(4, 1e8, 50)
#: Resamples of those queries, for the interval of the number of tokens.
RESAMPLES = 200
#: Sinks that are listed.
LISTED = 5
#: Keys whose tails are looked at: whole passages as long as they fit.
MOST = 8_192


def describe_head(
    numbers: HeadNumbers,
    sizes: Sequence[int],
    seed: int,
    label: Callable[[int], str],
    *,
    delimiters: float,
    psi: float | None = None,
    apart: NDArray[np.int64] | None = None,
) -> HeadStatistics:
    """One-pass statistics of a head.

    Parameters
    ----------
    numbers
        What one pass gave.
    sizes
        Sizes of the samples.
    seed
        Seed of resampling.
    label
        The token of a key, for the list of sinks.
    delimiters
        Share of the attention that goes to delimiters.
    psi
        One-sided constant of the published bound, where it is known.
    apart
        Keys that are sinks and have been set apart already; found here if left out.
    """
    moments = CoupledMoments.of(numbers.tilts, numbers.keys)
    asymptotic = exponents(moments.horizon)
    sinks: Any = "auto" if apart is None else apart
    tail = received_exponent(numbers.received * len(numbers.tilts), sinks=sinks)
    predicted, noise, needed, between = _predicted_map(numbers, sizes, seed)
    ess = numbers.participation
    order = sorted(tail.sinks, key=lambda j: -numbers.received[j])
    quantiles = (float(np.quantile(ess, q)) for q in (0.1, 0.5, 0.9))
    p10, median, p90 = quantiles
    return HeadStatistics(
        horizon=moments.horizon,
        frobenius=moments.frobenius,
        tau=moments.tau,
        spectrum=tuple(moments.spectrum.tolist()),
        psi=Psi(two_sided=moments.horizon**2, one_sided=psi),
        log_burn_in=moments.log_burn_in,
        frozen_share=moments.frozen_share(sizes[-1]),
        khat=tail.record(),
        ess=Quantiles(p10=p10, median=median, p90=p90),
        sinks=Sinks(
            count=len(order),
            share=float(numbers.received[order].sum()) if order else 0.0,
            tokens=tuple(
                Sink(token=label(int(j)), share=float(numbers.received[j])) for j in order[:LISTED]
            ),
        ),
        delimiter_share=delimiters,
        tails=key_tails(numbers, seed),
        norm=numbers.norm,
        predicted_map=PredictedError(
            error=tuple(predicted.tolist()), standard_error=tuple(noise.tolist())
        ),
        predicted=_predictions(asymptotic, tail.exponent, sizes, predicted),
        tokens_for=needed,
        tokens_for_interval=between,
    )


def _predictions(
    asymptotic: Exponents, khat_exponent: float, sizes: Sequence[int], map_error: Array
) -> PredictedExponents:
    x = np.log(np.asarray(sizes, dtype=np.float64))
    x = x - x.mean()
    slope = float(-(x @ np.log(map_error)) / (x @ x)) if len(sizes) > 1 else None
    return PredictedExponents(
        khat=khat_exponent,
        range=RangeExponent(map=slope),
        sharp=ByMetric(mean=asymptotic.mean, cov=asymptotic.cov, map=asymptotic.map_rms),
        paper_reference=asymptotic.paper_reference,
        paper_bound=asymptotic.paper_bound,
    )


def _predicted_map(
    numbers: HeadNumbers, sizes: Sequence[int], seed: int
) -> tuple[Array, Array, ByTolerance[float | None], ByTolerance[Ends]]:
    """Predicted map error at the sizes, its standard error, and tokens for each tolerance.

    The last with an interval, by resampling the queries; None stands for more than the grid's end.
    """
    rng = random_stream(seed, "probe prediction")
    count = min(PREDICTING, len(numbers.tilts))
    rows = rng.choice(len(numbers.tilts), size=count, replace=False)
    grid = np.unique(np.concatenate([GRID, np.asarray(sizes, dtype=np.float64)]).round())
    squares = empirical_map_square(
        numbers.tilts[rows], numbers.keys, numbers.values, numbers.outputs[rows], grid, STEP
    )
    mean = squares.mean(axis=0)
    spread = squares.std(axis=0, ddof=1) / np.sqrt(count)
    at = np.searchsorted(grid, np.asarray(sizes, dtype=np.float64))
    error = np.sqrt(mean)
    copies = resampling_counts(count, RESAMPLES, rng) / count
    resampled = np.sqrt(copies @ squares) / numbers.norm

    def between(tolerance: float) -> Ends:
        # None (never) is the largest of them
        found = [_crossing(relative, grid, tolerance) for relative in resampled]
        order = sorted(found, key=lambda n: np.inf if n is None else n)
        low, high = (order[int(q * (RESAMPLES - 1))] for q in (0.025, 0.975))
        return low, high

    needed: dict[str, Any] = {
        name: _crossing(error / numbers.norm, grid, tolerance)
        for name, tolerance in TOLERANCES.items()
    }
    ends: dict[str, Any] = {name: between(tolerance) for name, tolerance in TOLERANCES.items()}
    noise = spread[at] / (2 * error[at])
    return error[at], noise, ByTolerance(**needed), ByTolerance(**ends)


def _crossing(relative: Array, grid: Array, tolerance: float) -> float | None:
    """First number of tokens with at most this relative error; None beyond the grid."""
    below = np.flatnonzero(relative <= tolerance)
    if not below.size:
        return None
    i = int(below[0])
    if i == 0:
        return float(grid[0])
    x = np.interp(-np.log(tolerance), -np.log(relative[[i - 1, i]]), np.log(grid[[i - 1, i]]))
    return float(np.ceil(np.exp(x) - 1e-9))


def key_tails(numbers: HeadNumbers, seed: int) -> Cloud | None:
    """Measure the keys' worst projection, see :func:`esscher.math.tails.cloud_tails`.

    None where there are too few keys or passages to search in one half and judge on the other.
    """
    keys, passages = numbers.keys, numbers.passages
    if len(keys) > MOST:
        rows = np.sort(
            random_stream(seed, "probe tails").choice(len(keys), size=MOST, replace=False)
        )
        keys, passages = keys[rows], None if passages is None else passages[rows]
    try:
        return cloud_tails(keys, passages, seed=seed, effort=QUICK).numbers
    except InputError:
        return None


def one_sided_psi(weights: HeadWeights, hidden: Array | None) -> list[float] | None:
    """``||Sigma||_2 ||Sigma^{1/2} A||_2^2`` of each head, Sigma the covariance of hidden states.

    None where queries and keys are no linear functions of the hidden states (rotary positions).
    """
    if hidden is None or not weights.linear:
        return None
    centred = hidden - hidden.mean(axis=0)
    covariance = centred.T @ centred / len(hidden)
    largest = float(np.linalg.eigvalsh(covariance)[-1])
    psi = []
    for w_q, w_k in zip(weights.W_q, weights.W_k, strict=True):
        # A = W_k' W_q has the rank of a head: its norm is that of a d_k x d_k matrix
        product = (w_k @ covariance @ w_k.T) @ (w_q @ w_q.T) * weights.scaling**2
        psi.append(largest * float(np.abs(np.linalg.eigvals(product)).max()))
    return psi
