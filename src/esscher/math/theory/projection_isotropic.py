"""The projection of ``moment_curves`` for isotropic heads, deterministic: everything is radial.

For ``M = h I`` the influence of a token depends on its norm r alone: it is averaged over the tilt
strength s of the query and the cosine c between query and token by quadrature.
"""

from __future__ import annotations

import numpy as np
from scipy import special
from scipy.interpolate import CubicSpline

from esscher.core.validation import Array
from esscher.math.coupling import Coupling
from esscher.math.theory.key_table import Expectations, KeyTable
from esscher.math.theory.norms import expected_absolute, expected_isotropic_norm
from esscher.math.theory.softmax_mean import STRONGEST, laplace_table
from esscher.math.theory.tilt_law import TiltLaw

#: Nodes of the rules over the norm of the fixed key and over its cosine with the tilt.
RADIAL_NODES, ANGLE_NODES = 64, 160
#: Nodes of the midpoint rule over norms for oscillating integrands.
FINE_NODES = 1501
#: Trapezoidal step of the Laplace integrals: a relative error of 1e-5 is far below what the
#: projection itself neglects.
STEP = 0.7
#: Tilt strengths with less mass than this do not matter.
LIGHT = 1e-14


def isotropic_errors(
    coupling: Coupling, isotropy: tuple[float, float], n: Array, queries: str
) -> dict[str, Array]:
    """Return predicted ``mean``, ``mean_rms``, ``cov_rms`` and, in one dimension, ``cov``."""
    h, gain = isotropy
    d = len(coupling.tau)
    low, high = _norm_range(d, float(n.max()))
    x, w = np.polynomial.legendre.leggauss(RADIAL_NODES)
    norms, masses = _norm_rule(d, low + (high - low) * (x + 1) / 2, w)
    mean, radial, transverse = _influence(coupling, h, n, norms, queries)
    midpoints = low + (high - low) * (np.arange(FINE_NODES) + 0.5) / FINE_NODES
    fine, fine_masses = _norm_rule(d, midpoints, np.ones(FINE_NODES))

    rows: dict[str, list[float]] = {"mean": [], "mean_rms": [], "cov_rms": [], "cov": []}
    for i, size in enumerate(n):
        square = float(size * np.dot(masses, mean[:, i] ** 2))
        rows["mean_rms"].append(float(np.sqrt(gain * square)))
        lengths = CubicSpline(norms, mean[:, i])(fine)
        rows["mean"].append(
            float(np.sqrt(gain)) * expected_isotropic_norm(size, lengths, fine_masses, d)
        )
        # the covariance is taken about the sample's own mean, which takes h h' off each token's
        # influence and n E[h h'] off the whole
        along = radial[:, i] - mean[:, i] ** 2
        level = float(np.dot(masses, along + (d - 1) * transverse[:, i])) / d
        bias = level - square * (1 - 1 / size) / d
        spread = (along - level) ** 2 + (d - 1) * (transverse[:, i] - level) ** 2
        noise = float(size * np.dot(masses, spread))
        rows["cov_rms"].append(gain * float(np.sqrt(d * bias**2 + noise)))
        if d == 1:
            terms = CubicSpline(norms, along)(fine)
            rows["cov"].append(gain * expected_absolute(size, terms, fine_masses, bias))
    return {name: np.array(values) for name, values in rows.items() if values}


def _norm_range(d: int, largest_n: float) -> tuple[float, float]:
    """Norms of a standard normal vector that matter, out to the extremes of n draws."""
    from scipy import stats  # here: it takes half a second

    law = stats.chi2(d)
    low = 0.0 if d <= 3 else float(np.sqrt(law.ppf(1e-14)))
    return low, float(np.sqrt(law.isf(max(1e-9 / largest_n, 1e-300))))


