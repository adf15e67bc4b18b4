"""Predicted curves, asymptotic exponents, and exact constants of the parametric regime."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from esscher.core.errors import InputError, UndefinedError
from esscher.core.validation import Array, as_nonnegative, as_queries
from esscher.math.coupling import Coupling
from esscher.math.heads import Head, as_head
from esscher.math.statistics.intervals import slopes


@dataclass(frozen=True, eq=False)
class Curve:
    """Predicted error at given numbers of tokens.

    Attributes
    ----------
    sizes, error
        Numbers of tokens and predicted errors.
    standard_error
        Monte Carlo standard error of each prediction: zero for exact ones, NaN for those that are
        computed without sampling but approximate.
    method
        How the numbers were computed, in words.
    """

    sizes: Array
    error: Array
    standard_error: Array
    method: str

    def slope(self) -> float:
        """Exponent beta fitted to the curve (least squares in log-log)."""
        if len(self.sizes) < 2:
            raise InputError("a slope needs at least 2 sizes")
        return -float(slopes(np.log(self.sizes), np.log(self.error)))

    def local_slopes(self) -> Array:
        """Exponent between each pair of consecutive sizes."""
        return -np.diff(np.log(self.error)) / np.diff(np.log(self.sizes))


# Asymptotic exponents: error ~ C n^-beta as n grows, for Gaussian tokens.
#
# All of them depend on the head through its horizon H alone; how far n must go before they show is
# another matter (``Prediction.settled_from``), and logarithms are ignored. They rest on a heuristic
# argument: conjectured, not proved. On the line the exact curve of the map has these slopes at
# n = 10^30, and so have the first-order curves of mean and covariance; in eight dimensions not yet.


@dataclass(frozen=True)
class Exponents:
    """Exponents beta of error ~ C n^-beta at a horizon, conjectured ones and published ones.

    Attributes
    ----------
    horizon
        H.
    tail_index
        ``alpha = 1 + 1/H^2``, tail index of received attention (infinite for H = 0).
    mean, cov
        Expected error of mean and covariance of the output: ``min(1/2, 1/(1 + H^2))``.
    map_l1
        Map error, absolute value averaged over queries: ``min(1/2, 1/(1 + H^2))``.
    map_rms
        Map error, root of the mean square over queries and tokens: 1/2 up to ``H^2 = 1/2``, then
        ``(sqrt(1 + 4/H^2) - 1)/4``.
    mean_rms
        Root-mean-square error of the mean: 1/2 up to H = 1, then ``(sqrt(1 + 8/H^2) - 1)/4``.
    paper_reference
        The line ``1/(2(1 + H^2))`` that the paper plots.
    paper_bound
        The proved bound ``1/(2(1 + 32 Psi))``.
    khat
        Shape of the tail of received attention, ``1/alpha = H^2/(1 + H^2)``.
    """

    horizon: float
    tail_index: float
    mean: float
    cov: float
    map_l1: float
    map_rms: float
    mean_rms: float
    paper_reference: float
    paper_bound: float
    khat: float


def exponents(horizon: float, psi: float | None = None) -> Exponents:
    """Conjectured exponents at a horizon; ``psi``, default ``H^2``, is the bound's coupling."""
    h2 = as_nonnegative(horizon, "horizon") ** 2
    coupling = h2 if psi is None else as_nonnegative(psi, "psi")
    sharp = min(0.5, 1 / (1 + h2))
    return Exponents(
        horizon=float(horizon),
        tail_index=1 + 1 / h2 if h2 > 0 else float("inf"),
        mean=sharp,
        cov=sharp,
        map_l1=sharp,
        map_rms=0.5 if h2 <= 0.5 else _root_exponent(4 / h2),
        mean_rms=0.5 if h2 <= 1 else _root_exponent(8 / h2),
        paper_reference=1 / (2 * (1 + h2)),
        paper_bound=1 / (2 * (1 + 32 * coupling)),
        khat=h2 / (1 + h2),
    )


def bounded_exponents(horizon: float) -> Exponents:
    """Exponents of bounded tokens: all of them are 1/2, and received attention has no tail."""
    gaussian = exponents(horizon)
    half = dict.fromkeys(("mean", "cov", "map_l1", "map_rms", "mean_rms"), 0.5)
    return replace(gaussian, tail_index=float("inf"), khat=0.0, **half)


