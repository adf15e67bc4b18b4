"""Infinite-token limits: the output map, the law of the outputs, deep Gaussian stacks."""

from __future__ import annotations

from esscher.math.limits.mapping import (
    AffineMap,
    AttentionLayer,
    MapLimit,
    NoLimit,
    OutputMoments,
    StackLimit,
    gaussian_limit_map,
    gaussian_stack,
    limit_map,
)
from esscher.math.limits.moments import limit_moments, missing_limit, sphere_output_eigenvalues

__all__ = [
    "AffineMap",
    "AttentionLayer",
    "MapLimit",
    "NoLimit",
    "OutputMoments",
    "StackLimit",
    "gaussian_limit_map",
    "gaussian_stack",
    "limit_map",
    "limit_moments",
    "missing_limit",
    "sphere_output_eigenvalues",
]
