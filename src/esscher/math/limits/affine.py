"""Gaussian tokens: the limit map is affine, so Gaussian tokens give Gaussian outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.heads import WeightHead


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
