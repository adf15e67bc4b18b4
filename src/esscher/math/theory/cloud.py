"""From the sums of a pass over a cloud to mean squared errors, with the covariance of the estimate.

Squares of averages over queries are products of different groups of queries: see :mod:`cloud`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_sizes
from esscher.math.heads import ArrayHead, Head, Tokens
from esscher.math.theory.cloud_pass import CloudHead, CloudPass, Effort, Rows, redraw, root_ratios
from esscher.math.theory.rates import Curve

#: Less than any squared error.
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Predicted:
    """Mean squared error at each size.

    Attributes
    ----------
    sizes
        Numbers of tokens.
    square, covariance
        The estimate, [size], and its covariance.
    shape
        Expected norm of the error over the root of its mean square.
    """

    sizes: Array
    square: Array
    covariance: Array
    shape: Array

    @property
    def rms(self) -> Array:
        """Root-mean-square error; 0 where the noise of the estimate makes its square negative."""
        return np.asarray(np.sqrt(np.maximum(self.square, 0.0)))

    @property
    def norm(self) -> Array:
        """Expected norm of the error."""
        return np.asarray(self.rms * self.shape)

    @property
    def standard_error(self) -> Array:
        """Standard error of the root-mean-square error, and nearly that of the expected norm."""
        noise = np.sqrt(np.diag(self.covariance))
        return np.asarray(noise / np.maximum(2 * self.rms, np.sqrt(np.maximum(noise, TINY))))

    def slope(self) -> tuple[float, float] | None:
        """Exponent fitted to the expected norm in log-log coordinates, with its standard error.

        None for a single size, and where an error is not known to be positive.
        """
        if len(self.sizes) < 2 or np.any(self.square <= 0):
            return None
        x = np.log(self.sizes)
        x = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
        along = x / (2 * self.square)
        return float(-x @ np.log(self.norm)), float(np.sqrt(along @ self.covariance @ along))


def map_squares(sums: CloudPass) -> Predicted:
    """Error of single outputs: exact at each query, and averaged over the sampled ones.

    Its norm is the root of a mean over the queries of a sample.
    """
    means = _group_means(sums.squares, sums)
    gram = np.zeros((len(sums.n), len(means), len(means)))
    # single precision: a ratio of sums of many squares
    moved = [shares.astype(np.float32) for shares in sums.moved]
    kernels = sums.map_kernels()
    shape = root_ratios([np.sum((x @ k) * x, axis=1) for x, k in zip(moved, kernels, strict=True)])
    if sums.tokens:
        # as tokens are drawn, so are queries
        drawn, _ = redraw(sums.share, sums.n, sums.rng)
        shape = shape * root_ratios([x @ sums.squares[:, i] for i, x in enumerate(drawn)])
    return Predicted(sums.n, _value(gram, means), _jackknife(gram, means), shape)


def mean_squares(sums: CloudPass) -> Predicted:
    """Error of the mean output."""
    ones = np.ones(sums.outputs.shape[1])
    phi, weights = _centred(sums.on_mean, sums)
    # what attending n tokens changes in a token's own output
    own = _own_part(phi, sums.mean + sums.mean_shift, sums, ones) / sums.n
    bias = _group_means(sums.mean, sums)
    gram = _gram(phi, weights, ones) / sums.n[:, None, None]
    gram = gram + _gram(bias[:, None], np.ones(1), ones)
    shared, _ = _centred(sums.on_mean - sums.z_limits[:, None], sums)
    noise = _own_noise(shared, weights, ones, sums.noise[0], sums)
    gram, own = gram + noise[0], own + noise[1]
    per_token = _crossed(phi, len(weights)).sum(axis=-1) / sums.n
    covariance = _jackknife(gram, own) + sums.z.covariance(per_token) / sums.population**2
    influence = phi.mean(axis=0)[: len(weights)]
    shape = _shape(sums, influence, bias.mean(axis=0), ones, _value(*noise))
    return Predicted(sums.n, _value(gram, own), covariance, shape)


def cov_squares(sums: CloudPass) -> Predicted:
    """Error of the covariance of the outputs, in Frobenius' norm."""
    n, (a, b) = sums.n, sums.pairs
    # shifted outputs: the noise that all of them share is no part of their covariance
    mean, weights = _centred(sums.on_mean - sums.z_shifts[:, None], sums)
    bias = _group_means(sums.mean, sums)
    typical, offset = mean.mean(axis=0), bias.mean(axis=0)
    # the covariance is taken about the sample's own mean
    centre = typical[..., a] * offset[:, b] + typical[..., b] * offset[:, a]
    centre = centre + typical[..., a] * typical[..., b] / n[:, None]
    phi, _ = _centred(sums.on_products - centre, sums)
    share = np.where(a == b, 1.0, 2.0) * sums.pair_sample.weights
    own = _own_part(phi, sums.products, sums, share) / n
    # covariance of the influence over the tokens, from two halves of the groups
    part = mean[:, : len(weights)]
    first, second = part[: len(part) // 2].mean(axis=0), part[len(part) // 2 :].mean(axis=0)
    product = np.matmul(
        np.moveaxis(first * weights[:, None, None], 0, 2), np.moveaxis(second, 0, 1)
    )
    spread = (product + product.swapaxes(1, 2)) / 2
    level = spread / n[:, None, None] + offset[:, :, None] * offset[:, None, :]
    gaps = sums.second - level
    flat = gaps.reshape(len(bias), 1, len(n), -1)
    gram = _gram(phi, weights, share) / n[:, None, None]
    gram = gram + _gram(flat, np.ones(1), np.ones(flat.shape[-1]))
    limits = sums.z_limits
    shared, _ = _centred(sums.on_products - (limits[:, a] * limits[:, b])[:, None], sums)
    # (tr S)^2 / tr S^2 of the output's covariance S, at least 1 and at most its rank
    typical_second = sums.second.mean(axis=0)
    trace = np.trace(typical_second, axis1=-2, axis2=-1) ** 2
    square = np.sum(typical_second**2, axis=(-2, -1))
    dimension = np.divide(trace, square, out=np.ones_like(trace), where=square > 0)
    dimension = np.clip(dimension, 1.0, typical_second.shape[-1])
    # variance of all products of a query's shifted output
    _, shifted, along, lengths = sums.noise
    variances = 2 * lengths * shifted + 2 * along + shifted**2 * (1 + 1 / dimension)
    noise = _own_noise(shared, weights, share, variances, sums)
    gram, own = gram + noise[0], own + noise[1]
    crossed = _crossed(phi, len(weights)) / n[:, None]
    covariance = _jackknife(gram, own)
    covariance += sums.z.covariance((crossed * share).sum(axis=-1)) / sums.population**2
    per_pair = np.tensordot(weights, crossed, axes=1) * np.where(a == b, 1.0, 2.0)
    covariance += sums.pair_sample.covariance(per_pair.T)
    influence = phi.mean(axis=0)[: len(weights)]
    shape = _shape(sums, influence, gaps.mean(axis=0)[:, a, b], share, _value(*noise))
    return Predicted(n, _value(gram, own), covariance, shape)


def _value(gram: Array, own: Array) -> Array:
    """Mean product of different groups, ``gram`` [size, group, group], plus mean of ``own``.

    ``own`` are numbers of the groups, [group, size].
    """
    count = gram.shape[-1]
    total = gram.sum(axis=(-2, -1)) - np.trace(gram, axis1=-2, axis2=-1)
    return np.asarray(total / (count * (count - 1)) + own.mean(axis=0))


def _jackknife(gram: Array, own: Array) -> Array:
    """Covariance of :func:`_value`, by leaving out each group."""
    count = len(own)
    left = []
    for g in range(count):
        kept = np.delete(np.arange(count), g)
        left.append(_value(gram[:, kept][:, :, kept], own[kept]))
    centred = np.array(left) - np.mean(left, axis=0)
    return np.asarray((count - 1) / count * centred.T @ centred)


def _gram(x: Array, weights: Array, share: Array) -> Array:
    """Products of groups [group, token, size, k], summed over tokens and k with weights."""
    root = np.sqrt(weights)[:, None, None] * np.sqrt(share)
    rows = np.moveaxis(x[:, : len(weights)] * root, 2, 0).reshape(x.shape[2], len(x), -1)
    return np.asarray(rows @ rows.swapaxes(1, 2))


def _crossed(x: Array, count: int) -> Array:
    """Mean product of different groups for each of the first ``count`` tokens, [token, size, k]."""
    groups, part = len(x), x[:, :count]
    return np.asarray((part.sum(axis=0) ** 2 - np.sum(part**2, axis=0)) / (groups * (groups - 1)))


def _centred(x: Array, sums: CloudPass) -> tuple[Array, Array]:
    """``x`` less its mean over the tokens of the cloud, and the weights of the sampled ones.

    Weights are not scaled to a sum of 1: squares go with the chances, so that their sums are known
    better without.
    """
    weights = sums.z.weights / sums.population
    part = x[:, : len(weights)].reshape(len(x), len(weights), -1)
    mean = (weights / weights.sum()) @ part
    return x - mean.reshape(len(x), 1, *x.shape[2:]), weights


def _group_means(x: Array, sums: CloudPass) -> Array:
    """Mean over the queries of each group."""
    groups = range(int(sums.group.max()) + 1)
    members = [sums.group == g for g in groups]
    return np.stack([np.tensordot(sums.share[of], x[of], axes=1) for of in members])


def _own_part(phi: Array, change: Array, sums: CloudPass, share: Array) -> Array:
    """Contribution of a change of a token's own output to the variance of phi, [group, size].

    It is known at the sampled queries; ``phi`` there comes from the other groups.
    """
    groups = len(phi)
    if not sums.tokens:
        return np.zeros((groups, len(sums.n)))
    at = phi[:, len(sums.z.members) :]
    others = (at.sum(axis=0) - at) / (groups - 1)
    mine = others[sums.group, np.arange(len(sums.rows))]
    centred = change - np.tensordot(sums.share / groups, change, axes=1)
    return _group_means(((2 * centred * mine + centred**2) * share).sum(axis=-1), sums)


def _own_noise(
    shared: Array, weights: Array, share: Array, variances: Array, sums: CloudPass
) -> tuple[Array, Array]:
    """Contribution of the noise of single queries to the square, as :func:`_value` takes it.

    ``shared`` is the influence of tokens on the average query, ``variances`` [query, size] are
    those of single queries, see :func:`query_noise`.
    """
    gram = _gram(shared, weights, share) / sums.n[:, None, None]
    own = _group_means(variances, sums)
    return -gram / sums.averaged[:, None, None], own / sums.averaged


def _shape(sums: CloudPass, phi: Array, bias: Array, share: Array, noise: Array) -> Array:
    """Expected root over the root of the mean, of squares of samples drawn again.

    Squares are those of influences [token, size, k] and a bias [size, k], summed with weights
    ``share``; the noise of single queries hardly varies.
    """
    parts = np.broadcast_to(share, bias.shape)
    squares = [(moved @ phi[:, i] + bias[i]) ** 2 @ parts[i] for i, moved in enumerate(sums.moved)]
    return root_ratios(np.array(squares) + np.maximum(noise, 0.0)[:, None])


# Errors of a head over any cloud of tokens, at every n from one pass: no law, no simulation.
#
# n tokens are drawn with replacement from a cloud of N, so that the cloud is the law, exactly. The
# error of the MAP at a query is exact. Mean and covariance of the outputs are projected on single
# tokens (Hajek): ``mean_n - E mean_n ~ (1/n) sum_j phi_n(z_j)``, and likewise the covariance, with
#
#     phi_n(z) = n ( E[mean_n | z] - E mean_n )
#
# exact at that n (:func:`influence`). The squared error is ``E|phi_n|^2 / n`` plus the squared
# bias, which the same integrals give, plus the noise that each query has for itself
# (:func:`query_noise`). What is neglected is what two queries have in common beyond that.
#
# Averages over queries are sampled: queries come in groups, and squares are products of different
# groups, so that the noise of a group does not add to them. More queries are used to first order
# (:func:`first_order`). Tokens z, and pairs of coordinates of the covariance, are sampled with
# chances near their share of the result (:func:`choose`). Expected norms are less than roots of
# mean squares (:func:`root_ratios`). Standard errors come from leaving out each group of queries,
# and from the sampled tokens and pairs.

#: Fewest tokens n of a prediction.
FEWEST = 2
#: What is sampled unless a caller asks for more.
EFFORT = Effort()


@dataclass(frozen=True, eq=False)
class CloudErrors:
    """Predicted errors of a head over a cloud: of mean, covariance and map.

    ``map_squares`` are the squared errors of each sampled query at ``grid``, [query, size], and
    ``weights`` the weights of these queries, which sum to 1.
    """

    mean: Predicted
    cov: Predicted
    map: Predicted
    grid: Array
    map_squares: Array
    weights: Array


def cloud_errors(
    cloud: CloudHead,
    sizes: ArrayLike,
    *,
    grid: ArrayLike | None = None,
    effort: Effort = EFFORT,
    seed: int = 0,
) -> CloudErrors:
    """Predict the errors of a head that sees n tokens of a cloud.

    Parameters
    ----------
    cloud
        The head and its tokens.
    sizes
        Numbers of tokens n, at least 2.
    grid
        More sizes, for the map error only; the sizes if left out.
    effort
        How much is sampled.
    seed
        Of that.
    """
    n = as_sizes(sizes, smallest=FEWEST)
    more = n if grid is None else as_sizes(grid, smallest=FEWEST)
    rng = random_stream(seed, "cloud errors")
    sums = CloudPass(cloud, n, more, effort, rng)
    mean, cov, map_ = mean_squares(sums), cov_squares(sums), map_squares(sums)
    weights = sums.share / sums.share.sum()
    return CloudErrors(mean, cov, map_, more, sums.map_squares, weights)


# Error curves of tokens of any law that can be sampled: from clouds drawn from it.
#
# For tokens that are not Gaussian nothing is known in closed form. But n tokens of the law are
# nearly n tokens of a cloud of N >> n tokens drawn from it, and over a cloud everything follows
# from one pass (:mod:`cloud`). Several clouds are drawn, and their spread gives the standard error.
# A captured head is a cloud already.
#
# The cloud lacks the rarest tokens of the law: for n near N its errors are too small. Curves end at
# ``N / PER_TOKEN``.

#: Tokens of a cloud for each token of the largest n, and bounds of their number.
PER_TOKEN, SMALLEST, LARGEST = 4, 2048, 16_384
#: Clouds that are drawn.
CLOUDS = 4
#: Queries whose attention to a whole cloud is held at a time.
BLOCK = 512


def largest_size(head: Head) -> float:
    """Largest n at which the errors of a head can be predicted from clouds."""
    return np.inf if isinstance(head, ArrayHead) else LARGEST / PER_TOKEN


def law_curves(head: Head, sizes: Array, queries: str, seed: int) -> dict[str, Curve]:
    """Predicted curves ``map``, ``mean``, ``mean_rms`` and ``cov_rms``.

    Parameters
    ----------
    head
        Any head with a limit.
    sizes
        Numbers of tokens, up to :func:`largest_size`.
    queries
        ``"tokens"`` or ``"population"``.
    seed
        Of the clouds, and of what is sampled of them.
    """
    clouds = []
    if isinstance(head, ArrayHead):
        tokens = head.take(np.arange(len(head.keys)))
        clouds.append(cloud_errors(_cloud(tokens, tokens.tilts, queries), sizes, seed=seed))
        method = f"one pass over the {len(head.keys):,} tokens"
    else:
        count = int(np.clip(PER_TOKEN * sizes.max(), SMALLEST, LARGEST))
        for i in range(CLOUDS):
            rng = random_stream(seed, "law cloud", i)
            outside = head.sample(count, rng).tilts if queries == "population" else None
            tokens = head.sample(count, rng)
            cloud = _cloud(tokens, tokens.tilts if outside is None else outside, queries)
            clouds.append(cloud_errors(cloud, sizes, seed=seed + i))
        method = f"one pass over each of {CLOUDS} drawn clouds of {count:,} tokens"
    curves = {}
    for name in ("map", "mean", "mean_rms", "cov_rms"):
        parts: list[Predicted] = [getattr(cloud, name.removesuffix("_rms")) for cloud in clouds]
        squares = np.square([part.norm if name == "mean" else part.rms for part in parts])
        error = np.sqrt(squares.mean(axis=0))
        noise = parts[0].standard_error
        if len(parts) > 1:
            # The spread of so few is uncertain: it is widened by Student's quantile over the normal
            # one (at 95%), so that intervals of twice the error hold what they promise.
            wider = float(scipy.special.stdtrit(CLOUDS - 1, 0.975) / scipy.special.ndtri(0.975))
            spread = wider * squares.std(axis=0, ddof=1) / np.sqrt(len(parts))
            noise = spread / np.maximum(2 * error, TINY)
        curves[name] = Curve(sizes, error, noise, method)
    return curves


def _cloud(tokens: Tokens, tilts: Array, queries: str) -> CloudHead:
    """The head over a cloud: its outputs at queries of given tilts."""
    outputs = np.empty((len(tilts), tokens.values.shape[1]))

    def logits(rows: Rows) -> Array:
        return np.asarray(tilts[rows] @ tokens.keys.T)

    for start in range(0, len(tilts), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(tilts)))
        block = logits(rows)
        weights = np.exp(block - block.max(axis=1, keepdims=True))
        outputs[rows] = weights @ tokens.values / weights.sum(axis=1, keepdims=True)
    own = np.arange(len(tilts)) if queries == "tokens" else None
    return CloudHead(tokens.values, outputs, logits, own)
