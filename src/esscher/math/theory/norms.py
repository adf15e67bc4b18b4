"""Expected norms of sums of independent terms, from characteristic functions.

They do not assume that a single term has finite variance: for H > 1 the sums are close to stable
laws and the second moment says little about the typical size.
"""

from __future__ import annotations

import numpy as np
import scipy

from esscher.core.validation import Array

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
        imaginary = -np.dot(masses, _sine_gap(phase))
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


def _sine_gap(x: Array) -> Array:
    """``x - sin(x)``, with relative accuracy near 0."""
    q = x * x
    near = x * q / 6 * (1 - q / 20 * (1 - q / 42 * (1 - q / 72)))
    return np.where(np.abs(x) < 0.1, near, x - np.sin(x))


def _frequencies(scale: float) -> Array:
    count = int(np.log(HIGHEST / LOWEST) / LOG_STEP)
    return np.asarray(LOWEST * np.exp(LOG_STEP * np.arange(count)) / scale)
