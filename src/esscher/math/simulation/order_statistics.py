"""The largest of n standard normals, and what the others add to a softmax, at any n.

Among n keys projected on the direction of a query, ``x_1..x_n`` standard normal, the K largest are
drawn exactly: their survival probabilities are ``Gamma_i / Gamma_{n+1}``, with ``Gamma_i`` sums of
independent exponentials, and ``Gamma_{n+1} - Gamma_K`` is one gamma variable. Survival
probabilities, not probabilities, go through the normal quantile, so that nothing cancels at
n = 10^12 or 10^30. Given the smallest of the K, the cut c, the other n - K keys (the BULK) are
independent normals below c. Their sums of weights ``w = exp(s x)``, of ``y = (x - s) w`` and of
``w^2`` are drawn as Gaussian variables with the exact truncated means and covariances; the mean of
y is in closed form, ``-phi(c)/Phi(c)`` in units of ``exp(s c)``, because the error is a small
difference from it. Everything else is a rule over ``t = c - x``.

What is approximate is the Gaussian law of the bulk's sums, and it is measured:
:func:`bulk_non_normality`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from esscher.core.errors import UndefinedError
from esscher.core.validation import Array

#: Double exponential rule ``t = exp(v - exp(-v))`` over the depth t below the cut: 1e-11 on the
#: moments for strengths up to 1e4, cuts up to 40.
RULE_LOW, RULE_HIGH, RULE_STEP = -3.2, 4.1, 0.045
#: Largest n that numpy's binomial takes.
LARGEST_BINOMIAL = 2.0**63 - 1025
#: Fewest and most extremes that are drawn; K doubles in between.
FEWEST, MOST = 64, 1 << 17


def _rule() -> tuple[Array, Array]:
    v = np.arange(RULE_LOW, RULE_HIGH, RULE_STEP)
    depth = np.exp(v - np.exp(-v))
    return depth, RULE_STEP * depth * (1 + np.exp(-v))


DEPTHS, DEPTH_WEIGHTS = _rule()


def largest_normals(n: float, count: int, first: Array, rng: np.random.Generator) -> Array:
    """The ``count`` largest of n standard normals, largest first, one sample per row.

    Parameters
    ----------
    first
        ``Gamma_1`` of each row: standard exponential, or of another law for importance sampling.
        The expected number of keys above the largest one is ``Gamma_1``, nearly.
    """
    gaps = rng.standard_exponential((len(first), count))
    gaps[:, 0] = first
    arrivals = np.cumsum(gaps, axis=1, out=gaps)
    # n + 1 - count further exponentials, as one gamma variable
    total = arrivals[:, -1] + rng.standard_gamma(n + 1 - count, len(first))
    arrivals /= total[:, None]
    return np.asarray(-scipy.special.ndtri(arrivals))


class BulkMoments(NamedTuple):
    """Moments of one bulk key, in units of ``exp(s c)`` per weight, one row per (cut, strength).

    ``mean`` and ``covariance`` are those of ``(w, y, w^2)``; ``third`` has the absolute central
    third moments of w and y.
    """

    mean: Array
    covariance: Array
    third: Array


def bulk_moments(cuts: Array, strengths: Array, third: bool = False) -> BulkMoments:
    """Moments of the weight of a standard normal key below a cut, at given tilt strengths."""
    c, s = cuts[:, None], strengths[:, None]
    # density of x below the cut, as a function of the depth t: phi(c - t)/Phi(c)
    density = np.exp(c * DEPTHS - 0.5 * DEPTHS**2) * DEPTH_WEIGHTS
    mass = density.sum(axis=1, keepdims=True)
    density /= mass
    weight = np.exp(-s * DEPTHS)
    terms = np.stack([weight, (c - s - DEPTHS) * weight, weight * weight])
    mean = np.sum(density * terms, axis=2)
    # d/dt exp((c-s)t - t^2/2) = (c-s-t) exp(...): the integral of y is -1 without a rule
    mean[1] = -1.0 / mass[:, 0]
    centred = terms - mean[:, :, None]
    covariance = np.einsum("irt,jrt->rij", density * centred, centred)
    cubes = (
        np.sum(density * np.abs(centred[:2]) ** 3, axis=2).T if third else np.zeros((len(cuts), 2))
    )
    return BulkMoments(mean.T, covariance, cubes)


class Sums(NamedTuple):
    """Softmax sums over n keys, one row per query, relative to the weight of the largest key.

    ``weight`` is ``sum w``, ``error`` is ``sum (x - s) w``, ``square`` is ``sum w^2``; ``largest``
    is the largest projection.
    """

    weight: Array
    error: Array
    square: Array
    largest: Array


def softmax_sums(
    n: float, strengths: Array, count: int, first: Array, rng: np.random.Generator
) -> Sums:
    """Sums over n keys for queries of given strengths, each over its own n keys.

    Parameters
    ----------
    count
        Extremes to draw, at most n. With n of them nothing is approximate.
    first
        See :func:`largest_normals`.
    """
    x = largest_normals(n, count, first, rng)
    top, cut = x[:, 0], x[:, -1]
    s = strengths[:, None]
    weights = np.exp(s * (x - top[:, None]))
    weight = weights.sum(axis=1)
    error = np.sum((x - s) * weights, axis=1)
    square = np.sum(weights * weights, axis=1)
    rest = n - count
    if rest > 0:
        moments = bulk_moments(cut, strengths)
        noise = _correlated(moments.covariance, rng.standard_normal((len(cut), 3)))
        bulk = rest * moments.mean + np.sqrt(rest) * noise
        scale = np.exp(-strengths * (top - cut))
        weight += scale * bulk[:, 0]
        error += scale * bulk[:, 1]
        square += scale * scale * np.maximum(bulk[:, 2], 0.0)
        if np.any(weight <= 0):  # bulk sums lie tens of standard deviations above 0
            raise UndefinedError(f"a bulk of n = {n:g} keys has no weight; draw more extremes")
    return Sums(weight, error, square, top)


def _correlated(covariance: Array, noise: Array) -> Array:
    """Gaussian rows with the given covariances (rounding may leave them slightly indefinite)."""
    scale = np.sqrt(np.maximum(np.einsum("rii->ri", covariance), 1e-300))
    correlation = covariance / (scale[:, :, None] * scale[:, None, :])
    values, vectors = np.linalg.eigh(correlation)
    roots = np.sqrt(np.maximum(values, 0.0))
    return np.asarray(scale * np.einsum("rij,rj,rj->ri", vectors, roots, noise))


def bulk_non_normality(n: float, strengths: Array, count: int) -> Array:
    """How far the bulk's sums are from Gaussian, and how much of the error they carry.

    The Lyapunov ratio ``E|xi|^3 / (sigma^3 sqrt(n - K))`` of w and of y, the larger of the two,
    times the bulk's share of the spread of the error sum, ``sigma_b / (sigma_b + top)`` with
    ``top = max(1, |x_1 - s|) exp(s x_1)`` at ``x_1`` with one key above it expected. The
    Berry-Esseen theorem bounds the Kolmogorov distance of each bulk sum from its Gaussian by 0.469
    times the ratio. The cut is taken where K keys above it are expected.
    """
    rest = n - count
    if rest <= 0:
        return np.zeros(len(strengths))
    cut, top = (-float(scipy.special.ndtri(k / n)) for k in (count, 1.0))
    moments = bulk_moments(np.full(len(strengths), cut), strengths, third=True)
    spread = np.sqrt(np.einsum("rii->ri", moments.covariance)[:, :2])
    varies = spread > 0  # without tilt the weights do not
    safe = np.where(varies, spread, 1.0)
    ratio = np.where(varies, moments.third / safe**3, 0.0) / np.sqrt(rest)
    log_top = strengths * (top - cut) + np.log(np.maximum(1.0, np.abs(top - strengths)))
    log_bulk = 0.5 * np.log(rest) + np.log(safe[:, 1])
    share = np.exp(-np.logaddexp(0.0, log_top - log_bulk))
    return np.asarray(ratio.max(axis=1) * share)


def extremes_needed(n: float, strengths: Array, tolerance: float) -> tuple[int, float]:
    """Number of extremes that keeps the bulk's non-normality below ``tolerance``, and its value.

    All n keys if that is not more than twice as many.
    """
    count = FEWEST
    while count < n / 2:
        worst = float(np.max(bulk_non_normality(n, strengths, count)))
        if worst <= tolerance:
            return count, worst
        count *= 2
        if count > MOST:
            raise UndefinedError(
                f"at n = {n:g} even {MOST} extremes leave the bulk's non-normality at {worst:.2g}, "
                f"above {tolerance:g}; raise the tolerance"
            )
    return int(n), 0.0


def log_survival(x: Array) -> Array:
    """``ln P(normal > x)``, far into the tail."""
    return np.asarray(scipy.special.log_ndtr(-x))
