"""Clouds of tokens with one known direction among Gaussian ones."""

from __future__ import annotations

import numpy as np

DIM = 16


def planted(law: str, count: int, seed: int, dim: int = DIM):
    """Tokens [count, dim] with one direction of another law, and that direction."""
    rng = np.random.default_rng([seed, 99])
    tokens = rng.standard_normal((count, dim))
    draw = {
        "gaussian": lambda: rng.standard_normal(count),
        "uniform": lambda: rng.uniform(-1, 1, count),
        "mixture": lambda: rng.standard_normal(count) + 4 * (rng.random(count) < 0.1),
        "laplace": lambda: rng.laplace(size=count),
        "student": lambda: rng.standard_t(5, size=count),
    }[law]
    if law == "uniform":
        tokens = rng.uniform(-1, 1, (count, dim))
    tokens[:, 0] = draw()
    # stretched and turned, so that neither axes nor principal axes give the direction away
    scales = np.exp(rng.uniform(-1, 1, dim))
    scales[0] = 1.0
    turn, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    return (tokens * scales) @ turn, turn[0]


def blocks(tokens):
    """Consecutive tokens as 32 blocks, instead of passages."""
    return np.arange(len(tokens)) * 32 // len(tokens)
