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
from esscher.math.theory.cloud_influence import Redrawn, dimension_of, root_ratios
from esscher.math.theory.cloud_pass import CloudHead, CloudPass, Effort, Rows
from esscher.math.theory.curve import Curve


@dataclass(frozen=True, eq=False)
class Squares:
    """Mean squared error at each size.

    Attributes
    ----------
    square, covariance
        The estimate, [size], and its covariance.
    shape
        Expected norm of the error over the root of its mean square (:class:`Redrawn`).
    """

    square: Array
    covariance: Array
    shape: Array


def map_squares(found: CloudPass) -> Squares:
    """Error of single outputs: exact at each query, and averaged over the sampled ones.

    Its norm is the root of a mean over the queries of a sample.
    """
    means = _group_means(found.squares, found)
    groups = _Groups(np.zeros((len(found.n), len(means), len(means))), means)
    shape = found.redrawn.kernels(found.map_kernels())
    if found.tokens:
        # as tokens are drawn, so are queries
        shape = shape * Redrawn(found.share, found.n, found.rng).means(found.squares)
    return Squares(groups.value, groups.covariance(), shape)


def mean_squares(found: CloudPass) -> Squares:
    """Error of the mean output."""
    ones = np.ones(found.outputs.shape[1])
    phi, weights = _centred(found.on_mean, found)
    # what attending n tokens changes in a token's own output
    own = _own_part(phi, found.mean + found.mean_shift(), found, ones)
    bias = _group_means(found.mean, found)
    variance = _Groups(_gram(phi, weights, ones), own).over(found.n)
    groups = variance + _Groups(_gram(bias[:, None], np.ones(1), ones), np.zeros_like(own))
    shared, _ = _centred(found.on_mean - found.z_limits[:, None], found)
    noise = _own_noise(shared, weights, ones, found.noise.output, found)
    groups = groups + noise
    per_token = _crossed(phi, len(weights)).sum(axis=-1) / found.n
    covariance = groups.covariance() + found.z.covariance(per_token) / found.population**2
    influence = phi.mean(axis=0)[: len(weights)]
    shape = _shape(found.redrawn.squares(influence, bias.mean(axis=0), ones), noise.value)
    return Squares(groups.value, covariance, shape)


def cov_squares(found: CloudPass) -> Squares:
    """Error of the covariance of the outputs, in Frobenius' norm."""
    n, (a, b) = found.n, found.pairs
    # shifted outputs: the noise that all of them share is no part of their covariance
    shifted = found.on_mean - found.z_shifts[:, None]
    mean, weights = _centred(shifted, found)
    bias = _group_means(found.mean, found)
    typical, offset = mean.mean(axis=0), bias.mean(axis=0)
    # the covariance is taken about the sample's own mean
    about = typical[..., a] * offset[:, b] + typical[..., b] * offset[:, a]
    about = about + typical[..., a] * typical[..., b] / n[:, None]
    phi, _ = _centred(found.on_products - about, found)
    share = np.where(a == b, 1.0, 2.0) * found.chosen_pairs.weights
    own = _own_part(phi, found.products, found, share)
    level = _spread(mean, weights) / n[:, None, None] + offset[:, :, None] * offset[:, None, :]
    gaps = (found.second - level).reshape(len(bias), 1, len(n), -1)
    entries = np.ones(gaps.shape[-1])
    variance = _Groups(_gram(phi, weights, share), own).over(n)
    groups = variance + _Groups(_gram(gaps, np.ones(1), entries), np.zeros_like(own))
    limits = found.z_limits
    shared, _ = _centred(found.on_products - (limits[:, a] * limits[:, b])[:, None], found)
    dimension = dimension_of(found.second.mean(axis=0))
    noise = _own_noise(shared, weights, share, found.noise.of_products(dimension), found)
    groups = groups + noise
    crossed = _crossed(phi, len(weights)) / n[:, None]
    covariance = groups.covariance()
    covariance += found.z.covariance((crossed * share).sum(axis=-1)) / found.population**2
    per_pair = np.tensordot(weights, crossed, axes=1) * np.where(a == b, 1.0, 2.0)
    covariance += found.chosen_pairs.covariance(per_pair.T)
    influence = phi.mean(axis=0)[: len(weights)]
    offsets = (found.second - level).mean(axis=0)[:, a, b]
    shape = _shape(found.redrawn.squares(influence, offsets, share), noise.value)
    return Squares(groups.value, covariance, shape)


