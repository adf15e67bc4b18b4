"""Infinite-token limits: the output map, the law of the outputs, deep Gaussian stacks."""

from __future__ import annotations

from esscher.math.limits.mapping import (
    AttentionLayer,
    NoLimit,
    OutputMoments,
    StackLimit,
    gaussian_stack,
    limit_map,
)
from esscher.math.limits.moments import limit_moments, missing_limit

__all__ = [
    "AttentionLayer",
    "NoLimit",
    "OutputMoments",
    "StackLimit",
    "gaussian_stack",
    "limit_map",
    "limit_moments",
    "missing_limit",
]