def _root_exponent(ratio: float) -> float:
    """Return ``(sqrt(1 + r) - 1)/4``, in the form that keeps its digits for small r."""
    return ratio / (4 * (float(np.sqrt(1 + ratio)) + 1))


# Expected norms of sums of independent terms, from characteristic functions.
#
# They do not assume that a single term has finite variance: for H > 1 the sums are close to stable
# laws and the second moment says little about the typical size.

#: Step, in ln(frequency), of the rule over frequencies, and its range in units of 1/scale.
LOG_STEP, LOWEST, HIGHEST = 0.08, 1e-5, 5e2
#: Dimension from which a characteristic function is a short series (``hyp0f1`` fails from 300 on).
SERIES = 200


def expected_gaussian_norm(variances: Array) -> float:
    """``E|Z|`` for a centred Gaussian vector with these variances along its principal axes.

    ``E sqrt(Q) = (1/(2 sqrt(pi))) int_0^inf (1 - E exp(-u Q)) u^{-3/2} du`` with
    ``E exp(-u Q) = prod_j (1 + 2 u v_j)^{-1/2}``.
    """
    v = np.maximum(np.asarray(variances, dtype=np.float64), 0.0)
    total = float(v.sum())
    if total == 0:
        return 0.0
    # analytic in ln u and decaying like e^{-|ln u|/2}: the trapezoidal rule is exact to rounding
    step = 0.1
    log_u = np.arange(-75.0, 75.0, step)
    u = np.exp(log_u)
    gap = -np.expm1(-0.5 * np.sum(np.log1p(2 * u[:, None] * (v / total)), axis=1))
    return float(np.sqrt(total) * step * np.sum(gap * np.exp(-0.5 * log_u)) / (2 * np.sqrt(np.pi)))


def expected_isotropic_norm(
    n: float, lengths: Array, masses: Array, dim: int, extra: float = 0.0
) -> float:
    """``E|sum of n independent isotropic vectors|`` of R^dim with the given law of length.

    ``extra`` is the mean square norm of an independent Gaussian vector that is added.

    ``E|S| = C int_0^inf (1 - phi(w)^n) w^-2 dw`` with phi the radial characteristic function of one
    vector and C such that a unit vector has norm 1.
    """
    scale = float(np.sqrt(n * np.dot(masses, lengths**2) + extra))
    if scale == 0:
        return 0.0
    omega = _frequencies(scale)
    gap = np.array([np.dot(masses, radial_gap(w * lengths, dim)) for w in omega])
    # relative accuracy of the gap near 0, the sign of phi away from it
    near = gap < 0.5
    power = np.where(near, np.exp(n * np.log1p(-np.where(near, gap, 0.5))), (1 - gap) ** n)
    body = 1 - power * np.exp(-(omega**2) * extra / (2 * dim))
    body[-1] /= 2  # end of the trapezoidal rule; beyond it body = 1
    constant = (
        2
        / np.sqrt(np.pi)
        * np.exp(scipy.special.gammaln((dim + 1) / 2) - scipy.special.gammaln(dim / 2))
    )
    return float(constant * (LOG_STEP * np.sum(body / omega) + 1 / omega[-1]))


def expected_absolute(n: float, values: Array, masses: Array, shift: float) -> float:
    """``E|shift + sum of n independent centred terms|`` on the line, from the law of one term."""
    centred = values - np.dot(masses, values)
    scale = float(np.sqrt(n * np.dot(masses, centred**2) + shift**2))
    if scale == 0:
        return 0.0
    omega = _frequencies(scale)
    body = np.empty(len(omega))
    for i, w in enumerate(omega):
        phase = w * centred
        real = np.dot(masses, 2 * np.sin(phase / 2) ** 2)
        # x - sin(x), with relative accuracy near 0
        q = phase * phase
        near = phase * q / 6 * (1 - q / 20 * (1 - q / 42 * (1 - q / 72)))
        sine_gap = np.where(np.abs(phase) < 0.1, near, phase - np.sin(phase))
        imaginary = -np.dot(masses, sine_gap)
        # ln(1 - real + i imaginary) with relative accuracy, which numpy's complex log1p lacks
        modulus = 0.5 * np.log1p(max(-2 * real + real**2 + imaginary**2, -1 + 1e-16))
        angle = np.arctan2(imaginary, 1 - real)
        body[i] = 1 - np.exp(n * modulus) * np.cos(n * angle + w * shift)
    body[-1] /= 2  # as above
    return float(2 / np.pi * (LOG_STEP * np.sum(body / omega) + 1 / omega[-1]))


