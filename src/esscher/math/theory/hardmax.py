"""Hardmax attention: the exact error of the mean output at finite n, and its leading term.

Tokens are N(0, scale^2 I_d) and the tilt is infinite: each query picks the key with the largest
projection on its direction. In one dimension the mean output is ``(max + min)/2``, and
``|a - b| = 2 max(a, b) - a - b`` gives

    E|max X + min X| / 2 = E max|X| - E max X.

In d dimensions, with ``h(u) = max_j <X_j, u>`` the support function of the tokens, the key picked
by direction u is ``grad h(u)``. The divergence theorem on the unit ball turns its mean over u into

    mean = E_u[grad h(u)] = d E_u[h(u) u],

the Steiner point of the tokens' convex hull. Its mean square needs only the covariance of the
maxima of n pairs of normals with correlation ``cos(theta)``:

    E|mean|^2 = d^2 E_theta[cos(theta) Cov_n(theta)],  theta the angle of two uniform directions.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_dim, as_positive, as_queries, as_sizes

#: Probabilities below exp(-CUT) are left out of an integral.
CUT = 40.0
#: Nodes of the Gauss rule for the number of positive tokens; exact for n below it.
SIGN_NODES = 48
#: Largest n at which all tokens may share a sign with a probability that matters (2^-n).
ONE_SIDED = 128


def hardmax_exponent(dim: int) -> float:
    """``1/2 + (dim - 1)/4``, the power of ``1/ln n`` with which the hardmax mean decays."""
    return 0.5 + (as_dim(dim) - 1) / 4


def hardmax_leading(sizes: ArrayLike, scale: float = 1.0, dim: int = 1) -> Array:
    """Leading term of the error of the hardmax mean as n grows.

    ``E|mean| ~ ln(4) scale / (2 sqrt(2 ln n))`` for d = 1 (Gumbel noise at both ends, and
    ``E|logistic| = ln 4``); ``sqrt(E|mean|^2) ~ c_d scale (ln n)^{-1/2-(d-1)/4}`` for d > 1, with
    c_d from the Hüsler-Reiss law of maxima in neighbouring directions. The relative correction is
    of order ln ln n / ln n: compare with :func:`hardmax_exact` at any n that occurs.
    """
    n, sigma, d = as_sizes(sizes), as_positive(scale, "scale"), as_dim(dim)
    constant = math.log(4.0) / math.sqrt(8.0) if d == 1 else rms_leading_constant(d)
    return np.asarray(sigma * constant * np.log(n) ** -hardmax_exponent(d))


def hardmax_exact(
    sizes: ArrayLike, scale: float = 1.0, queries: str = "population", dim: int = 1
) -> Array:
    """Exact error of the hardmax mean at each size.

    Parameters
    ----------
    sizes
        Numbers of tokens n, from 2 on; 1e15 and more are fine.
    scale
        Standard deviation of the tokens' coordinates.
    queries
        ``"population"`` (directions independent of the keys) or ``"tokens"``.
    dim
        Dimension d. For d = 1 the result is ``E|mean|``, to about 1e-12; for d > 1 it is the
        root-mean-square ``sqrt(E|mean|^2)`` with population queries, to about 1e-7.
    """
    n, sigma, d = as_sizes(sizes), as_positive(scale, "scale"), as_dim(dim)
    as_queries(queries)
    if d > 1:
        if queries == "tokens":
            raise InputError(
                f"there is no exact error for queries='tokens' in dimension {d}; "
                "use queries='population' or hardmax_curve"
            )
        squares = []
        for size in n:
            theta, w, covariance = _covariances(float(size))
            weight = w * np.sin(theta) ** (d - 2) * np.cos(theta)
            squares.append(float(weight @ covariance) * math.exp(-_log_angle_mass(d)))
        return sigma * np.array([d * math.sqrt(square) for square in squares])
    mean = _mean_population if queries == "population" else _mean_tokens
    return sigma * np.array([mean(float(size)) for size in n])


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


def _mean_population(n: float) -> float:
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


def binomial_rule(n: float) -> tuple[Array, Array]:
    """Gauss rule for Binomial(n, 1/2): values of the count and their probabilities.

    Golub-Welsch with the Krawtchouk polynomials, in units of the standard deviation so that
    n = 1e15 loses nothing; with n + 1 nodes it is the binomial law itself.
    """
    count = int(min(n + 1, SIGN_NODES))
    k = np.arange(1.0, count)
    nodes, vectors = scipy.linalg.eigh_tridiagonal(
        np.zeros(count), np.sqrt(k * (1.0 - (k - 1.0) / n))
    )
    return np.clip(n / 2 + math.sqrt(n) / 2 * nodes, 0.0, n), vectors[0] ** 2


def _mean_tokens(n: float) -> float:
    """``E|(K/n) a - (1 - K/n) b|``: a, b maxima of K and n - K half normals, K binomial."""
    counts, weights = binomial_rule(n)
    kept = weights > 1e-18
    gaps = [_mean_gap(float(k), n - float(k), n) for k in counts[kept]]
    return float(weights[kept] @ np.array(gaps))


def _mean_gap(k: float, l: float, n: float) -> float:
    """``E|A - B| = int F (1 - G) + G (1 - F)`` with A = (k/n) max of k half normals, B alike."""
    # Below the smaller lower end both distribution functions vanish.
    ends = []
    for count in (k, l):
        low = high = 0.0
        if count > 0:  # the maximum of so many half normals lies between these, to exp(-CUT)
            low = max(-float(scipy.special.ndtri(-math.expm1(-CUT / count) / 2)), 0.0)
            high = -float(scipy.special.ndtri_exp(-CUT - math.log(2.0 * max(count, 1.0))))
        ends += [count / n * low, count / n * high]
    edges = np.unique(ends)
    y, w = panels(np.unique(np.linspace(edges[:-1], edges[1:], 17)), 16)
    # A count of 0 leaves the maximum at 0: its distribution function is 1 on the positive axis.
    logs = [c * _half_normal_log_cdf(y * n / c) if c > 0 else np.zeros_like(y) for c in (k, l)]
    cdf = [np.exp(log) for log in logs]
    return float(w @ (cdf[0] * -np.expm1(logs[1]) + cdf[1] * -np.expm1(logs[0])))


@lru_cache(maxsize=256)
def _covariances(n: float) -> tuple[Array, Array, Array]:
    """Angles, weights and covariances of maxima: most of the work, the same in every dimension.

    Angles are graded around ``1/sqrt(ln n)``, where the maxima in two directions decouple, and
    around pi/2, where nearly all angles are in high dimension.
    """
    unit, right = 1.0 / math.sqrt(math.log(n) + 1.0), math.pi / 2
    edges = [0.0, 0.3 * unit, unit, 2 * unit, 3.5 * unit, right - 0.4, right, right + 0.4, math.pi]
    theta, w = panels(np.unique(np.minimum(edges, math.pi)), 10)
    return theta, w, np.array([maxima_covariance(n, float(angle)) for angle in theta])


def maxima_covariance(n: float, theta: float) -> float:
    """Covariance of the maxima of n pairs of normals with correlation ``cos(theta)``.

    Hoeffding's formula ``int int [P(both <= x, y) - P(<= x) P(<= y)]`` in the coordinates
    ``m = (x + y)/2, t = x - y``. By Plackett's identity the joint law differs from independence by
    ``(1/2 pi) int_theta^{pi/2} exp(-m^2/(1+cos a) - t^2/(4(1-cos a))) da``: nothing cancels.
    """
    log_n = math.log(n)
    quantile = scipy.special.ndtri_exp
    low = -float(quantile(math.log(CUT / n))) if CUT / n < 1e-3 else float(quantile(-CUT / n))
    width = -float(quantile(-CUT - log_n)) - low
    # At small angles the joint law changes over |t| ~ theta: without grading the ridge is missed.
    edges = [0.0, theta / 3, theta, 2 * theta, 4 * theta, 8 * theta, width / 8, width / 3, width]
    t, t_weight = panels(np.unique(np.minimum(edges, width)), 8)
    z, z_weight = panels(np.linspace(-1.0, 1.0, 11), 10)
    half = (width - t)[:, None] / 2
    m = low + width / 2 + half * z
    x, y = m + t[:, None] / 2, m - t[:, None] / 2
    # from theta to pi/2 with signed weights, graded where the integrand is narrow
    right = math.pi / 2
    if theta >= right:
        angle, a_weight = panels(np.linspace(right, theta, 6), 8)
        a_weight = -a_weight
    else:
        path = [theta * 2.0**k for k in range(8)]
        path += [theta + step / math.sqrt(log_n + 1.0) for step in (0.25, 0.75, 1.5, 3.0, 5.0)]
        angle, a_weight = panels(np.unique([*np.minimum(path, right), right]), 8)
    cosine = np.cos(angle)
    # exp(-m^2/(1+c)) dominates; n multiplies inside the exponential because 1/n may be 1e-300.
    exponent = -(m[..., None] ** 2) / (1 + cosine) - t[:, None, None] ** 2 / (4 * (1 - cosine))
    excess = np.exp(log_n + exponent) @ a_weight / (2 * math.pi)
    log_single = scipy.special.log_ndtr(x) + scipy.special.log_ndtr(y)
    ratio = np.maximum(excess / n * np.exp(-log_single), -1.0 + 1e-16)
    gain = n * np.log1p(ratio)
    single = np.exp(n * log_single)
    joint = np.exp(np.minimum(n * log_single + gain, 0.0))
    surplus = np.where(gain > 0.5, joint - single, single * np.expm1(np.minimum(gain, 0.5)))
    return 2.0 * float(np.sum(t_weight[:, None] * half * z_weight * surplus))


def _log_angle_mass(dim: int) -> float:
    """``log int_0^pi sin(theta)^{dim-2}``: the angle of two uniform directions, normalised."""
    gammas = scipy.special.gammaln((dim - 1) / 2) - scipy.special.gammaln(dim / 2)
    return float(math.log(math.pi) / 2 + gammas)


@lru_cache(maxsize=64)
def rms_leading_constant(dim: int) -> float:
    """``c`` in ``sqrt(E|mean|^2) ~ c (ln n)^{-1/2-(dim-1)/4}`` for unit scale, dim > 1.

    Maxima at angle theta have the Hüsler-Reiss law with ``lambda = theta sqrt(ln n / 2)``, whose
    Pickands function A gives ``Cov(lambda) = -int log A`` (Gumbel margins, in units of
    1/(2 ln n)); hence ``c^2 = d^2 2^{(d-3)/2} int Cov(lambda) lambda^{d-2} / int sin^{d-2}``.
    """
    # Cov decays like exp(-lambda^2/2), so lambda^{d-2} moves the bulk to about sqrt(d).
    reach = 12.0 + 2.0 * math.sqrt(dim)
    total = 0.0
    points, weights = panels([0.0, 0.1, 0.3, 0.6, 1, 2, 3, 5, 8, *np.linspace(12, reach, 3)], 16)
    for lam, weight in zip(points, weights, strict=True):
        turn = 2 * lam * lam
        edges = [
            0.0,
            turn / 4,
            turn,
            2 * lam,
            turn + 6 * lam,
            turn + 14 * lam,
            1.0,
            4.0,
            12.0,
            45.0,
        ]
        t, w = panels(np.unique(edges), 16)
        share, rest = scipy.special.expit(t), scipy.special.expit(-t)
        below, above = scipy.special.ndtr([-lam - t / (2 * lam), t / (2 * lam) - lam])
        deficit = share * below + rest * above
        total -= weight * lam ** (dim - 2) * 2.0 * float(w @ np.log1p(-deficit))
    log_factor = (dim - 3) / 2 * math.log(2.0) - _log_angle_mass(dim)
    return dim * math.sqrt(total * math.exp(log_factor))