@dataclass(frozen=True, eq=False)
class _Groups:
    """Products of groups, ``gram`` [size, group, group], and numbers of them, [group, size].

    The value is the mean product of different groups plus the mean number.
    """

    gram: Array
    own: Array

    def over(self, n: Array) -> _Groups:
        return _Groups(self.gram / n[:, None, None], self.own / n)

    def __add__(self, other: _Groups) -> _Groups:
        return _Groups(self.gram + other.gram, self.own + other.own)

    @property
    def value(self) -> Array:
        return np.asarray(_off_diagonal(self.gram) + self.own.mean(axis=0))

    def covariance(self) -> Array:
        """Of the value, by leaving out each group."""
        count = len(self.own)
        left = []
        for g in range(count):
            kept = np.delete(np.arange(count), g)
            gram = self.gram[:, kept][:, :, kept]
            left.append(_off_diagonal(gram) + self.own[kept].mean(axis=0))
        centred = np.array(left) - np.mean(left, axis=0)
        return np.asarray((count - 1) / count * centred.T @ centred)


def _off_diagonal(gram: Array) -> Array:
    """Mean of the products of different groups."""
    count = gram.shape[-1]
    total = gram.sum(axis=(-2, -1)) - np.trace(gram, axis1=-2, axis2=-1)
    return np.asarray(total / (count * (count - 1)))


def _gram(x: Array, weights: Array, share: Array) -> Array:
    """Products of groups [group, token, size, k], summed over tokens and k with weights."""
    root = np.sqrt(weights)[:, None, None] * np.sqrt(share)
    rows = np.moveaxis(x[:, : len(weights)] * root, 2, 0).reshape(x.shape[2], len(x), -1)
    return np.asarray(rows @ rows.swapaxes(1, 2))


def _crossed(x: Array, count: int) -> Array:
    """Mean product of different groups for each of the first ``count`` tokens, [token, size, k]."""
    groups, part = len(x), x[:, :count]
    return np.asarray((part.sum(axis=0) ** 2 - np.sum(part**2, axis=0)) / (groups * (groups - 1)))


def _centred(x: Array, found: CloudPass) -> tuple[Array, Array]:
    """``x`` less its mean over the tokens of the cloud, and the weights of the sampled ones.

    Weights are not scaled to a sum of 1: squares go with the chances, so that their sums are known
    better without.
    """
    weights = 1 / found.z.chances / found.population
    part = x[:, : len(weights)].reshape(len(x), len(weights), -1)
    mean = (weights / weights.sum()) @ part
    return x - mean.reshape(len(x), 1, *x.shape[2:]), weights


def _group_means(x: Array, found: CloudPass) -> Array:
    """Mean over the queries of each group."""
    groups = range(int(found.group.max()) + 1)
    members = [found.group == g for g in groups]
    return np.stack([np.tensordot(found.share[of], x[of], axes=1) for of in members])


def _own_part(phi: Array, change: Array, found: CloudPass, share: Array) -> Array:
    """What a change of a token's own output adds to the variance of phi, [group, size].

    It is known at the sampled queries; ``phi`` there comes from the other groups.
    """
    groups = len(phi)
    if not found.tokens:
        return np.zeros((groups, len(found.n)))
    at = phi[:, len(found.z.members) :]
    others = (at.sum(axis=0) - at) / (groups - 1)
    mine = others[found.group, np.arange(len(found.rows))]
    centred = change - np.tensordot(found.share / groups, change, axes=1)
    return _group_means(((2 * centred * mine + centred**2) * share).sum(axis=-1), found)


def _own_noise(
    shared: Array, weights: Array, share: Array, variances: Array, found: CloudPass
) -> _Groups:
    """What the noise of single queries adds to the square: see :class:`QueryNoise`.

    ``shared`` is the influence of tokens on the average query, ``variances`` [query, size] are
    those of single queries.
    """
    gram = _gram(shared, weights, share) / found.n[:, None, None]
    return _Groups(-gram, _group_means(variances, found)).over(found.averaged)


def _shape(squares: Array, noise: Array) -> Array:
    """Expected root over the root of the mean; noise of single queries hardly varies."""
    return root_ratios(squares + np.maximum(noise, 0.0)[:, None])


def _spread(phi: Array, weights: Array) -> Array:
    """Covariance of phi over the tokens, from two halves of the groups, [size, k, k]."""
    part = phi[:, : len(weights)]
    half = len(part) // 2
    first, second = part[:half].mean(axis=0), part[half:].mean(axis=0)
    product = np.matmul(
        np.moveaxis(first * weights[:, None, None], 0, 2), np.moveaxis(second, 0, 1)
    )
    return np.asarray((product + product.swapaxes(1, 2)) / 2)


