"""Predicted error of mean and covariance at finite n: their first-order projection.

The mean output over n tokens is a symmetric function of independent tokens. Its projection onto
sums of functions of single tokens is

    mean_n - limit  ~  bias + sum_j h_n(eta_j),     h_n(eta) = E[mean_n | eta_1 = eta] - E[mean_n],

and here ``h_n`` is not the asymptotic influence function but the exact conditional expectation at
that n: the Laplace integrals of ``softmax_moments`` with one key held fixed. A token with a large
weight then saturates by itself, so one formula covers the parametric regime, the stable one and the
frozen one, before and after burn-in. Where H < 1 it tends to the exact constants as n grows. The
bias of the covariance, which dominates before burn-in, is exact.

What is neglected is the part of the error that no sum of single-token terms can carry (for the
mean of isotropic heads on the line: no sum over pairs of tokens, ``pair_variance``); how much that
is has been measured against direct simulation (documentation, "How good is the predictor").
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_sizes
from esscher.math.coupling import Coupling, symmetric_root
from esscher.math.heads import Head
from esscher.math.theory.gaussian_tables import (
    NODES,
    STRONGEST,
    Expectations,
    KeyTable,
    Spline,
    TiltLaw,
    pair_variance,
)
from esscher.math.theory.rates import (
    Curve,
    expected_absolute,
    expected_gaussian_norm,
    expected_isotropic_norm,
    select_coupling,
)

#: Names of the curves that ``moment_curves`` returns (``cov`` in one dimension only).
MOMENT_CURVES = ("mean", "mean_rms", "cov", "cov_rms")
#: By how much the expected norm of the mean's error was low, at worst over n = 100 to 10^5 and both
#: kinds of queries, isotropic heads on the line, by horizon (``benchmarks/long_line.py``).
LOW_HORIZONS, LOW_BY = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0), (0.0, 0.01, 0.06, 0.07, 0.09, 0.11)


def mean_low_by(head: Head) -> float | None:
    """How much too low the expected norm of the mean's error may be, relatively, where measured."""
    isotropy = head.coupling.isotropy
    if isotropy is None or len(head.coupling.tau) > 1 or head.horizon > LOW_HORIZONS[-1]:
        return None
    return float(np.interp(head.horizon, LOW_HORIZONS, LOW_BY))


def moment_curves(
    head: Head, sizes: ArrayLike, queries: str = "population", seed: int = 0
) -> dict[str, Curve]:
    """Predicted errors of mean and covariance of the output, for Gaussian tokens.

    Returns ``mean`` and ``mean_rms`` (expected and root-mean-square norm of the error of the mean),
    ``cov_rms`` (root-mean-square Frobenius norm of the error of the covariance) and, for isotropic
    heads in one dimension, ``cov`` (its expected value).

    Isotropic heads are treated deterministically. For others the average over tokens is sampled
    (``seed``) with a standard error, and ``mean`` assumes a Gaussian shape of the error, which
    makes it an upper estimate when H > 1.
    """
    n = as_sizes(sizes, smallest=4)
    coupling = select_coupling(head, queries)
    isotropy = head.coupling.isotropy
    if isotropy is not None and isotropy[0] != 0:
        values = isotropic_errors(coupling, isotropy, n, queries)
        # deterministic, but not exact: what the projection neglects has no standard error
        errors = {name: np.full(len(n), np.nan) for name in values}
        method = "first-order projection on single tokens at each n, by quadrature"
    else:
        values, errors = sampled_errors(coupling, n, queries, seed)
        method = "first-order projection on single tokens at each n, sampled"
    names = (name for name in MOMENT_CURVES if name in values)
    return {name: Curve(n, values[name], errors[name], method) for name in names}


