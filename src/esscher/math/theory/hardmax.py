"""Hardmax attention on the line: the error of the mean output, exact, leading and simulated.

Tokens are N(0, 1) and the tilt is infinite: half of the queries pick the largest key, half
the smallest. The mean output is ``(max + min)/2``, its infinite-token limit is 0, and
``|a - b| = 2 max(a, b) - a - b`` gives

    E|max X + min X| / 2 = E max|X| - E max X,

which falls only like a power of ``1/ln n``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim, as_seed, as_sizes
from esscher.math.statistics import LEVEL

#: Probabilities below exp(-CUT) are left out of an integral.
CUT = 40.0
#: Largest n at which all tokens may share a sign with a probability that matters (2^-n).
ONE_SIDED = 128
#: Largest n that numpy's binomial takes.
LARGEST_BINOMIAL = 2.0**63 - 1025
#: Resamples behind the interval of a fitted power of ln n.
RESAMPLES = 1000


def hardmax_leading(sizes: ArrayLike) -> Array:
    """Leading term of the error of the hardmax mean, ``ln(4) / (2 sqrt(2 ln n))``.

    It comes from Gumbel noise at both ends, and ``E|logistic| = ln 4``. The relative correction is
    of order ln ln n / ln n: compare with :func:`hardmax_exact` at any n that occurs.
    """
    return np.asarray((math.log(4.0) / math.sqrt(8.0)) * np.log(as_sizes(sizes)) ** -0.5)


def hardmax_exact(sizes: ArrayLike) -> Array:
    """Exact ``E|mean|`` of the hardmax mean at each size, to about 1e-12; n = 1e15 is fine."""
    return np.array([_expected_mean(float(size)) for size in as_sizes(sizes)])


def panels(breaks: ArrayLike, nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre points and weights on consecutive intervals."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    edges = np.asarray(breaks, dtype=np.float64)
    half, centre = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    return (centre[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()


def _half_normal_log_cdf(x: Array) -> Array:
    """``log P(|X| <= x)``; each branch where it loses nothing."""
    y = x / math.sqrt(2.0)
    small, large = np.minimum(y, 1.0), np.maximum(y, 1.0)
    return np.asarray(
        np.where(y < 1.0, np.log(scipy.special.erf(small)), np.log1p(-scipy.special.erfc(large)))
    )


def _expected_mean(n: float) -> float:
    """``E max|X| - E max X``, both as integrals of distribution functions.

    Written as ``int_0^inf [Phi^n - (2 Phi - 1)^n] + int_0^inf (1 - Phi)^n``: positive terms only.
    """
    low = -float(scipy.special.ndtri_exp(math.log(CUT / n))) if CUT / n < 0.5 else 0.0
    x, w = panels(np.linspace(low, -float(scipy.special.ndtri_exp(-CUT - math.log(n))), 17), 20)
    log_cdf = scipy.special.log_ndtr(x)
    gap = _half_normal_log_cdf(x) - log_cdf
    total = float(w @ (np.exp(n * log_cdf) * -np.expm1(n * gap)))
    if n <= ONE_SIDED:
        x, w = panels(
            np.linspace(0.0, -float(scipy.special.ndtri_exp(-math.log(2.0) - CUT / n)), 9), 20
        )
        total += float(w @ np.exp(n * scipy.special.log_ndtr(-x)))
    return total


def _absolute_means(n: float, count: int, rng: np.random.Generator) -> Array:
    """Replicates of ``|mean|`` at unit scale, from the exact law of the two extremes."""
    if n <= ONE_SIDED:
        # All tokens may share a sign, where the extremes below would not be the right ones.
        x = rng.standard_normal((count, int(n)))
        top, bottom = x.max(axis=1), -x.min(axis=1)
    else:
        if n <= LARGEST_BINOMIAL:
            positive = rng.binomial(int(n), 0.5, count).astype(np.float64)
        else:
            positive = n / 2 + math.sqrt(n) / 2 * rng.standard_normal(count)
        # P(|X| > max of k half normals) is the minimum of k uniforms.
        survivals = [
            -np.expm1(-rng.standard_exponential(k.shape) / k) for k in (positive, n - positive)
        ]
        top, bottom = (-scipy.special.ndtri(survival / 2) for survival in survivals)
    return np.asarray(np.abs(top - bottom) / 2)


@dataclass(frozen=True, eq=False)
class HardmaxCurve:
    """Error of the hardmax mean at each size: leading term, exact, simulated.

    Attributes
    ----------
    sizes, leading, exact
        Numbers of tokens, the leading term as n grows, and the exact values.
    samples
        Simulated ``|mean|``, one row per size, one column per replicate.
    """

    sizes: Array
    leading: Array
    exact: Array
    samples: Array

    @property
    def simulated(self) -> Array:
        """Mean over the replicates."""
        return np.asarray(self.samples.mean(axis=1))

    @property
    def standard_error(self) -> Array:
        """Standard error of the mean over the replicates."""
        return np.asarray(self.samples.std(axis=1, ddof=1) / math.sqrt(self.samples.shape[1]))

    def fit(self, seed: int = 0) -> tuple[float, float, float, float]:
        """Fit ``(ln n)^-g`` by weighted least squares of ln(value) on ln(ln n).

        Returns
        -------
        tuple
            g of the simulated values, the ends of its 95% interval, which resamples replicates size
            by size (sizes are simulated independently), and g of the exact values.
        """
        if len(self.sizes) < 2:
            raise InputError(f"one size, n = {self.sizes[0]:g}, has no exponent; give at least 2")
        x, simulated = np.log(np.log(self.sizes)), self.simulated
        weights = (simulated / self.standard_error) ** 2
        x = x - np.average(x, weights=weights)
        slope = -weights * x / float(weights @ x**2)
        rng = random_stream(seed, "hardmax fit")
        rows = np.arange(len(x))[:, None]
        fits = np.empty(RESAMPLES)
        for index in range(RESAMPLES):
            columns = rng.integers(self.samples.shape[1], size=self.samples.shape)
            fits[index] = slope @ np.log(self.samples[rows, columns].mean(axis=1))
        low, high = np.quantile(fits, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
        return float(slope @ np.log(simulated)), low, high, float(slope @ np.log(self.exact))


def hardmax_curve(sizes: ArrayLike, replicates: int = 100_000, seed: int = 0) -> HardmaxCurve:
    """Error of the hardmax mean of N(0, 1) tokens: leading, exact and simulated.

    Parameters
    ----------
    sizes
        Numbers of tokens, from 2 on; 1e12 costs no more than 1e4.
    replicates, seed
        Replicates of the simulation (at least 2), of which only the extremes are drawn, and its
        seed.
    """
    n = as_sizes(sizes)
    count = as_dim(replicates, "replicates")
    if count < 2:
        raise InputError(f"replicates is {replicates}; a standard error needs at least 2")
    as_seed(seed)
    # One stream per size: a size's numbers do not depend on the other sizes.
    streams = (random_stream(seed, "hardmax", 1, int(size)) for size in n)
    samples = [
        _absolute_means(float(size), count, rng) for size, rng in zip(n, streams, strict=True)
    ]
    return HardmaxCurve(n, hardmax_leading(n), hardmax_exact(n), np.array(samples))
