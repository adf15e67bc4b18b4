"""From errors and one-pass numbers to what is said about a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import HeadWeights
from esscher.engine.sampled.layer import METRICS, HeadNumbers, LayerMeasurement
from esscher.math.coupling import CoupledMoments
from esscher.math.statistics import Rate, fit_rate, received_exponent, resampling_counts
from esscher.math.theory import exponents
from esscher.math.theory.empirical import empirical_map_square
from esscher.math.theory.sharp_exponents import Exponents
from esscher.studies.probe.tails import key_tails

#: Relative output errors for which the number of tokens is given.
TOLERANCES = (0.05, 0.1, 0.2)
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


def describe_head(
    numbers: HeadNumbers,
    sizes: Sequence[int],
    seed: int,
    label: Callable[[int], str],
    apart: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """One-pass statistics of a head, as plain numbers, lists and strings.

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
    return {
        "horizon": moments.horizon,
        "frobenius": moments.frobenius,
        "tau": moments.tau,
        "spectrum": moments.spectrum.tolist(),
        "psi": {"two-sided": moments.horizon**2},
        "log_burn_in": moments.log_burn_in,
        "frozen_share": moments.frozen_share(sizes[-1]),
        "khat": tail.to_dict(),
        "ess": {
            name: float(np.quantile(ess, q))
            for name, q in (("p10", 0.1), ("median", 0.5), ("p90", 0.9))
        },
        "sinks": {
            "count": len(order),
            "share": float(numbers.received[order].sum()) if order else 0.0,
            "tokens": [
                {"token": label(int(j)), "share": float(numbers.received[j])}
                for j in order[:LISTED]
            ],
        },
        "tails": key_tails(numbers, seed),
        "norm": numbers.norm,
        "predicted_map": {"error": predicted.tolist(), "standard_error": noise.tolist()},
        "tokens_for": needed,
        "tokens_for_interval": between,
        "predicted": _predictions(asymptotic, tail.exponent, sizes, predicted),
    }


def _predictions(
    asymptotic: Exponents, khat_exponent: float, sizes: Sequence[int], map_error: Array
) -> dict[str, Any]:
    x = np.log(np.asarray(sizes, dtype=np.float64))
    x = x - x.mean()
    slope = float(-(x @ np.log(map_error)) / (x @ x)) if len(sizes) > 1 else None
    return {
        "khat": khat_exponent,
        "range": {"map": slope},
        "sharp": {"mean": asymptotic.mean, "cov": asymptotic.cov, "map": asymptotic.map_rms},
        "paper_reference": asymptotic.paper_reference,
        "paper_bound": asymptotic.paper_bound,
    }


def _predicted_map(
    numbers: HeadNumbers, sizes: Sequence[int], seed: int
) -> tuple[Array, Array, dict[str, float | None], dict[str, list[float | None]]]:
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
    needed: dict[str, float | None] = {}
    between: dict[str, list[float | None]] = {}
    for tolerance in TOLERANCES:
        name = f"{tolerance:g}"
        needed[name] = _crossing(error / numbers.norm, grid, tolerance)
        # None (never) is the largest of them
        found = [_crossing(relative, grid, tolerance) for relative in resampled]
        order = sorted(found, key=lambda n: np.inf if n is None else n)
        between[name] = [order[int(q * (RESAMPLES - 1))] for q in (0.025, 0.975)]
    return error[at], spread[at] / (2 * error[at]), needed, between


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


def one_sided_psi(weights: HeadWeights, hidden: Array) -> list[float] | None:
    """``||Sigma||_2 ||Sigma^{1/2} A||_2^2`` of each head, Sigma the covariance of hidden states.

    None where queries and keys are no linear functions of the hidden states (rotary positions).
    """
    if not weights.linear:
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


def fit_unit(
    measurement: LayerMeasurement, unit: int, stats: dict[str, Any] | None, seed: int
) -> dict[str, Rate]:
    """Fitted rates of a head or of the whole layer, with what was predicted for them."""
    rates = {}
    for m, metric in enumerate(METRICS):
        errors = measurement.errors[m, unit]
        rate = fit_rate(errors, np.asarray(measurement.sizes, dtype=np.float64), seed=seed)
        if stats is not None:
            predicted = stats["predicted"]
            best = predicted["range"]["map"] if metric == "map" else predicted["khat"]
            rate = rate.with_predictions(
                predicted=best,
                sharp=predicted["sharp"][metric],
                paper_reference=predicted["paper_reference"],
                paper_bound=predicted["paper_bound"],
            )
        rates[metric] = rate
    return rates