# Errors of a head over any cloud of tokens, at every n from one pass: no law, no simulation.
#
# n tokens are drawn with replacement from a cloud of N, so that the cloud is the law, exactly. The
# error of the MAP at a query is exact. Mean and covariance of the outputs are projected on single
# tokens (Hajek): ``mean_n - E mean_n ~ (1/n) sum_j phi_n(z_j)``, and likewise the covariance, with
#
#     phi_n(z) = n ( E[mean_n | z] - E mean_n )
#
# exact at that n (:mod:`cloud_influence`). The squared error is ``E|phi_n|^2 / n`` plus the squared
# bias, which the same integrals give, plus the noise that each query has for itself
# (:class:`QueryNoise`). What is neglected is what two queries have in common beyond that.
#
# Averages over queries are sampled: queries come in groups, and squares are products of different
# groups, so that the noise of a group does not add to them. More queries are asked to first order
# (:class:`FirstOrder`). Tokens z, and pairs of coordinates of the covariance, are sampled with
# chances near their share of the result (:func:`choose`). Expected norms are less than roots
# of mean squares (:class:`Redrawn`). Standard errors come from leaving out each group of queries,
# and from the sampled tokens and pairs.

#: Fewest tokens n of a prediction.
FEWEST = 2
#: Less than any squared error.
TINY = 1e-300
#: What is sampled unless a caller asks for more.
EFFORT = Effort()


@dataclass(frozen=True, eq=False)
class Predicted(Squares):
    """A mean squared error as a curve: see :class:`Squares`, at the sizes n."""

    sizes: Array

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
    found = CloudPass(cloud, n, more, effort, rng)
    parts = (mean_squares(found), cov_squares(found), map_squares(found))
    mean, cov, map_ = (Predicted(**vars(part), sizes=n) for part in parts)
    weights = found.share / found.share.sum()
    return CloudErrors(mean, cov, map_, more, found.map_squares, weights)


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
    if isinstance(head, ArrayHead):
        found = [
            cloud_errors(
                _cloud(head.take(np.arange(len(head.keys))), queries, None), sizes, seed=seed
            )
        ]
        method = f"one pass over the {len(head.keys):,} tokens"
    else:
        count = int(np.clip(PER_TOKEN * sizes.max(), SMALLEST, LARGEST))
        found = [_drawn(head, sizes, queries, count, seed, i) for i in range(CLOUDS)]
        method = f"one pass over each of {CLOUDS} drawn clouds of {count:,} tokens"
    validity = "second order in part (pairs of queries left out); no rarer tokens than in the cloud"
    curves = {
        "map": ("map", "rms", [e.map.rms for e in found], [e.map.standard_error for e in found]),
        "mean": (
            "mean",
            "mean",
            [e.mean.norm for e in found],
            [e.mean.standard_error for e in found],
        ),
        "mean_rms": (
            "mean",
            "rms",
            [e.mean.rms for e in found],
            [e.mean.standard_error for e in found],
        ),
        "cov_rms": (
            "cov",
            "rms",
            [e.cov.rms for e in found],
            [e.cov.standard_error for e in found],
        ),
    }
    return {
        name: Curve(metric, statistic, sizes, *_together(errors, noise), queries, method, validity)
        for name, (metric, statistic, errors, noise) in curves.items()
    }


def _drawn(head: Head, sizes: Array, queries: str, count: int, seed: int, i: int) -> CloudErrors:
    rng = random_stream(seed, "law cloud", i)
    asking = head.sample(count, rng).tilts if queries == "population" else None
    return cloud_errors(_cloud(head.sample(count, rng), queries, asking), sizes, seed=seed + i)


def _cloud(tokens: Tokens, queries: str, asking: Array | None) -> CloudHead:
    tilts = tokens.tilts if asking is None else asking
    outputs = np.empty((len(tilts), tokens.values.shape[1]))

    def logits(rows: Rows) -> Array:
        return np.asarray(tilts[rows] @ tokens.keys.T)

    for start in range(0, len(tilts), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(tilts)))
        found = logits(rows)
        weights = np.exp(found - found.max(axis=1, keepdims=True))
        outputs[rows] = weights @ tokens.values / weights.sum(axis=1, keepdims=True)
    own = np.arange(len(tilts)) if queries == "tokens" else None
    return CloudHead(tokens.values, outputs, logits, own)


def _together(errors: list[Array], noise: list[Array]) -> tuple[Array, Array]:
    """Root mean square over clouds, and its standard error: their spread, or that of one pass."""
    squares = np.square(errors)
    error = np.sqrt(squares.mean(axis=0))
    if len(errors) == 1:
        return error, np.asarray(noise[0])
    # The spread of so few is uncertain: it is widened by Student's quantile over the normal one (at
    # 95%), so that intervals of twice the error hold what they promise.
    wider = float(scipy.special.stdtrit(CLOUDS - 1, 0.975) / scipy.special.ndtri(0.975))
    spread = wider * squares.std(axis=0, ddof=1) / np.sqrt(len(errors))
    return error, np.asarray(spread / np.maximum(2 * error, 1e-300))
