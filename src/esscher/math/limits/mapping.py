"""The limit map: what attention returns for a query once there are infinitely many tokens.

For Gaussian tokens it is affine, so that Gaussian tokens give Gaussian outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_points
from esscher.math.heads import ArrayHead, Head, WeightHead, as_head
from esscher.math.laws import FiniteTokens
from esscher.math.limits.results import MapLimit, NoLimit


def limit_map(
    head: Head, tokens: ArrayLike | None = None, tilts: ArrayLike | None = None
) -> MapLimit:
    """``Gamma(q) = V grad K(t) + b_v`` at given queries.

    Parameters
    ----------
    head
        Any head.
    tokens
        Tokens x that ask, of shape (..., d), for a head from weights: ``t = A x + a``.
    tilts
        Or the tilts ``q / sqrt(d_k)`` of the keys, of shape (..., d_k), for any head.

    Returns
    -------
    MapLimit
        With ``nan`` at the queries outside the law's tilt domain, and their fraction.
    """
    t = _tilts(as_head(head), tokens, tilts)
    values = head.limit_map(t)
    # A tilt inside the domain may still have no limit: Student tokens without a mean, at t = 0.
    exists = head.tilt_domain.contains(head.law_tilts(t)) & np.isfinite(values).all(axis=-1)
    missing = None
    if not exists.all():
        missing = NoLimit(
            law=repr(head.law) if isinstance(head, WeightHead) else type(head).__name__,
            fraction=float(1.0 - exists.mean()),
            fraction_error=0.0,
            reason=f"of the {exists.size} given; the limit needs {head.tilt_domain}",
        )
    finite = isinstance(head, ArrayHead) or (
        isinstance(head, WeightHead) and isinstance(head.law, FiniteTokens)
    )
    return MapLimit(
        values=values,
        exists=exists,
        method="finite sum" if finite else "closed form",
        standard_error=np.zeros_like(values),
        missing=missing,
    )


def _tilts(head: Head, tokens: ArrayLike | None, tilts: ArrayLike | None) -> Array:
    """Return the tilts of the keys that the caller described in one of two ways."""
    if (tokens is None) == (tilts is None):
        raise InputError("give the queries either as tokens=... or as tilts=...")
    if tokens is not None:
        if not isinstance(head, WeightHead):
            raise InputError(
                f"a {type(head).__name__} has no weights to turn tokens into queries; "
                "give the queries as tilts=..."
            )
        points = as_points(tokens, head.law.dim, "tokens")
        rows = head.tokens(points.reshape(-1, head.law.dim)).tilts
        return rows.reshape(*points.shape[:-1], rows.shape[-1])
    # Not head.key_dim for weights: it asks for moments, which heavy-tailed laws do not have.
    dim = len(head.query_weight) if isinstance(head, WeightHead) else head.key_dim
    return as_points(tilts if tilts is not None else [], dim, "tilts")


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The map ``x -> slope x + offset``."""

    slope: Array
    offset: Array

    def __call__(self, points: Array) -> Array:
        """Map points, one per row."""
        return np.asarray(points @ self.slope.T + self.offset)

    def push(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Mean and covariance of the image of a law: ``L m + c`` and ``L Sigma L'``."""
        image = self.slope @ covariance @ self.slope.T
        return self.slope @ mean + self.offset, (image + image.T) / 2


def gaussian_limit_map(head: WeightHead) -> AffineMap:
    """``Gamma(x) = V (m + Sigma (A x + a)) + b_v`` for a head over N(m, Sigma)."""
    mean, covariance = head.law.mean, head.law.covariance
    # V Sigma W_k' first: it has as many columns as keys have dimensions, A as many as tokens.
    reach = head.value_weight @ covariance @ head.key_weight.T * head.scale
    return AffineMap(
        slope=reach @ head.query_weight,
        offset=head.value_weight @ mean + reach @ head.query_bias + head.value_bias,
    )
