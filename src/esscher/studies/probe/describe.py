"""What one pass says about a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import HeadWeights
from esscher.engine.sampled.layer import HeadNumbers
from esscher.math.statistics import received_exponent, resampling_counts
from esscher.math.statistics.records import ByMetric, Ends
from esscher.math.tails.candidates import Cloud
from esscher.math.tails.cloud import cloud_tails
from esscher.math.tails.directions import QUICK
from esscher.math.theory import exponents
from esscher.math.theory.cloud import EFFORT, CloudErrors, Predicted, cloud_errors
from esscher.studies.probe.records import (
    AtContext,
    ByTolerance,
    HeadStatistics,
    PredictedError,
    PredictedExponents,
    Psi,
    Quantiles,
    Sink,
    Sinks,
)

#: Relative output errors for which the number of tokens is given.
TOLERANCES = {"percent_5": 0.05, "percent_10": 0.1, "percent_20": 0.2}
#: Numbers of tokens among which those for a tolerance are looked for: the first, how many, and how
#: many times the cloud's tokens the last is.
FIRST, GRID, BEYOND = 16, 32, 32
#: Queries of a passage from which errors are predicted, however many passages there are.
FEWEST_QUERIES = 64
#: More tokens than that are never looked for.
MOST_TOKENS = 1e8
#: Resamples of the queries, for the interval of the number of tokens.
RESAMPLES = 200
#: Relative size of what predictions leave out, such as what two tokens do together. With it errors
#: of exponents are as large as stated, by root mean square, on MiniLM and SmolLM2 reading Wikipedia
#: (docs/predictions.md has the others).
LEFT_OUT = ByMetric(mean=0.015, cov=0.045, map=0.012)
#: Largest exponent of a number that floats hold.
LARGE = 700.0
#: Sinks that are listed.
LISTED = 5


def describe_head(
    numbers: HeadNumbers,
    sizes: Sequence[int],
    seed: int,
    label: Callable[[int], str],
    *,
    context: int,
    passages: int = 1,
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
    context
        Context length of the model.
    passages
        Passages over which the statistics will be averaged: each takes fewer queries, then.
    delimiters
        Share of the attention that goes to delimiters.
    psi
        One-sided constant of the published bound, where it is known.
    apart
        Keys that are sinks and have been set apart already; found here if left out.
    """
    moments = numbers.coupled
    asymptotic = exponents(moments.horizon)
    one_sided = None if psi is None else exponents(psi**0.5)
    sinks: Any = "auto" if apart is None else apart
    burn_in = float(np.exp(min(moments.log_burn_in, LARGE)))
    tail = received_exponent(numbers.received * len(numbers.tilts), sinks=sinks, burn_in=burn_in)
    keys = len(numbers.keys)
    top = max(BEYOND * keys, context, sizes[-1])
    grid = np.unique([*np.geomspace(FIRST, top, GRID).round().tolist(), context])
    effort = replace(EFFORT, queries=max(EFFORT.queries // passages, FEWEST_QUERIES))
    found = cloud_errors(numbers.cloud, sizes, grid=grid, effort=effort, seed=seed)
    outputs = _MapCurve.of(found, numbers.norm, random_stream(seed, "probe prediction"))
    needed: dict[str, Any] = {name: outputs.crossing(at) for name, at in TOLERANCES.items()}
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
        predicted_error=ByMetric(
            mean=_curve(found.mean, LEFT_OUT.mean),
            cov=_curve(found.cov, LEFT_OUT.cov),
            map=_curve(found.map, LEFT_OUT.map),
        ),
        predicted=PredictedExponents(
            khat=tail.exponent,
            sharp=ByMetric(mean=asymptotic.mean, cov=asymptotic.cov, map=asymptotic.map_rms),
            paper_reference=asymptotic.paper_reference,
            paper_bound=asymptotic.paper_bound,
            paper_reference_one_sided=None if one_sided is None else one_sided.paper_reference,
            paper_bound_one_sided=None if one_sided is None else one_sided.paper_bound,
        ),
        keys=keys,
        tokens_for=ByTolerance(**{name: n for name, (n, _) in needed.items()}),
        tokens_for_interval=ByTolerance(**{name: ends for name, (_, ends) in needed.items()}),
        at_context=outputs.at(context, keys),
    )


def _curve(found: Predicted, left_out: float) -> PredictedError:
    """A predicted error as it is stored: the expected norm, with its standard error.

    To the noise of what is sampled comes what the prediction leaves out, as if it was independent
    at every size.
    """
    exponent, noise = found.slope() or (None, None)
    if noise is not None:
        noise = float(np.hypot(noise, left_out / _spread(found.sizes)))
    return PredictedError(
        error=tuple(found.norm.tolist()),
        standard_error=tuple(np.hypot(found.standard_error, left_out * found.norm).tolist()),
        exponent=exponent,
        exponent_error=noise,
    )


def _spread(sizes: Array) -> float:
    """Root of the sum of squares of ``ln n`` about its mean: a slope's error is one over it."""
    return float(np.linalg.norm(np.log(sizes) - np.log(sizes).mean()))


@dataclass(frozen=True, eq=False)
class _MapCurve:
    """Relative output error at any n, and resamples of it over the queries."""

    grid: Array
    error: Array
    resampled: Array

    @classmethod
    def of(cls, found: CloudErrors, norm: float, rng: np.random.Generator) -> _MapCurve:
        copies = resampling_counts(len(found.weights), RESAMPLES, rng) * found.weights
        copies /= copies.sum(axis=1, keepdims=True)
        squares = found.map_squares
        return cls(
            found.grid,
            np.sqrt(found.weights @ squares) / norm,
            np.sqrt(copies @ squares) / norm,
        )

    def crossing(self, tolerance: float) -> tuple[float | None, Ends]:
        """First number of tokens with at most this error, and its interval; None: beyond MOST."""
        # None (never) is the largest of them
        found = [_crossing(error, self.grid, tolerance) for error in self.resampled]
        order = sorted(found, key=lambda n: np.inf if n is None else n)
        low, high = (order[int(q * (RESAMPLES - 1))] for q in (0.025, 0.975))
        return _crossing(self.error, self.grid, tolerance), (low, high)

    def at(self, n: int, keys: int) -> AtContext:
        """Error at n tokens."""
        i = int(np.searchsorted(self.grid, n))
        ends = np.quantile(self.resampled[:, i], [0.025, 0.975])
        error = float(self.error[i])
        low, high = min(float(ends[0]), error), max(float(ends[1]), error)
        return AtContext(n=n, error=error, interval=(low, high), extrapolated=n > keys)


def _crossing(relative: Array, grid: Array, tolerance: float) -> float | None:
    """First number of tokens with at most this relative error; None beyond ``MOST_TOKENS``.

    Beyond the grid, which goes far beyond the cloud, the error of draws falls like 1/sqrt(n).
    """
    below = np.flatnonzero(relative <= tolerance)
    if not below.size:
        n = float(grid[-1]) * float(relative[-1] / tolerance) ** 2
        return float(np.ceil(n)) if n <= MOST_TOKENS else None
    i = int(below[0])
    if i == 0:
        return float(grid[0])
    x = np.interp(-np.log(tolerance), -np.log(relative[[i - 1, i]]), np.log(grid[[i - 1, i]]))
    return float(np.ceil(np.exp(x) - 1e-9))


def key_tails(numbers: HeadNumbers, seed: int) -> Cloud | None:
    """Measure the keys' worst projection, see :func:`esscher.math.tails.cloud_tails`.

    None where there are too few keys or passages to search in one half and judge on the other.
    """
    try:
        return cloud_tails(numbers.keys, numbers.passages, seed=seed, effort=QUICK).numbers
    except InputError:
        return None


def one_sided_psi(
    weights: HeadWeights, covariance: Array | None, alpha: float = 1.0
) -> list[float] | None:
    """``||Sigma||_2 ||Sigma^{1/2} A||_2^2`` of each head, Sigma the covariance of hidden states.

    ``alpha`` scales A.

    None where queries and keys are no linear functions of the hidden states (rotary positions).
    """
    if covariance is None or not weights.linear:
        return None
    largest = float(np.linalg.eigvalsh(covariance)[-1])
    psi = []
    for w_q, w_k in zip(weights.W_q, weights.W_k, strict=True):
        # A = W_k' W_q has the rank of a head: its norm is that of a d_k x d_k matrix
        product = (w_k @ covariance @ w_k.T) @ (w_q @ w_q.T) * (alpha * weights.scaling) ** 2
        psi.append(largest * float(np.abs(np.linalg.eigvals(product)).max()))
    return psi
