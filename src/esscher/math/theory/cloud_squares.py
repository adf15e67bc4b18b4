"""From the sums of a pass over a cloud to mean squared errors, with the covariance of the estimate.

Squares of averages over queries are products of different groups of queries: see :mod:`cloud`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.theory.cloud_pass import CloudPass


@dataclass(frozen=True, eq=False)
class Squares:
    """Mean squared error at each size.

    Attributes
    ----------
    square, covariance
        The estimate, [size], and its covariance.
    bias
        The squared bias, a part of it.
    dimension
        Effective dimension of the fluctuation: (sum of variances)^2 over the sum of their squares.
    """

    square: Array
    covariance: Array
    bias: Array
    dimension: Array


def map_squares(found: CloudPass) -> Squares:
    """Error of single outputs: exact at each query, and averaged over the sampled ones."""
    means = _group_means(found.squares, found)
    nothing = np.zeros(len(found.n))
    groups = _Groups(np.zeros((len(found.n), len(means), len(means))), means)
    return Squares(groups.value, groups.covariance(), nothing, np.full(len(found.n), np.inf))


def mean_squares(found: CloudPass) -> Squares:
    """Error of the mean output."""
    ones = np.ones(found.outputs.shape[1])
    phi, weights = _centred(found.on_mean, found)
    # what attending n tokens changes in a token's own output
    own = _own_part(phi, found.mean + found.mean_shift(), found, ones)
    bias = _group_means(found.mean, found)
    variance = _Groups(_gram(phi, weights, ones), own).over(found.n)
    groups = variance + _Groups(_gram(bias[:, None], np.ones(1), ones), np.zeros_like(own))
    per_token = _crossed(phi, len(weights)).sum(axis=-1) / found.n
    covariance = groups.covariance() + found.z.covariance(per_token) / found.population**2
    return Squares(
        groups.value,
        covariance,
        np.maximum(_off_diagonal(_gram(bias[:, None], np.ones(1), ones)), 0.0),
        _dimension(np.asarray(np.linalg.eigvalsh(_spread(phi, weights)))),
    )


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
    share = np.where(a == b, 1.0, 2.0) / found.chosen_pairs.chances
    own = _own_part(phi, found.products, found, share)
    level = _spread(mean, weights) / n[:, None, None] + offset[:, :, None] * offset[:, None, :]
    gaps = (found.second - level).reshape(len(bias), 1, len(n), -1)
    entries = np.ones(gaps.shape[-1])
    variance = _Groups(_gram(phi, weights, share), own).over(n)
    groups = variance + _Groups(_gram(gaps, np.ones(1), entries), np.zeros_like(own))
    crossed = _crossed(phi, len(weights)) / n[:, None]
    covariance = groups.covariance()
    covariance += found.z.covariance(crossed @ share) / found.population**2
    per_pair = np.tensordot(weights, crossed, axes=1) * np.where(a == b, 1.0, 2.0)
    covariance += found.chosen_pairs.covariance(per_pair.T)
    return Squares(
        groups.value,
        covariance,
        np.maximum(_off_diagonal(_gram(gaps, np.ones(1), entries)), 0.0),
        _dimension(per_pair, 1 / found.chosen_pairs.chances),
    )


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
    """``x`` less its mean over the tokens of the cloud, and the weights of the sampled ones."""
    weights = 1 / found.z.chances / found.population
    weights /= weights.sum()
    return x - np.einsum("z,gzsk->gsk", weights, x[:, : len(weights)])[:, None], weights


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
    return _group_means((2 * centred * mine + centred**2) @ share, found)


def _spread(phi: Array, weights: Array) -> Array:
    """Covariance of phi over the tokens, from two halves of the groups, [size, k, k]."""
    part = phi[:, : len(weights)]
    half = len(part) // 2
    first, second = part[:half].mean(axis=0), part[half:].mean(axis=0)
    product = np.matmul(
        np.moveaxis(first * weights[:, None, None], 0, 2), np.moveaxis(second, 0, 1)
    )
    return np.asarray((product + product.swapaxes(1, 2)) / 2)


def _dimension(variances: Array, weights: Array | float = 1.0) -> Array:
    """(sum of variances)^2 over the sum of their squares, at each size; at least 1."""
    kept = np.maximum(variances, 0.0)
    below = np.sum(weights * kept**2, axis=-1)
    above = np.sum(weights * kept, axis=-1) ** 2
    found = np.divide(above, below, out=np.ones_like(above), where=below > 0)
    return np.asarray(np.maximum(found, 1.0))