# The projection of ``moment_curves`` for isotropic heads, deterministic: everything is radial.
#
# For ``M = h I`` the influence of a token depends on its norm r alone: it is averaged over the tilt
# strength s of the query and the cosine c between query and token by quadrature. On the line the
# mean has its second order too (``pair_variance``).

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
        # variance from pairs of tokens over that from single ones; beyond ``LARGEST_PAIRS`` it is
        # lost in rounding: being small and slow there, its share is kept
        sizes, back = np.unique(np.minimum(n, LARGEST_PAIRS), return_inverse=True)
        low, high = _norm_range(1, float(sizes[-1]))
        y, v = np.polynomial.legendre.leggauss(NODES)
        nodes, shares = _norm_rule(1, low + (high - low) * (y + 1) / 2, v)
        few = _influence(coupling, h, sizes, nodes, queries)[0]
        single = sizes * (shares @ few**2)
        both = pair_variance(coupling, h, sizes, nodes, shares, queries)
        pairs = (both / single)[back] * n * (masses @ mean**2)
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
        changes = table.split(table.averages(log_weights, powers))
        parts = _conditional(changes, 0 * one, n, float(s), own_key, norms[:, None], d)
        total += mass * np.stack(parts)
        alone = table.split(one * table.levels)
        _, along, across = _conditional(alone, one, n, float(s), own_key, np.zeros((1, 1)), d)
        levels += mass * (along + (d - 1) * across)[0] / d
    total[1] += norms[:, None] ** 2 / n**2  # of the keys' mean, the token's own part
    if tokens:
        total = total * (n - 1) / n + _own_query(h, n, norms, d) / n
        levels = levels * (n - 1) / n
    return total[0], total[1], total[2], levels


