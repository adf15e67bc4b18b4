"""Errors of a head over any cloud of tokens, at every n from one pass: no law, no simulation.

n tokens are drawn with replacement from a cloud of N, so that the cloud is the law, exactly. The
error of the MAP at a query is exact. Mean and covariance of the outputs are projected on single
tokens (Hajek): ``mean_n - E mean_n ~ (1/n) sum_j phi_n(z_j)``, and likewise the covariance, with

    phi_n(z) = n ( E[mean_n | z] - E mean_n )

exact at that n (:mod:`cloud_influence`). The squared error is ``E|phi_n|^2 / n`` plus the squared
bias, which the same integrals give, plus the noise that each query has for itself
(:mod:`cloud_noise`). What is neglected is what two queries have in common beyond that.

Averages over queries are sampled: queries come in groups, and squares are products of different
groups, so that the noise of a group does not add to them. More queries are asked to first order
(:mod:`cloud_first_order`). Tokens z, and pairs of coordinates of the covariance, are sampled with
chances near their share of the result (:mod:`cloud_sampling`). Expected norms are less than roots
of mean squares (:mod:`cloud_shape`).
Standard errors come from leaving out each group of queries, and from the sampled tokens and pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_sizes
from esscher.math.theory.cloud_pass import CloudHead, CloudPass, Effort
from esscher.math.theory.cloud_squares import Squares, cov_squares, map_squares, mean_squares

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
