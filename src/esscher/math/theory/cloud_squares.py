"""From the sums of a pass over a cloud to mean squared errors, with the covariance of the estimate.

Squares of averages over queries are products of different groups of queries: see :mod:`cloud`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.theory.cloud_noise import dimension_of
from esscher.math.theory.cloud_pass import CloudPass
from esscher.math.theory.cloud_shape import Redrawn, root_ratios


@dataclass(frozen=True, eq=False)
class Squares:
    """Mean squared error at each size.

    Attributes
    ----------
    square, covariance
        The estimate, [size], and its covariance.
    shape
        Expected norm of the error over the root of its mean square (:mod:`cloud_shape`).
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
    """What the noise of single queries adds to the square: see :mod:`cloud_noise`.

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