def _conditional(
    given: Expectations,
    one: Array,
    n: Array,
    s: float,
    own_key: float | None,
    r: Array,
    d: int,
) -> tuple[Array, Array, Array]:
    """Error given a key eta of norm r, averaged over its cosine c to a tilt of strength s.

    ``given`` and ``one`` are averages over c of ``c^k E[...]`` and of ``c^k``, k = 0, 1, 2: axes
    [k, norm, size]. What is wanted of them is of second order in c and linear in them, so that the
    average comes first: a hundredth of the arithmetic.

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
    lean = own - s
    key, key_own, twice = given.key, given.key_own, given.key_key
    pull = given.own * lean + given.rest
    key_pull = key_own * lean + given.key_rest
    along = given.own_own * lean**2 + 2 * given.own_rest * lean + given.along
    # E[Gamma_n] = key eta + tilt u, and p_key (eta - Gamma_n) + p_own (own - Gamma_n) likewise
    tilt = s * (one - key) + pull
    left_key = key - twice - key_own
    left_tilt = (given.own - given.own_own) * lean - given.own_rest
    left_tilt = left_tilt - s * left_key - key_pull
    # coefficients of eta eta', of (eta u' + u eta'), of u u' and of the identity
    key_key = twice - 2 * key / n + one / n**2
    key_tilt = key_pull + s * key - s * twice
    key_tilt = key_tilt - (key * own - left_key * s + tilt) / n + one * own / n**2
    tilt_tilt = s * s * twice - 2 * s * (key_pull + s * key) + along + 2 * s * pull
    tilt_tilt = tilt_tilt - given.across
    tilt_tilt = tilt_tilt - 2 * (tilt * own - left_tilt * s) / n + one * own**2 / n**2
    level = given.across - 2 * (one - key - given.own) / n + one * others / n**2
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
        moments = table.split(powers * table.value(log_weight))
        parts = _conditional(moments, powers, n, s, None, np.array([[r]]), d)
        mean, radial, transverse = (part[0] for part in parts)
        out[:, i] = h * r + mean, h * h * (r * r - 1) + radial, transverse - h * h
    return out


# The projection of ``moment_curves`` for any Gaussian head, averaged over sampled tokens.
#
# Conditional expectations given (query, key) are exact, from the Laplace integrals; only the
# average over queries and keys is sampled. A batch of tokens serves as queries and as keys, drawn
# from a mixture that reaches, along strong directions, as far as the extremes of n tokens do
# (importance weights are at most the number of its components), in antithetic pairs so that odd
# terms cancel. Tokens are split in two halves whose noise is independent, so that squares are
# unbiased; the spread between batches gives the standard error.
#
# Notation, per query i and key j (``Coupling``): tilt direction ``u``, ``g_i = B a_i`` the limit,
# ``c_i = B (a_i - tau)``, ``b_i = B u_i``, ``o_i`` the own key's value minus the limit, and
# ``x_j = B eta_j + eps_j`` the key's value.

#: Tokens per batch and number of batches.
TOKENS, BATCHES = 128, 16
#: Trapezoidal step: a relative error of 1e-5 is far below the sampling error. Below the horizon
#: ``WEAK`` covariances are small differences and take ``STEP``.
COARSE_STEP, WEAK = 0.7, 0.2
#: Components of the mixture that keys are drawn from, from N(0, I) to the widest.
COMPONENTS = 4
#: Largest output dimension for which d x d influences are kept for every token.
LARGEST_DIM = 128
#: Largest n at which sampled tokens still reach the extremes, with few and with many directions
#: of comparable strength (measured against the deterministic projection of isotropic heads).
FEW_DIRECTIONS, LARGEST_N_FEW, LARGEST_N_MANY = 2, 1e12, 1e6
#: The spread of batches understates the error where few queries point at the keys that count. It is
#: widened by what scores against the deterministic projection showed (20 seeds; H = 0.8 in eight
#: directions: 1.2, 1.4 and 2.0 at n = 10^2, 10^3, 10^5; up to four directions: 0.9 to 1.3).
STUDENT, MANY_DIRECTIONS, PER_DECADE = 1.1, 4, 0.25


def sampled_errors(
    coupling: Coupling, n: Array, queries: str, seed: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return predicted ``mean``, ``mean_rms`` and ``cov_rms``, and their standard errors."""
    if len(coupling.loading) > LARGEST_DIM:
        raise UndefinedError(
            f"predicted curves of mean and covariance of a head without symmetry are limited to "
            f"values of dimension {LARGEST_DIM}; got {len(coupling.loading)}"
        )
    directions = int(np.sum(coupling.variances > 0.05 * coupling.variances[0]))
    largest = LARGEST_N_FEW if directions <= FEW_DIRECTIONS else LARGEST_N_MANY
    if n.max() > largest:
        raise UndefinedError(
            f"predicted curves of mean and covariance of a head with {directions} comparable "
            f"directions and no symmetry are limited to n = {largest:g}; got {n.max():g}"
        )
    # Squared received attention is concentrated on N(0, (1+g)/(1-g)); once that is infinite, the
    # keys that count are the extremes of n tokens, two standard deviations of ln(n)/2 away.
    g = coupling.variances
    reach = max(3.0, 0.5 * float(np.log(n.max())))
    widest = np.minimum((1 + g) / np.maximum(1 - g, 1e-6), reach)
    batches = [
        _batch_squares(coupling, n, queries, widest, random_stream(seed, "projection", i))
        for i in range(BATCHES)
    ]
    widening = np.full(len(n), STUDENT)
    if directions > MANY_DIRECTIONS:
        widening += PER_DECADE * np.maximum(np.log10(n) - 2, 0.0)
    mean_square, cov_square = (np.array([b[k] for b in batches]) for k in (0, 1))
    shape = np.mean([b[2] for b in batches], axis=0)
    values: dict[str, Array] = {}
    errors: dict[str, Array] = {}
    for name, squares in (("mean_rms", mean_square), ("cov_rms", cov_square)):
        square = np.maximum(squares.mean(axis=0), 0.0)
        values[name] = np.sqrt(square)
        noise = widening * squares.std(axis=0, ddof=1) / np.sqrt(BATCHES)
        errors[name] = noise / (2 * np.maximum(values[name], 1e-300))
    ratio = np.ones(len(n))  # E|Z| / rms|Z| of Gaussian vectors with these covariances
    for i, matrix in enumerate(shape):
        variances = np.maximum(np.linalg.eigvalsh((matrix + matrix.T) / 2), 0.0)
        total = float(variances.sum())
        if total > 0:
            ratio[i] = expected_gaussian_norm(variances) / np.sqrt(total)
    values["mean"], errors["mean"] = ratio * values["mean_rms"], ratio * errors["mean_rms"]
    return values, errors


