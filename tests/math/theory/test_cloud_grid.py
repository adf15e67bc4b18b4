"""Keys on a grid of weights: functions of them, and sums over them, against the keys themselves."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.math.theory.cloud_table import STEP, WeightGrid

#: 5.4e-7 a^4 of a function that goes like a power a, and single precision.
POWER = 5.4e-7
SINGLE = 3e-7


def keys(count: int, queries: int, spread: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.asarray(spread * rng.standard_normal((count, queries)) - 5.0)


def exact(log_scaled: np.ndarray, nodes: int) -> dict[str, np.ndarray]:
    """Functions at the nodes, [node, key, query]."""
    t = np.exp(log_scaled + STEP * np.arange(nodes)[:, None, None])
    decay = np.exp(-t)
    return {
        "decay": decay,
        "gap": -np.expm1(-t),
        "weight": t * decay,
        "square": t * t * decay,
    }


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_sums_over_keys(spread: float) -> None:
    """Of random numbers of the keys, at every node from small to large l w."""
    nodes, count, queries = 24, 3_000, 4
    log_scaled = keys(count, queries, spread)
    numbers = np.random.default_rng(1).standard_normal((count, 5)).astype(np.float32)
    grid = WeightGrid(log_scaled)
    points = (grid.placed().T @ numbers).reshape(len(grid.points), queries, 5)
    functions = grid.functions(nodes)
    for name, values in exact(log_scaled, nodes).items():
        found = np.einsum("np,pqc->nqc", functions[name], points)
        sums = np.einsum("nkq,kc->nqc", values, numbers)
        scale = np.einsum("nkq,kc->nqc", np.abs(values), np.abs(numbers))
        # powers up to l w = 2 and their fourth derivatives, which are at most 30 of the function
        assert np.all(np.abs(found - sums) <= (60 * POWER + SINGLE) * scale + 1e-7 * count)


def test_points_without_keys_are_left_out() -> None:
    grid = WeightGrid(np.array([[-400.0], [0.0], [0.01]]))
    assert len(grid.points) <= 12
    placed = grid.placed()
    np.testing.assert_allclose(placed.sum(axis=1), 1.0, atol=1e-6)
    functions = grid.functions(3)
    np.testing.assert_allclose((placed @ functions["gap"][2])[1:], -np.expm1(-4.0), atol=0.01)
