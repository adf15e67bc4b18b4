"""Simulated error of the mean output in one dimension, at n far beyond memory.

All queries share the tokens, so the extremes on both sides are drawn once per replicate and every
query is answered from them. The bulk between the cuts adds, as functions of the tilt a,

    W(a) = sum_j exp(a x_j),      Y(a) = sum_j (x_j - a) exp(a x_j),

drawn as ONE Gaussian random function with the exact truncated mean and covariance: white noise on
the nodes of a rule over the bulk. The mean over the query law N(tau, H^2) is a trapezoidal rule,
which converges exponentially: the output is analytic in a.

Rare large tokens that carry the mean square are planted: with probability one half one of the n
tokens is replaced by an extreme that is log-uniform in its expected rank, and the replicate is
weighted by ``1/(1/2 + 1/2 sum_j 1/(v_j Lambda))``, v_j the expected rank of a drawn token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_positive, as_sizes
from esscher.math.heads import Head
from esscher.math.simulation.extremes import (
    LARGEST_BINOMIAL,
    TOLERANCE,
    SimulatedErrors,
    extremes_needed,
    log_survival,
    simulated_replicates,
    size_mark,
    weighted_mean,
)

#: Largest step of the rule over tilts, nodes per standard deviation, and its reach in those.
#: Outputs are analytic within pi/gap of the real axis, gap the distance of the two largest keys;
#: with a gap of 4 the error of the rule is below e^-24.
TILT_STEP, TILT_NODES, TILT_REACH = 0.2, 2.0, 8.0
#: Panel width and points per panel of the rule over the bulk.
PANEL, POINTS = 0.5, 16
#: Planted tokens reach this far, in standard deviations, beyond those that carry the mean square.
MARGIN = 3.0
#: Smallest log-range of planted ranks, for small n.
SHORTEST = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedMean(SimulatedErrors):
    """Simulated error of the mean output at each size, queries from the population.

    Fields as in :class:`SimulatedErrors`; ``extremes`` counts the tokens drawn on both sides.
    """

    columns = (
        "mean",
        "mean_error",
        "rms",
        "rms_error",
        "extremes",
        "non_normality",
        "largest_share",
    )

    def __repr__(self) -> str:
        rows = [f"simulated error of the mean output, {self.replicates} replicates per size"]
        columns = (self.sizes, self.mean, self.mean_error, self.rms, self.rms_error)
        for n, mean, mean_error, rms, rms_error in zip(*columns, strict=True):
            rows.append(
                f"  n = {n:<8.4g} mean {mean:.4g} +- {mean_error:.2g}, "
                f"rms {rms:.4g} +- {rms_error:.2g}"
            )
        return "\n".join(rows)


def simulate_mean(
    head: Head,
    sizes: ArrayLike,
    replicates: int = 1000,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> SimulatedMean:
    """Simulate the error of the mean output over the query law, for keys of one dimension.

    Parameters
    ----------
    head
        A head over Gaussian tokens whose keys have one dimension and whose values follow them.
    sizes
        Numbers of tokens, from 2 to 1e300; sizes are simulated independently.
    replicates, seed
        Samples of n tokens per size, and their seed.
    tolerance
        Bound on the bulk's non-normality, which sets the number of extremes drawn.

    Raises
    ------
    UndefinedError
        In more than one dimension: each direction has its own extremes.
    """
    n = as_sizes(sizes)
    count = simulated_replicates(head, replicates)
    coupling = head.coupling.population()
    if len(coupling.variances) != 1 or coupling.residual.any():
        raise UndefinedError(
            "the error of the mean output is simulated from extremes in one dimension only: "
            "in more, every direction has extremes of its own"
        )
    if coupling.horizon == 0:
        raise UndefinedError("the horizon is 0: every query is the same; simulate the map instead")
    gain = math.sqrt(float(coupling.value_gram[0, 0]))
    limit = as_positive(tolerance, "tolerance")
    rows = [
        _one_size(
            coupling.horizon, float(coupling.tau[0]), float(size), count, int(seed), limit, gain
        )
        for size in n
    ]
    table = dict(zip(SimulatedMean.columns, np.array(rows).T, strict=True))
    return SimulatedMean(
        sizes=n, queries="population", replicates=count, tolerance=limit, seed=int(seed), **table
    )


def _one_size(
    horizon: float, tau: float, n: float, count: int, seed: int, tolerance: float, gain: float
) -> tuple[float, ...]:
    """Every number of ``SimulatedMean.columns`` at one size."""
    bulk = Bulk(horizon, tau, n, tolerance)
    rng = random_stream(seed, "mean extremes", size_mark(n))
    errors, weights = np.empty(count), np.empty(count)
    for row in range(count):
        errors[row], weights[row] = bulk.mean_error(rng)
    errors *= gain
    value, spread = weighted_mean(errors**2, weights)
    rms = math.sqrt(value)
    share = float(np.max(weights * errors**2) / np.sum(weights * errors**2))
    return (
        *weighted_mean(np.abs(errors), weights),
        *(rms, spread / (2 * rms), bulk.expected, bulk.non_normality, share),
    )


class Bulk:
    """All that replicates at one n have in common: tilts, cuts, the bulk's mean and noise."""

    def __init__(self, horizon: float, tau: float, n: float, tolerance: float) -> None:
        self.n = n
        step = min(TILT_STEP, horizon / TILT_NODES)
        steps = math.ceil(TILT_REACH * horizon / step)
        self.tilts = tau + step * np.arange(-steps, steps + 1)
        density = np.exp(-0.5 * ((self.tilts - tau) / horizon) ** 2)
        self.shares = density / density.sum()
        edge = -float(scipy.special.ndtri(1 / n))
        # units of the weights at each tilt, so that nothing overflows
        strengths = np.abs(self.tilts)
        self.units = np.where(strengths < edge, 0.5 * self.tilts**2, strengths * edge)
        probe = np.linspace(0.0, float(np.quantile(strengths, 0.98)), 25)
        drawn, self.non_normality = extremes_needed(n, probe, tolerance)
        # K extremes on either side; all n tokens lie beyond a cut of 0
        self.outside = min(2 * drawn / n, 1.0) if drawn < n else 1.0
        self.cut = -float(scipy.special.ndtri(self.outside / 2)) if self.outside < 1 else 0.0
        self.expected = n * self.outside
        level = max(horizon, 1.0)
        x2 = (1 + 8 / level**2) ** -0.5
        reach = (1 + x2) / (2 * math.sqrt(x2)) * math.sqrt(2 * math.log(n)) + MARGIN
        log_floor = math.log(2 * n) + float(log_survival(np.array(reach)))
        self.log_high = math.log(self.expected)
        self.depth = max(self.log_high - log_floor, SHORTEST)
        if self.cut > 0:
            self._fill()

    def _fill(self) -> None:
        """Mean and noise of the sums over one bulk token, at every tilt."""
        a, c = self.tilts, self.cut
        panels = math.ceil(2 * c / PANEL)
        edges = np.linspace(-c, c, panels + 1)
        nodes, weights = np.polynomial.legendre.leggauss(POINTS)
        half = np.diff(edges)[:, None] / 2
        x = ((edges[:-1] + edges[1:])[:, None] / 2 + half * nodes).ravel()
        density = (half * weights).ravel() * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        inside = float(scipy.special.ndtr(c) - scipy.special.ndtr(-c))
        self.probabilities = density / inside
        values = np.exp(np.multiply.outer(x, a) - self.units)
        ends = np.exp(-a * c - self.units) - np.exp(a * c - self.units)
        # the mean of y in closed form: the error is a small difference from it
        self.mean_y = ends * math.exp(-0.5 * c * c) / math.sqrt(2 * math.pi) / inside
        self.mean_w = self.probabilities @ values
        root = np.sqrt(self.probabilities)[:, None]
        self.noise_w = root * (values - self.mean_w)
        self.noise_y = root * ((x[:, None] - a) * values - self.mean_y)

    def draw_extremes(self, rng: np.random.Generator) -> tuple[Array, float]:
        """Tokens beyond the cuts, and the importance weight of the replicate."""
        planted = rng.random() < 0.5
        others = self.n - 1 if planted else self.n
        if others <= LARGEST_BINOMIAL:
            number = int(rng.binomial(int(others), self.outside))
        else:
            number = int(rng.poisson(others * self.outside))
        # 1 - U lies in (0, 1]: never a rank of 0, whose token would be infinite
        ranks = self.expected * (1.0 - rng.random(number))
        if planted:
            ranks = np.append(ranks, math.exp(self.log_high - self.depth * rng.random()))
        low = math.exp(self.log_high - self.depth)
        ratio = 0.5 + 0.5 * float(np.sum(1 / ranks[ranks > low])) / self.depth
        x = -scipy.special.ndtri(ranks / (2 * self.n))
        return np.where(rng.random(len(x)) < 0.5, x, -x), 1 / ratio

    def mean_error(self, rng: np.random.Generator) -> tuple[float, float]:
        """Error of the mean output over the query law on one sample, and its weight."""
        x, weight = self.draw_extremes(rng)
        values = np.exp(np.multiply.outer(x, self.tilts) - self.units)
        w = values.sum(axis=0)
        y = x @ values - self.tilts * w
        rest = self.n - len(x)
        if self.cut > 0 and rest > 0:
            noise = math.sqrt(rest) * rng.standard_normal(len(self.probabilities))
            w = w + rest * self.mean_w + noise @ self.noise_w
            y = y + rest * self.mean_y + noise @ self.noise_y
        return float(self.shares @ (y / w)), weight
