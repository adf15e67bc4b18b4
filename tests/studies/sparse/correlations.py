"""Covariances of autoregressive sequences, by hand."""

from __future__ import annotations

import numpy as np


def correlations(tokens: int, positions: np.ndarray, rho: float) -> tuple[np.ndarray, ...]:
    """Covariance of tokens, of tokens with queries, and of queries."""
    at = np.arange(tokens)
    own = rho ** np.abs(at[:, None] - at)
    cross = rho * own[:, positions]
    queries = rho**2 * own[np.ix_(positions, positions)] + (1 - rho**2) * np.eye(len(positions))
    return own, cross, queries