def radial_gap(x: Array, dim: int) -> Array:
    """``1 - E exp(i x U_1)`` for U uniform on the unit sphere of R^dim.

    With relative accuracy near 0: at n = 10^12 tokens a gap of 10^-12 decides.
    """
    if dim == 1:
        return np.asarray(2 * np.sin(x / 2) ** 2)
    q = x * x / 4
    a = dim / 2
    if dim >= SERIES:
        # ln 0F1(a, -q) by Rayleigh's sums over the zeros of the Bessel function; where the next one
        # would count, what is subtracted from 1 vanishes
        y = q / a
        higher = 2 / 3 + y * (5 * a + 6) / (4 * (a + 1) * (a + 3))
        return np.asarray(-np.expm1(-y * (1 + y / (a + 1) * (1 / 2 + y / (a + 2) * higher))))
    near = q / a * (1 - q / (2 * (a + 1)) * (1 - q / (3 * (a + 2)) * (1 - q / (4 * (a + 3)))))
    large = q >= 1e-3
    if large.any():  # at most frequencies nothing is, and this function costs most of all
        near[large] = 1 - scipy.special.hyp0f1(a, -q[large])
    return np.asarray(near)


def _frequencies(scale: float) -> Array:
    count = int(np.log(HIGHEST / LOWEST) / LOG_STEP)
    return np.asarray(LOWEST * np.exp(LOG_STEP * np.arange(count)) / scale)


# Exact constants of the parametric regime: n * E|error|^2 as n grows.
#
# Everything is written in whitened key coordinates in which ``G`` is diagonal (``Coupling``). The
# error of the mean output is, to first order, the average over tokens of
#
#     B a + B psi(eta) + rho(eta) eps,        psi = rho(eta) (I+G)^{-1} (eta - tau),
#
# with ``rho(eta) = N(eta; tau, I+G) / N(eta; 0, I)`` the attention a token receives. That of the
# output covariance is the average of ``L + L3`` with
#
#     L  = B { a_c a_c' - G + rho [ K z z' k + k z z' K - 2k ] } B',     z = eta - tau,
#     L3 = rho ( eps (B k z)' + (B k z) eps' ),
#
# ``k = G (I+G)^{-1}`` and ``K = I - k``. Second moments of these terms are Gaussian integrals:
# under ``rho^2 N(0, I)`` the vector ``z`` is Gaussian with covariance ``P = (I+G)(I-G)^{-1}`` and
# mean ``P tau``, of total mass ``det(I-G^2)^{-1/2} exp(tau'(I-G)^{-1} tau)``, finite exactly for H
# < 1.
#
# With ``queries="tokens"`` the tokens attend to each other. With ``queries="population"`` the query
# law is integrated out and the terms in ``a`` vanish; m independent population queries would add
# their own sampling noise, ``n/m`` times the covariance of the limit's output for the mean.


def select_coupling(head: Head, queries: str) -> Coupling:
    """Return the head's coupling, with queries from the tokens or from the population."""
    coupling = as_head(head).coupling
    return coupling if as_queries(queries) == "tokens" else coupling.population()


def mean_constant(head: Head, queries: str = "population") -> Array:
    """Exact limit of ``n Cov(mean_n)`` for H < 1, any spectrum, any mean tilt.

    Reduces to ``V Sigma^{1/2} [G + M + M' + C] Sigma^{1/2} V'`` of the theory page when values are
    a function of the keys.
    """
    c = select_coupling(head, queries)
    mass = received_square(c)
    g, tau, b = c.variances, c.tau, c.loading
    lean = tau / (1 - g)
    key_part = mass * (np.diag(1 / (1 - g**2)) + np.outer(lean, lean))
    inner = key_part + c.cross + c.cross.T
    if queries == "tokens":
        inner += np.diag(g)
    mixed = b @ c.residual_cross
    covariance = b @ inner @ b.T + mass * c.residual + mixed + mixed.T
    return np.asarray((covariance + covariance.T) / 2)


