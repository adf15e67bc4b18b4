"""Hardmax means from all keys, for the tests of the exact values and of the simulation."""

from __future__ import annotations

import math

import numpy as np


def brute_means(n: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """|mean| of hardmax attention in one dimension: population queries, token queries."""
    x = rng.standard_normal((count, n))
    top, bottom = x.max(axis=1), x.min(axis=1)
    picks = np.where(x > 0, top[:, None], bottom[:, None])
    return np.abs(top + bottom) / 2, np.abs(picks.mean(axis=1))


def planar_mean(keys: np.ndarray) -> np.ndarray:
    """Mean pick over all directions of the plane, exactly: vertices weighted by their angles."""
    order = [int(np.argmax(keys[:, 0]))]
    angle = 0.0
    total = np.zeros(2)
    while angle < 2 * math.pi:
        here = keys[order[-1]]
        gaps = here - np.delete(keys, order[-1], axis=0)
        # The pick changes from a to b at the next angle at which <a - b, u> = 0 and falls.
        crossing = (np.arctan2(gaps[:, 1], gaps[:, 0]) + math.pi / 2 - angle) % (2 * math.pi)
        step = float(crossing.min())
        end = min(angle + step, 2 * math.pi)
        total += (end - angle) * here
        nearest = int(np.argmin(crossing))
        order.append(nearest + (nearest >= order[-1]))
        angle = angle + step
    return total / (2 * math.pi)