def _norm_rule(d: int, nodes: Array, weights: Array) -> tuple[Array, Array]:
    """Turn a rule for integrals over norms into one for averages over a standard normal vector."""
    from scipy import stats  # here: it takes half a second

    masses = np.exp(np.log(2 * nodes) + stats.chi2(d).logpdf(nodes * nodes)) * weights
    return nodes, masses / masses.sum()


def _cosine_rule(d: int) -> tuple[Array, Array]:
    """Rule for the cosine between two independent directions of R^d."""
    if d == 1:
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    power = (d - 3) / 2
    x, w = special.roots_jacobi(ANGLE_NODES, power, power)
    return np.asarray(x), np.asarray(w / w.sum())


def _influence(
    coupling: Coupling, h: float, n: Array, norms: Array, queries: str
) -> tuple[Array, Array, Array]:
    """Influence of a token of each norm (first axis) at each size (second axis).

    Component of the mean along the token, and eigenvalues along and across it of the conditional
    expectation of the output's second moment minus its limit.
    """
    d = len(coupling.tau)
    tokens = queries == "tokens"
    rule = TiltLaw(coupling).rule(float(n.max()))
    cosines, angle_masses = _cosine_rule(d)
    total = np.zeros((3, len(norms), len(n)))
    for s, mass in zip(rule.strengths, rule.weights, strict=True):
        if mass < LIGHT:
            continue
        strength = min(float(s), STRONGEST)
        own_key = float(s) / h if tokens else 0.0
        table = KeyTable(
            laplace_table(strength, float(n.max()), STEP),
            n,
            strength * own_key if tokens else None,
        )
        log_weights = strength * norms[:, None] * cosines - strength**2 / 2
        parts = _conditional(
            table(log_weights),
            float(s),
            own_key,
            norms[:, None, None],
            cosines[None, :, None],
            d,
        )
        total += mass * np.stack([np.einsum("rcn,c->rn", x, angle_masses) for x in parts])
    if tokens:
        total = total * (n - 1) / n + _own_query(h, n, norms, d) / n
    return total[0], total[1], total[2]


def _conditional(
    given: Expectations, s: float, own_key: float, r: Array, c: Array, d: int
) -> tuple[Array, Array, Array]:
    """Error given a key of norm r at cosine c to a tilt of strength s.

    The query's own key lies on the tilt's axis, at ``own_key``. Returns the component of the error
    along the fixed key, then the eigenvalues along and across it of
    ``E[Gamma_n Gamma_n'] - a a'``, averaged over rotations about it.
    """
    lean = own_key - s
    pull = given.own * lean + given.rest
    key_pull = given.key_own * lean + given.key_rest
    along = given.own_own * lean**2 + 2 * given.own_rest * lean + given.along
    mean = given.key * (r - s * c) + pull * c
    # coefficients of eta eta', of (eta u' + u eta') and of u u' - I's share across the tilt
    key_tilt = key_pull + s * given.key - s * given.key_key
    tilt_tilt = (
        s * s * given.key_key
        - 2 * s * (key_pull + s * given.key)
        + along
        + 2 * s * pull
        - given.across
    )
    radial = given.key_key * r * r + 2 * key_tilt * r * c + tilt_tilt * c * c + given.across
    transverse = tilt_tilt * (1 - c * c) / max(d - 1, 1) + given.across
    return mean, radial, transverse


def _own_query(h: float, n: Array, norms: Array, d: int) -> Array:
    """Contribution of a token as a query: ``Gamma_n`` and ``Gamma_n Gamma_n' - G``."""
    out = np.empty((3, len(norms), len(n)))
    sign = 1.0 if h >= 0 else -1.0
    for i, r in enumerate(norms):
        s = abs(h) * float(r)
        strength = min(s, STRONGEST)
        table = KeyTable(laplace_table(strength, float(n.max()), STEP), n, None)
        given = table(np.array(strength * sign * r - strength**2 / 2))
        mean, radial, transverse = _conditional(given, s, 0.0, np.array(r), np.array(sign), d)
        out[:, i] = h * r + mean, h * h * (r * r - 1) + radial, transverse - h * h
    return out
