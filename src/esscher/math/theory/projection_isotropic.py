"""The projection of ``moment_curves`` for isotropic heads, deterministic: everything is radial.

For ``M = h I`` the influence of a token depends on its norm r alone: it is averaged over the tilt
strength s of the query and the cosine c between query and token by quadrature. On the line the mean
has its second order too (``pair_influence``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.coupling import Coupling
from esscher.math.theory.key_table import KeyTable
from esscher.math.theory.norms import expected_absolute, expected_isotropic_norm
from esscher.math.theory.pair_influence import NODES, pair_variance
from esscher.math.theory.softmax_mean import STRONGEST
from esscher.math.theory.spline import Spline
from esscher.math.theory.tilt_law import TiltLaw

#: Nodes of the rule over the norm of the fixed key.
RADIAL_NODES = 128
#: Nodes of the rule over its cosine with the tilt come in blocks, so many per unit of its largest
#: logit: attention goes from a little to all of it within a few units.
ANGLE_NODES, PER_LOGIT = 160, 1.6
#: Dimension from which that rule has equal angles (in fewer, the density at the poles is not flat).
EQUAL_ANGLES = 24
#: Nodes of the midpoint rule over norms for oscillating integrands.
FINE_NODES = 1501
#: Trapezoidal step of the Laplace integrals. At a horizon h the covariance is a difference of terms
#: that are 1/h times as large: a relative error of 1e-6 leaves three digits at h = 0.001.
STEP = 0.5
#: Tilt strengths with less mass than this, times n, do not matter: a rare query may give a token
#: all its attention, common ones a share of 1/n.
LIGHT = 1e-14
#: Largest n at which the variance from pairs of tokens is computed.
LARGEST_PAIRS = 1e12


def isotropic_errors(
    coupling: Coupling, isotropy: tuple[float, float], n: Array, queries: str
) -> dict[str, Array]:
    """Return predicted ``mean``, ``mean_rms``, ``cov_rms`` and, in one dimension, ``cov``."""
    h, gain = isotropy
    d = len(coupling.tau)
    low, high = _norm_range(d, float(n.max()))
    x, w = np.polynomial.legendre.leggauss(RADIAL_NODES)
    norms, masses = _norm_rule(d, low + (high - low) * (x + 1) / 2, w)
    mean, radial, transverse, levels = _influence(coupling, h, n, norms, queries)
    midpoints = low + (high - low) * (np.arange(FINE_NODES) + 0.5) / FINE_NODES
    fine, fine_masses = _norm_rule(d, midpoints, np.ones(FINE_NODES))

    pairs = np.zeros(len(n))
    if d == 1:
        pairs = _pair_shares(coupling, h, n, queries) * n * (masses @ mean**2)
    rows: dict[str, list[float]] = {"mean": [], "mean_rms": [], "cov_rms": [], "cov": []}
    for i, size in enumerate(n):
        square = float(size * np.dot(masses, mean[:, i] ** 2))
        rows["mean_rms"].append(float(np.sqrt(gain * (square + pairs[i]))))
        lengths = Spline(norms, mean[:, i])(fine)
        rows["mean"].append(
            float(np.sqrt(gain))
            * expected_isotropic_norm(size, lengths, fine_masses, d, float(pairs[i]))
        )
        # the covariance is taken about the sample's own mean, which takes h h' off each token's
        # influence and n E[h h'] off the whole; outputs are relative to the mean of the keys
        own = mean[:, i] - norms / size
        along = radial[:, i] - own**2
        level = float(np.dot(masses, along + (d - 1) * transverse[:, i])) / d
        bias = float(levels[i]) + level - float(size * np.dot(masses, own**2)) * (1 - 1 / size) / d
        spread = (along - level) ** 2 + (d - 1) * (transverse[:, i] - level) ** 2
        noise = float(size * np.dot(masses, spread))
        rows["cov_rms"].append(gain * float(np.sqrt(d * bias**2 + noise)))
        if d == 1:
            terms = Spline(norms, along)(fine)
            rows["cov"].append(gain * expected_absolute(size, terms, fine_masses, bias))
    return {name: np.array(values) for name, values in rows.items() if values}


def _pair_shares(coupling: Coupling, h: float, n: Array, queries: str) -> Array:
    """Variance from pairs of tokens over that from single ones, on the line.

    Beyond ``LARGEST_PAIRS`` it is lost in rounding; being small and slow there, its share is kept.
    """
    sizes, back = np.unique(np.minimum(n, LARGEST_PAIRS), return_inverse=True)
    low, high = _norm_range(1, float(sizes[-1]))
    y, v = np.polynomial.legendre.leggauss(NODES)
    norms, masses = _norm_rule(1, low + (high - low) * (y + 1) / 2, v)
    mean = _influence(coupling, h, sizes, norms, queries)[0]
    single = sizes * (masses @ mean**2)
    pairs = pair_variance(coupling, h, sizes, norms, masses, queries)
    return np.asarray((pairs / single)[back])


def _norm_range(d: int, largest_n: float) -> tuple[float, float]:
    """Norms of a standard normal vector that matter, out to the extremes of n draws."""
    # its square is twice a gamma variable; scipy.stats would take half a second to say so
    low = 0.0 if d <= 3 else float(np.sqrt(2 * scipy.special.gammaincinv(d / 2, 1e-14)))
    # squared influences reach further than tokens: to sqrt(8/3 ln n) on the line, at H = 1
    outside = max(1e-9 / largest_n ** (4 / 3), 1e-300)
    return low, float(np.sqrt(2 * scipy.special.gammainccinv(d / 2, outside)))


def _norm_rule(d: int, nodes: Array, weights: Array) -> tuple[Array, Array]:
    """Turn a rule for integrals over norms into one for averages over a standard normal vector."""
    # the density of a norm is r^(d-1) e^(-r^2/2); its factor goes in what follows
    logs = (d - 1) * np.log(nodes) - nodes * nodes / 2
    masses = np.exp(logs - logs.max()) * weights
    return nodes, masses / masses.sum()


@lru_cache(maxsize=32)
def _cosine_rule(d: int, nodes: int) -> tuple[Array, Array]:
    """Rule for the cosine c between two independent directions of R^d, and its masses times c^k."""
    if d == 1:
        x, w = np.array([-1.0, 1.0]), np.ones(2)
    elif d < EQUAL_ANGLES:
        x, w = scipy.special.roots_jacobi(nodes, (d - 3) / 2, (d - 3) / 2)
    else:
        angles = np.pi * (np.arange(nodes) + 0.5) / nodes
        x, w = np.cos(angles), np.sin(angles) ** (d - 2)
    return np.asarray(x), np.asarray(w / w.sum() * x ** np.arange(3)[:, None])


def _influence(
    coupling: Coupling, h: float, n: Array, norms: Array, queries: str
) -> tuple[Array, Array, Array, Array]:
    """Influence of a token of each norm (first axis) at each size (second axis).

    Component of the mean along the token, and eigenvalues along and across it of the conditional
    expectation of the output's second moment minus its limit, outputs taken relative to the plain
    mean of the keys. A level that does not depend on the token is left out of these eigenvalues,
    whose differences it would round away, and comes last (by size).
    """
    d = len(coupling.tau)
    tokens = queries == "tokens"
    rule = TiltLaw(coupling).rule(float(n.max()))
    total, levels = np.zeros((3, len(norms), len(n))), np.zeros(len(n))
    for s, mass in zip(rule.strengths, rule.weights, strict=True):
        if mass * n.max() < LIGHT:
            continue
        strength = min(float(s), STRONGEST)
        own_key = float(s) / h if tokens else None
        wanted = max(PER_LOGIT * strength * norms[-1], 5 * np.sqrt(d))
        blocks = np.ceil(wanted / ANGLE_NODES)
        cosines, powers = _cosine_rule(d, ANGLE_NODES * int(blocks))
        one = powers.sum(axis=1)[:, None, None]
        log_weights = strength * norms[:, None] * cosines - strength**2 / 2
        own_logit = None if own_key is None else strength * own_key
        table = KeyTable(strength, n, STEP, float(log_weights.max()), own_logit)
        changes = _Moments.of(table.averages(log_weights, powers), table.fields, 0 * one)
        parts = _conditional(changes, n, float(s), own_key, norms[:, None], d)
        total += mass * np.stack(parts)
        alone = _Moments.of(one * table.levels, table.fields, one)
        _, along, across = _conditional(alone, n, float(s), own_key, np.zeros((1, 1)), d)
        levels += mass * (along + (d - 1) * across)[0] / d
    total[1] += norms[:, None] ** 2 / n**2  # of the keys' mean, the token's own part
    if tokens:
        total = total * (n - 1) / n + _own_query(h, n, norms, d) / n
        levels = levels * (n - 1) / n
    return total[0], total[1], total[2], levels


@dataclass(frozen=True, eq=False)
class _Moments:
    """Averages over the cosine c of ``c^k E[...]``, k = 0, 1, 2: axes [k, norm, size].

    By the name of an expectation of :mod:`key_table`. What is wanted of them is of second order in
    c and linear in them, so that the average comes first: a hundredth of the arithmetic.
    """

    found: dict[str, Array]
    one: Array

    @classmethod
    def of(cls, averaged: Array, fields: tuple[str, ...], one: Array) -> _Moments:
        """From averages [k, norm, field and size], and that of 1."""
        parts = np.split(averaged, len(fields), axis=-1)
        return cls(dict(zip(fields, parts, strict=True)), one)

    def __getitem__(self, name: str) -> Array:
        return self.found.get(name, np.zeros((1, 1, 1)))


def _conditional(
    given: _Moments, n: Array, s: float, own_key: float | None, r: Array, d: int
) -> tuple[Array, Array, Array]:
    """Error given a key eta of norm r, averaged over its cosine c to a tilt of strength s.

    The query's own key lies on the tilt's axis u, at ``own_key`` (None: it is not among the keys).
    Returns the component of the error along the fixed key, then the eigenvalues along and across it
    of ``E[(Gamma_n - m)(Gamma_n - m)'] - a a'``, averaged over rotations about it, with m the plain
    mean of the n keys. A covariance over queries does not see a common shift of the outputs; m is
    most of it when tilts are weak, and its square, of order 1/n, would hide what is left. With
    ``Gamma_n - m`` everything left is of order h^2. By Stein's identity

        n E[Gamma_n m'] = E[Gamma_n] (eta + own)' + E[1 - p_key - p_own] I
                          - E[p_key (eta - Gamma_n) + p_own (own - Gamma_n)] a'.
    """
    own, others = (0.0, n - 1) if own_key is None else (own_key, n - 2)
    lean, one = own - s, given.one
    key, key_own, twice = given["key"], given["key_own"], given["key_key"]
    pull = given["own"] * lean + given["rest"]
    key_pull = key_own * lean + given["key_rest"]
    along = given["own_own"] * lean**2 + 2 * given["own_rest"] * lean + given["along"]
    # E[Gamma_n] = key eta + tilt u, and p_key (eta - Gamma_n) + p_own (own - Gamma_n) likewise
    tilt = s * (one - key) + pull
    left_key = key - twice - key_own
    left_tilt = (given["own"] - given["own_own"]) * lean - given["own_rest"]
    left_tilt = left_tilt - s * left_key - key_pull
    # coefficients of eta eta', of (eta u' + u eta'), of u u' and of the identity
    key_key = twice - 2 * key / n + one / n**2
    key_tilt = key_pull + s * key - s * twice
    key_tilt = key_tilt - (key * own - left_key * s + tilt) / n + one * own / n**2
    tilt_tilt = s * s * twice - 2 * s * (key_pull + s * key) + along + 2 * s * pull
    tilt_tilt = tilt_tilt - given["across"]
    tilt_tilt = tilt_tilt - 2 * (tilt * own - left_tilt * s) / n + one * own**2 / n**2
    level = given["across"] - 2 * (one - key - given["own"]) / n + one * others / n**2
    mean = key[0] * r + (pull - s * key)[1]
    radial = key_key[0] * r * r + 2 * key_tilt[1] * r + tilt_tilt[2] + level[0]
    transverse = (tilt_tilt[0] - tilt_tilt[2]) / max(d - 1, 1) + level[0]
    return mean, radial, transverse


def _own_query(h: float, n: Array, norms: Array, d: int) -> Array:
    """Contribution of a token as a query: ``Gamma_n`` and ``Gamma_n Gamma_n' - G``."""
    out = np.empty((3, len(norms), len(n)))
    sign = 1.0 if h >= 0 else -1.0
    for i, r in enumerate(norms):
        s = abs(h) * float(r)
        strength = min(s, STRONGEST)
        log_weight = strength * sign * float(r) - strength**2 / 2
        table = KeyTable(strength, n, STEP, log_weight)
        powers = np.array([1.0, sign, 1.0])[:, None, None]
        moments = _Moments.of(powers * table.value(log_weight), table.fields, powers)
        parts = _conditional(moments, n, s, None, np.array([[r]]), d)
        mean, radial, transverse = (part[0] for part in parts)
        out[:, i] = h * r + mean, h * h * (r * r - 1) + radial, transverse - h * h
    return out