def cov_constant(head: Head, queries: str = "population") -> float:
    """Exact limit of ``n E ||Cov_n - Cov||_F^2`` for H < 1, any spectrum, any mean tilt."""
    c = select_coupling(head, queries)
    mass = received_square(c)
    g, w = c.variances, c.value_gram
    k, kept = g / (1 + g), 1 / (1 + g)

    # queries: a_c a_c' - G, which averages out over a whole population of queries
    wg = w * g
    query_part = np.trace(wg) ** 2 + np.sum(wg * wg.T) if queries == "tokens" else 0.0

    # queries against keys; z ~ N(0, I+G) under rho, and a_c = X (z + tau) + noise
    y = c.cross * (1 + g)
    wy = w @ y
    u = np.diag(wy)
    weight = np.outer(k, kept) + np.outer(kept, k)
    cross_part = 2 * np.dot(k, u) * np.dot(kept, u) + np.sum(weight * wy * wy.T)
    xg = c.loading @ (c.cross * g) @ c.loading.T
    bs = c.loading @ c.residual_cross
    cross_part += 2 * (np.sum(xg * bs.T) + np.trace(xg) * np.trace(bs))

    # keys: rho [K z z' k + k z z' K - 2k] and rho (eps (B k z)' + ...)
    p = (1 + g) / (1 - g)
    nu = p * c.tau
    kwk, kwk_both, kk = _outer(kept, w, kept), _outer(k, w, k), _outer(kept, w, k)
    kk = (kk + kk.T) / 2
    wkw = w @ (k[:, None] * w)
    mixed = _outer(kept, wkw, k)
    key_part = (
        2 * _two_forms(kk, kk, p, nu)
        + 2 * _two_forms(kwk, kwk_both, p, nu)
        - 8 * _one_form((mixed + mixed.T) / 2, p, nu)
        + 4 * np.sum((w * k) * (w * k).T)
    )
    spread = _outer(k, c.loading.T @ c.residual @ c.loading, k)
    residual_part = 2 * (c.residual_trace * _one_form(kwk_both, p, nu) + _one_form(spread, p, nu))
    return float(query_part + 2 * cross_part + mass * (key_part + residual_part))


def map_constant(head: Head) -> float:
    """Exact limit of ``n E|Gamma_n(q) - Gamma(q)|^2``, averaged over queries, for H^2 < 1/2."""
    c = as_head(head).coupling
    if c.horizon**2 >= 0.5:
        raise UndefinedError(
            f"the map error has no parametric constant at H = {c.horizon:.4g}: it needs H^2 < 1/2"
        )
    g, w = c.variances, c.value_gram
    shrink = 1 - 2 * g
    mass = np.exp(np.sum(c.tau**2 / shrink) - 0.5 * np.sum(np.log(shrink)))
    mean = c.tau / shrink
    total = np.trace(w) + c.residual_trace + np.dot(np.diag(w), g / shrink) + mean @ w @ mean
    return float(mass * total)


def received_square(coupling: Coupling) -> float:
    """``E[rho(eta)^2]``, the second moment of received attention; finite for H < 1 only."""
    g = coupling.variances
    if coupling.horizon >= 1:
        raise UndefinedError(
            f"there is no parametric constant at H = {coupling.horizon:.4g}: received attention "
            "has infinite variance from H = 1 on; use the predicted curves"
        )
    return float(np.exp(np.sum(coupling.tau**2 / (1 - g)) - 0.5 * np.sum(np.log1p(-(g**2)))))


def _outer(left: Array, matrix: Array, right: Array) -> Array:
    """``diag(left) @ matrix @ diag(right)``."""
    return np.asarray(left[:, None] * matrix * right)


def _one_form(a: Array, p: Array, nu: Array) -> float:
    """``E[z'Az]`` for z ~ N(nu, diag(p))."""
    return float(np.dot(np.diag(a), p) + nu @ a @ nu)


def _two_forms(a: Array, b: Array, p: Array, nu: Array) -> float:
    """``E[z'Az z'Bz]`` for z ~ N(nu, diag(p)) and symmetric A, B."""
    ap, bp = a * p, b * p
    return float(
        _one_form(a, p, nu) * _one_form(b, p, nu) + 2 * np.sum(ap * bp.T) + 4 * nu @ ap @ b @ nu
    )
