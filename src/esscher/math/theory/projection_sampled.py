"""The projection of ``moment_curves`` for any Gaussian head, averaged over sampled tokens.

Conditional expectations given (query, key) are exact, from the Laplace integrals; only the average
over queries and keys is sampled. A batch of tokens serves as queries and as keys, drawn from a
mixture that reaches, along strong directions, as far as the extremes of n tokens do (importance
weights are at most the number of its components), in antithetic pairs so that odd terms cancel.
Tokens are split in two halves whose noise is independent, so that squares are unbiased; the spread
between batches gives the standard error.

Notation, per query i and key j (``Coupling``): tilt direction ``u``, ``g_i = B a_i`` the limit,
``c_i = B (a_i - tau)``, ``b_i = B u_i``, ``o_i`` the own key's value minus the limit, and
``x_j = B eta_j + eps_j`` the key's value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from esscher.core.errors import UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.coupling import Coupling, symmetric_root
from esscher.math.theory.key_table import Expectations, KeyTable
from esscher.math.theory.norms import expected_gaussian_norm
from esscher.math.theory.softmax_mean import STRONGEST

#: Tokens per batch and number of batches.
TOKENS, BATCHES = 128, 16
#: Trapezoidal step: a relative error of 1e-5 is far below the sampling error. Below the horizon
#: ``WEAK`` covariances are small differences and take more.
STEP, FINE_STEP, WEAK = 0.7, 0.5, 0.2
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


@dataclass(frozen=True, eq=False)
class _Batch:
    """Tokens in whitened coordinates, with importance weights of mean 1."""

    queries: str
    tilts: Array
    keys: Array
    values: Array
    query_weights: Array
    key_weights: Array


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
    widest = _widest(coupling, float(n.max()))
    batches = [
        _batch_squares(
            coupling, n, _draw(coupling, queries, widest, random_stream(seed, "projection", i))
        )
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
    ratio = np.array([_norm_ratio(m) for m in shape])
    values["mean"], errors["mean"] = ratio * values["mean_rms"], ratio * errors["mean_rms"]
    return values, errors


def _norm_ratio(covariance: Array) -> float:
    """``E|Z| / rms|Z|`` for a Gaussian vector with this covariance."""
    variances = np.maximum(np.linalg.eigvalsh((covariance + covariance.T) / 2), 0.0)
    total = float(variances.sum())
    return expected_gaussian_norm(variances) / np.sqrt(total) if total > 0 else 1.0


def _widest(coupling: Coupling, largest_n: float) -> Array:
    """Variances of the widest component, one per coordinate.

    Squared received attention is concentrated on N(0, (1+g)/(1-g)); once that is infinite, the keys
    that count are the extremes of n tokens, two standard deviations of ``ln(n)/2`` away.
    """
    g = coupling.variances
    reach = max(3.0, 0.5 * float(np.log(largest_n)))
    return np.asarray(np.minimum((1 + g) / np.maximum(1 - g, 1e-6), reach))


def _draw(coupling: Coupling, queries: str, widest: Array, rng: np.random.Generator) -> _Batch:
    """Draw a batch: keys from the mixture, tilts and values from their law given the key."""
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
    return _Batch(queries, coupling.tau + tilts, keys, values, tilt_weights, weights)


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


def _batch_squares(coupling: Coupling, n: Array, batch: _Batch) -> tuple[Array, Array, Array]:
    """Squared errors of mean and covariance at each size, and the mean's error covariance."""
    tokens = batch.queries == "tokens"
    b, tau = coupling.loading, coupling.tau
    count, sizes, d = TOKENS, len(n), len(b)
    step = FINE_STEP if coupling.horizon < WEAK else STEP
    strengths = np.linalg.norm(batch.tilts, axis=1)
    unit = batch.tilts / np.maximum(strengths, 1e-300)[:, None]
    limit, centred, along = batch.tilts @ b.T, (batch.tilts - tau) @ b.T, unit @ b.T
    own = batch.values - limit if tokens else np.zeros_like(limit)
    logits = batch.tilts @ batch.keys.T

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
    own_mean = _mix(level.own, own) + _mix(level.rest, along)
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
    query_weights, key_weights = batch.query_weights, batch.key_weights
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
        mean, square = _influence(change, weights, vectors, outer, batch.values, noise)
        square += _influence_about_keys(
            change, level, n, tokens, weights, vectors, outer, batch.values, noise
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
    moved = [mean - batch.values[:, None, :] / n[None, :, None] for mean in means]
    moved_spread = np.einsum("j,jnd,jne->nde", key_weights, *moved, optimize=True) / count
    moved_spread = n[:, None, None] * (moved_spread + moved_spread.transpose(0, 2, 1)) / 2
    own_mean_square = _outer_product(moved[0], moved[1])
    own_mean_square -= np.einsum("j,jnd->nd", key_weights, own_mean_square) / count
    squares = [square - own_mean_square for square in squares]
    fluctuation = n * np.einsum("j,jnd,jnd->n", key_weights, *squares, optimize=True) / count
    about = (moved_spread + np.einsum("nd,ne->nde", biases[0][0], biases[1][0])).reshape(
        sizes, d * d
    )
    offsets = [bias[1] - about for bias in biases]
    cov_square = np.sum(offsets[0] * offsets[1], axis=1) + fluctuation
    return mean_square, cov_square, spread


def _about_keys(
    level: Expectations, n: Array, tokens: bool, outer: dict[str, Array], noise: Array
) -> Array:
    """What taking outputs relative to the keys' mean m adds to each query's second moment.

    A covariance over queries does not see the common shift m, whose square, of order 1/n, would
    hide an error of order h^2 (``projection_isotropic`` has the identity behind this).
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


def _influence_about_keys(
    change: Expectations,
    level: Expectations,
    n: Array,
    tokens: bool,
    weights: Array,
    vectors: dict[str, Array],
    outer: dict[str, Array],
    values: Array,
    noise: Array,
) -> Array:
    """The same for the change that each key makes, averaged over queries."""
    average, total = _over_queries(weights)
    g, o, b, c = (vectors[k] for k in "gobc")
    own = g + o if tokens else np.zeros_like(g)
    size = n[None, :, None]
    left = change.key - change.key_key - change.key_own
    towards = (
        (weights.T @ c)[:, None]
        + average(change.own + level.own[:, None], o)
        + average(change.rest + level.rest[:, None], b)
        - average(change.key + left, g)
        + average(change.key, own)
    )
    mean_own = (weights.T @ own)[:, None]
    x = values[:, None, :]
    linear = -towards / size + mean_own / size**2
    cross = x[..., :, None] * linear[..., None, :]
    square = (cross + cross.swapaxes(-1, -2)).reshape(*linear.shape[:2], -1)
    key_outer = 0.5 * _symmetric_outer(values, values)[:, None]
    square += (1 / size**2 - 2 * total(change.key)[..., None] / size) * key_outer
    attended = total(change.key + change.own)[..., None]
    square += (2 * attended / size - 1 / size**2) * noise.ravel()
    pairs = {
        "gg": left - (change.key if tokens else 0.0),
        "go": change.own_own + change.key_own - (change.key if tokens else change.own),
        "gb": change.key_rest + change.own_rest + (change.rest if tokens else 0.0),
    }
    if tokens:
        pairs |= {"oo": change.own, "ob": change.rest}
    for name, coefficients in pairs.items():
        square -= average(coefficients, outer[name]) / size
    return np.asarray(square)


def _outer_product(p: Array, q: Array) -> Array:
    """Symmetric part of ``p q'`` for arrays (token, size, d), flattened to (token, size, d*d)."""
    product = p[..., :, None] * q[..., None, :]
    return np.asarray((product + product.swapaxes(-1, -2)).reshape(*p.shape[:2], -1) / 2)


def _mix(coefficients: Array, vectors: Array) -> Array:
    return np.asarray(coefficients[:, :, None] * vectors[:, None, :])


def _symmetric_outer(p: Array, q: Array) -> Array:
    """``p q' + q p'`` for each row, flattened."""
    product = p[:, :, None] * q[:, None, :]
    return np.asarray((product + product.transpose(0, 2, 1)).reshape(len(p), -1))


def _influence(
    change: Expectations,
    weights: Array,
    vectors: dict[str, Array],
    outer: dict[str, Array],
    values: Array,
    noise: Array,
) -> tuple[Array, Array]:
    """Change of the mean output, and of its second moment, that each key makes at each size.

    ``weights`` (query, key) average over queries. Returns arrays (key, size, d) and
    (key, size, d*d).
    """
    average, total = _over_queries(weights)
    g, o, b, c = (vectors[k] for k in "gobc")
    x = values[:, None, :]
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
    count, sizes, d = mean.shape
    key_outer = 0.5 * _symmetric_outer(values, values)
    cross = (x[..., :, None] * linear[..., None, :]).reshape(count, sizes, d, d)
    square = (cross + cross.transpose(0, 1, 3, 2)).reshape(count, sizes, d * d)
    square += total(change.key_key)[..., None] * key_outer[:, None, :]
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
    return mean, square


def _over_queries(
    weights: Array,
) -> tuple[Callable[[Array, Array], Array], Callable[[Array], Array]]:
    """Averages over queries, with weights (query, key): of coefficients times rows, and of them."""

    def average(coefficients: Array, columns: Array) -> Array:
        product = np.einsum("ij,ijn,id->jnd", weights, coefficients, columns, optimize=True)
        return np.asarray(product)

    def total(coefficients: Array) -> Array:
        return np.asarray(np.einsum("ij,ijn->jn", weights, coefficients))

    return average, total