def _draw(
    coupling: Coupling, queries: str, widest: Array, rng: np.random.Generator
) -> tuple[Array, ...]:
    """Draw a batch: keys from the mixture, tilts and values from their law given the key.

    Returns tilts, keys and values in whitened coordinates, then the importance weights, of mean 1,
    of the queries and of the keys.
    """
    g = coupling.variances
    r, d_v = len(g), len(coupling.loading)
    keys, weights = _antithetic(widest, rng)
    # what tilts and values do not share with the keys
    joint = np.zeros((r + d_v, r + d_v))
    joint[:r, :r] = np.diag(g) - coupling.cross @ coupling.cross.T
    joint[:r, r:], joint[r:, :r] = coupling.residual_cross, coupling.residual_cross.T
    joint[r:, r:] = coupling.residual
    half = rng.standard_normal((TOKENS // 2, r + d_v)) @ symmetric_root((joint + joint.T) / 2)
    rest = np.concatenate([half, -half])
    values = keys @ coupling.loading.T + rest[:, r:]
    if queries == "tokens":
        tilts, tilt_weights = keys @ coupling.cross.T + rest[:, :r], weights
    else:
        unit, tilt_weights = _antithetic(widest, rng)
        tilts = unit * coupling.spectrum
    return coupling.tau + tilts, keys, values, tilt_weights, weights


def _antithetic(widest: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw points in pairs x, -x from a mixture of centred Gaussians, from I to diag(widest).

    The weights are the density of N(0, I) over that of the mixture.
    """
    count = TOKENS // 2
    powers = np.linspace(0.0, 1.0, COMPONENTS)
    variances = widest ** powers[:, None]
    chosen = rng.integers(COMPONENTS, size=count)
    x = rng.standard_normal((count, len(widest))) * np.sqrt(variances[chosen])
    log_ratio = 0.5 * (x**2 @ (1 - 1 / variances).T - np.log(variances).sum(axis=1))
    weights = np.exp(-scipy.special.logsumexp(log_ratio, axis=1)) * COMPONENTS
    return np.concatenate([x, -x]), np.concatenate([weights, weights])


def _batch_squares(
    coupling: Coupling, n: Array, queries: str, widest: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Squared errors of mean and covariance at each size, and the mean's error covariance."""
    tilts, keys, values, query_weights, key_weights = _draw(coupling, queries, widest, rng)
    tokens = queries == "tokens"
    b, tau = coupling.loading, coupling.tau
    count, sizes, d = TOKENS, len(n), len(b)
    step = STEP if coupling.horizon < WEAK else COARSE_STEP
    strengths = np.linalg.norm(tilts, axis=1)
    unit = tilts / np.maximum(strengths, 1e-300)[:, None]
    limit, centred, along = tilts @ b.T, (tilts - tau) @ b.T, unit @ b.T
    own = values - limit if tokens else np.zeros_like(limit)
    logits = tilts @ keys.T

    given = np.empty((len(Expectations._fields), count, count, sizes))
    base = np.empty((len(Expectations._fields), count, sizes))
    for i in range(count):
        s = min(float(strengths[i]), STRONGEST)
        shrink = s / float(strengths[i]) if strengths[i] > 0 else 1.0
        own_logit = shrink * float(logits[i, i]) if tokens else None
        log_weights = shrink * logits[i] - s * s / 2
        table = KeyTable(s, n, step, float(log_weights.max()), own_logit)
        base[:, i] = table.without_key()
        given[:, i] = table(log_weights)
        given[:, i] -= base[:, i][:, None]
    change, level = Expectations(*given), Expectations(*base)

    # own queries: error, and second moment minus the limit's
    own_mean = level.own[:, :, None] * own[:, None] + level.rest[:, :, None] * along[:, None]
    noise = b @ b.T + coupling.residual
    vectors = {"g": limit, "o": own, "b": along, "c": centred}
    outer = {
        p + q: _symmetric_outer(vectors[p], vectors[q])
        for p, q in ("gg", "go", "gb", "oo", "ob", "bb", "cg", "co", "cb")
    }
    level_pairs = {
        "oo": level.own_own / 2,
        "ob": level.own_rest,
        "bb": (level.along - level.across) / 2,
        "co": level.own,
        "cb": level.rest,
    }
    own_square = np.einsum("in,d->ind", level.across, noise.ravel())
    own_square += sum(c[:, :, None] * outer[k][:, None] for k, c in level_pairs.items())
    own_square += _about_keys(level, n, tokens, outer, noise)
    reference = ((b * coupling.variances) @ b.T).ravel()
    own_output = own_square + (0.5 * _symmetric_outer(centred, centred) - reference)[:, None]

    # a pair x, -x stays in one half
    even = np.arange(count) % (count // 2) % 2 == 0
    biases, means, squares = [], [], []
    for half in (even, ~even):
        w = query_weights * half / half.sum()
        bias = np.einsum("i,ind->nd", w, own_mean), np.einsum("i,ind->nd", w, own_square)
        biases.append(bias)
        # query i does not serve as a query for its own key
        pairs = query_weights[:, None] * half[:, None] * ~np.eye(count, dtype=bool)
        weights = pairs / (half.sum() - half)
        mean, square = _sampled_influence(
            change, level, n, tokens, weights, vectors, outer, values, noise
        )
        if tokens:
            size = n[None, :, None]
            mean = mean * (size - 1) / size + (centred[:, None, :] + own_mean) / size
            square = square * (size - 1) / size + own_output / size
        means.append(mean - np.einsum("j,jnd->nd", key_weights, mean) / count)
        squares.append(square - np.einsum("j,jnd->nd", key_weights, square) / count)

    spread = np.einsum("j,jnd,jne->nde", key_weights, *means, optimize=True) / count
    spread = n[:, None, None] * (spread + spread.transpose(0, 2, 1)) / 2
    mean_square = np.trace(spread, axis1=1, axis2=2) + np.sum(biases[0][0] * biases[1][0], axis=1)
    # the covariance is taken about the sample's own mean, which takes h h' off each token's
    # influence and n E[h h'] off the whole; outputs are relative to the mean of the keys
    moved = [mean - values[:, None, :] / n[None, :, None] for mean in means]
    moved_spread = np.einsum("j,jnd,jne->nde", key_weights, *moved, optimize=True) / count
    moved_spread = n[:, None, None] * (moved_spread + moved_spread.transpose(0, 2, 1)) / 2
    product = moved[0][..., :, None] * moved[1][..., None, :]
    own_mean_square = (product + product.swapaxes(-1, -2)).reshape(count, sizes, -1) / 2
    own_mean_square -= np.einsum("j,jnd->nd", key_weights, own_mean_square) / count
    squares = [square - own_mean_square for square in squares]
    fluctuation = n * np.einsum("j,jnd,jnd->n", key_weights, *squares, optimize=True) / count
    centre = (moved_spread + np.einsum("nd,ne->nde", biases[0][0], biases[1][0])).reshape(
        sizes, d * d
    )
    offsets = [bias[1] - centre for bias in biases]
    cov_square = np.sum(offsets[0] * offsets[1], axis=1) + fluctuation
    return mean_square, cov_square, spread


def _about_keys(
    level: Expectations, n: Array, tokens: bool, outer: dict[str, Array], noise: Array
) -> Array:
    """Change, by taking outputs relative to the keys' mean m, of each query's second moment.

    A covariance over queries does not see the common shift m, whose square, of order 1/n, would
    hide an error of order h^2 (``isotropic_errors`` has the identity behind this).
    """
    size = n[None, :, None]
    flat = noise.ravel()
    if not tokens:
        return np.asarray(-np.ones((len(level.own), 1, 1)) * flat / size)
    kept = level.own - level.own_own
    crossed = {
        "cg": np.ones_like(level.own),
        "co": np.ones_like(level.own),
        "go": level.own - kept,
        "oo": level.own,
        "gb": level.rest + level.own_rest,
        "ob": level.rest,
    }
    product = sum(c[:, :, None] * outer[k][:, None] for k, c in crossed.items())
    product = product + 2 * (1 - level.own)[:, :, None] * flat
    own = (outer["gg"] / 2 + outer["go"] + outer["oo"] / 2)[:, None]
    return np.asarray(-product / size + (own + (size - 1) * flat) / size**2)


def _symmetric_outer(p: Array, q: Array) -> Array:
    """``p q' + q p'`` for each row, flattened."""
    product = p[:, :, None] * q[:, None, :]
    return np.asarray((product + product.transpose(0, 2, 1)).reshape(len(p), -1))


def _sampled_influence(
    change: Expectations,
    level: Expectations,
    n: Array,
    tokens: bool,
    weights: Array,
    vectors: dict[str, Array],
    outer: dict[str, Array],
    values: Array,
    noise: Array,
) -> tuple[Array, Array]:
    """Change of the mean output, and of its second moment about the keys, that each key makes.

    ``weights`` (query, key) average over queries. Returns arrays (key, size, d) and
    (key, size, d*d).
    """

    def average(coefficients: Array, columns: Array) -> Array:
        product = np.einsum("ij,ijn,id->jnd", weights, coefficients, columns, optimize=True)
        return np.asarray(product)

    def total(coefficients: Array) -> Array:
        return np.asarray(np.einsum("ij,ijn->jn", weights, coefficients))

    g, o, b, c = (vectors[k] for k in "gobc")
    x, size = values[:, None, :], n[None, :, None]
    key_outer = 0.5 * _symmetric_outer(values, values)[:, None]
    mean = (
        total(change.key)[..., None] * x
        - average(change.key, g)
        + average(change.own, o)
        + average(change.rest, b)
    )
    linear = (
        -average(change.key_key, g)
        + average(change.key_own, o)
        + average(change.key_rest, b)
        + average(change.key, c)
    )
    cross = x[..., :, None] * linear[..., None, :]
    square = (cross + cross.swapaxes(-1, -2)).reshape(*linear.shape[:2], -1)
    square += total(change.key_key)[..., None] * key_outer
    square += total(change.across)[..., None] * noise.ravel()
    pairs = {
        "gg": change.key_key / 2,
        "go": -change.key_own,
        "gb": -change.key_rest,
        "oo": change.own_own / 2,
        "ob": change.own_rest,
        "bb": (change.along - change.across) / 2,
        "cg": -change.key,
        "co": change.own,
        "cb": change.rest,
    }
    for name, coefficients in pairs.items():
        square += average(coefficients, outer[name])

    # what taking outputs relative to the keys' mean adds, as in ``_about_keys``
    own = g + o if tokens else np.zeros_like(g)
    left = change.key - change.key_key - change.key_own
    towards = (
        (weights.T @ c)[:, None]
        + average(change.own + level.own[:, None], o)
        + average(change.rest + level.rest[:, None], b)
        - average(change.key + left, g)
        + average(change.key, own)
    )
    linear = -towards / size + (weights.T @ own)[:, None] / size**2
    cross = x[..., :, None] * linear[..., None, :]
    recentred = (cross + cross.swapaxes(-1, -2)).reshape(*linear.shape[:2], -1)
    recentred += (1 / size**2 - 2 * total(change.key)[..., None] / size) * key_outer
    attended = total(change.key + change.own)[..., None]
    recentred += (2 * attended / size - 1 / size**2) * noise.ravel()
    pairs = {
        "gg": left - (change.key if tokens else 0.0),
        "go": change.own_own + change.key_own - (change.key if tokens else change.own),
        "gb": change.key_rest + change.own_rest + (change.rest if tokens else 0.0),
    }
    if tokens:
        pairs |= {"oo": change.own, "ob": change.rest}
    for name, coefficients in pairs.items():
        recentred -= average(coefficients, outer[name]) / size
    return mean, square + recentred
