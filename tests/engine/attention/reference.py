"""Dense attention in float64, one head and one size at a time: slow and obvious."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Dense:
    """Everything the kernel may return, for one head, scale and size."""

    mean: np.ndarray
    covariance: np.ndarray
    map_square: float
    received: np.ndarray
    participation: np.ndarray
    largest: np.ndarray
    logit: float


def dense(
    q, k, v, *, n, scale, factor, separate=False, causal=False, keys=None, queries=None, limit=None
):
    """Attention of the queries that count over the first ``n`` keys, by the definition."""
    q, k, v = (x.to(torch.float64).numpy() for x in (q, k, v))
    kept_queries = np.ones(len(q), bool) if queries is None else queries.numpy().copy()
    kept_keys = np.ones(len(k), bool) if keys is None else keys.numpy().copy()
    kept_keys[n:] = False
    if not separate:
        kept_queries[n:] = False
    logits = scale * factor * (q @ (k - k.mean(0)).T)
    size = float(np.abs(logits).max())
    allowed = np.broadcast_to(kept_keys, logits.shape).copy()
    if causal:
        allowed &= np.tri(len(q), len(k), dtype=bool)
    logits = np.where(allowed, logits, -np.inf)[kept_queries]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    y = p @ v
    square = np.nan
    if limit is not None:
        square = float(((y - limit.numpy()[kept_queries]) ** 2).sum(1).mean())
    return Dense(
        mean=y.mean(0),
        covariance=np.atleast_2d(np.cov(y.T, bias=True)),
        map_square=square,
        received=p.sum(0)[:n],
        participation=1 / (p**2).sum(1),
        largest=p.max(1),
        logit=size,
    )
