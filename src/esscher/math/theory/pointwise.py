"""Error at one query, for any law with exponential moments.

Softmax attention is self-normalised importance sampling: with ``w = exp<t, X>`` and
``G = grad K(t)``,

    n Cov(Gamma_n) -> V E[w^2 (X-G)(X-G)'] V' / E[w]^2
                    = exp(K(2t) - 2 K(t)) V [ K''(2t) + (K'(2t) - G)(K'(2t) - G)' ] V'.

The right-hand side needs only the law's cumulant generating function, so it is exact for every
law; it is infinite as soon as ``2t`` leaves the law's tilt domain, although the limit may exist at
``t``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_points
from esscher.math.heads import ArrayHead, Head, WeightHead, as_head
from esscher.math.laws import Law


@dataclass(frozen=True, eq=False)
class PointwiseError:
    """Asymptotic error at given queries, as scale and shape so that nothing overflows.

    ``n Cov(Gamma_n(x)) -> exp(log_inflation) * shape``. The effective sample size at n tokens is
    ``n exp(-log_inflation)``; ``log_inflation`` is infinite where the variance is, and ``nan``
    where there is no limit at all.
    """

    log_inflation: Array
    shape: Array

    @property
    def covariance(self) -> Array:
        """Limit of ``n Cov(Gamma_n(x))``, one matrix per query (may overflow to infinity)."""
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.exp(self.log_inflation)[..., None, None] * self.shape
        return np.where(np.isposinf(self.log_inflation)[..., None, None], np.inf, finite)

    def tokens_for(self, relative_error: float) -> Array:
        """Tokens at which the effective sample size reaches ``1 / relative_error^2``."""
        if not 0 < relative_error < np.inf:
            raise InputError(f"relative_error is {relative_error!r}; it must be positive")
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(self.log_inflation - 2 * np.log(relative_error)))


def pointwise_error(head: Head, tilts: ArrayLike) -> PointwiseError:
    """Asymptotic error of attention at the given tilts of the keys, of shape (..., d_k)."""
    t = as_points(tilts, as_head(head).key_dim, "tilts")
    law, value = _law_and_values(head)
    u = head.law_tilts(t)
    if isinstance(head, ArrayHead):
        u = np.concatenate([u, np.zeros((*u.shape[:-1], head.value_dim))], axis=-1)
    once, twice = law.log_mgf(u), law.log_mgf(2 * u)
    exists = np.isfinite(once)
    inflation = np.where(exists, twice - 2 * np.where(exists, once, 0.0), np.nan)
    lean = law.tilted_mean(2 * u) - law.tilted_mean(u)
    spread = law.tilted_covariance(2 * u) + lean[..., :, None] * lean[..., None, :]
    return PointwiseError(np.asarray(inflation), value @ spread @ value.T)


def _law_and_values(head: Head) -> tuple[Law, Array]:
    """Return the token law and the linear map from tokens to values."""
    if isinstance(head, WeightHead):
        return head.law, head.value_weight
    if isinstance(head, ArrayHead):
        pick = np.hstack([np.zeros((head.value_dim, head.key_dim)), np.eye(head.value_dim)])
        return head.cloud, pick
    raise InputError(f"pointwise errors are not available for a {type(head).__name__}")
