"""The parts that patterns are made of: first keys, near keys, random keys among the rest.

Each function returns positions [queries, n], for queries that may see more keys than all parts
together take.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.engine.patterns.pattern import Positions, Selection, View


def first_keys(view: View, count: int) -> Positions:
    """The first keys that each query may see."""
    return np.asarray(view.first[:, None] + np.arange(count))


def last_keys(view: View, count: int) -> Positions:
    """The last keys that each query may see."""
    return np.asarray(view.stop[:, None] - np.arange(1, count + 1))


def near_keys(view: View, count: int, *, after: int = 0, before: int = 0) -> Positions:
    """The nearest keys: around the query, or up to it where it sees nothing behind itself.

    Parameters
    ----------
    view
        The queries, and what they may see.
    count
        Number of keys.
    after, before
        Keys at the beginning and at the end of the view that are left to other parts.
    """
    low, high = view.first + after, view.stop - before - count
    start = np.clip(view.queries - count // 2, low, high)
    return np.asarray(start[:, None] + np.arange(count))


def random_order(keys: int, rng: np.random.Generator) -> Positions:
    """One random order of all keys: a query takes the first ones that it may see.

    All queries that may see the same keys take the same ones, as with a cache from which keys are
    dropped at random; larger budgets contain the smaller ones.
    """
    return rng.permutation(keys)


def random_keys(view: View, count: int, order: Positions, taken: Positions | None) -> Positions:
    """The first keys of a random order that each query may see and has not taken yet.

    Parameters
    ----------
    view
        The queries, and what they may see.
    count
        Number of keys.
    order
        Random order of all keys, or [queries, keys], one for each query.
    taken
        Keys of the other parts, [queries, n].
    """
    free = view.visible()
    if taken is not None:
        np.put_along_axis(free, taken, False, axis=1)
    orders = np.broadcast_to(order, free.shape)
    in_order = np.take_along_axis(free, orders, axis=1)
    chosen = in_order & (np.cumsum(in_order, axis=1) <= count)
    return np.asarray(orders[chosen].reshape(len(free), count))


def block_orders(view: View, block: int, rng: np.random.Generator) -> Positions:
    """A random order of all keys for every block of query positions, [queries, keys]."""
    seed = int(rng.integers(2**62))
    numbers, at = np.unique(view.queries // block, return_inverse=True)
    orders = [random_stream(seed, "query block", int(b)).permutation(view.keys) for b in numbers]
    return np.asarray(np.stack(orders)[at])


def as_selection(
    parts: list[Positions],
    log_weights: NDArray[np.float64] | None = None,
    complete: NDArray[np.bool_] | None = None,
) -> Selection:
    """Parts side by side, as a selection; the same keys for all queries are kept once."""
    import torch

    keys = np.concatenate(parts, axis=1)
    weights = None if log_weights is None else torch.from_numpy(log_weights)
    whole = None if complete is None or not complete.any() else torch.from_numpy(complete)
    return Selection(torch.from_numpy(np.ascontiguousarray(keys)), weights, whole)
