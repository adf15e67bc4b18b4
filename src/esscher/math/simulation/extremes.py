"""Simulated map error of Gaussian heads at n far beyond memory: only the extremes are drawn.

For a query of strength s the error is, in whitened key coordinates,

    along the tilt   sum_j p_j x_j - s            with x_j standard normal, p_j ~ exp(s x_j)
    across it        sqrt(sum_j p_j^2) * normal   independent of the weights

so one query over n tokens takes the largest of n normals and what the others add
(``order_statistics``). Every replicate has a query of its own and n tokens of its own. With
``queries="tokens"`` one of the n keys is the query's own. Nothing here uses the Laplace integrals
of ``softmax_mean``, which predict the same numbers.

The error of the MEAN output needs all queries on the same tokens. In d dimensions every direction
then has extremes of its own, and drawing a few of them is no longer exact; one dimension is treated
in ``simulation.mean``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim, as_nonnegative, as_positive, as_sizes
from esscher.math.coupling import Coupling, symmetric_root
from esscher.math.heads import Head, as_head
from esscher.math.simulation.order_statistics import extremes_needed, softmax_sums
from esscher.math.simulation.query_proposal import QueryProposal, draw_first_arrivals, key_floor
from esscher.math.simulation.result import SimulatedErrors
from esscher.math.theory.exact_constants import select_coupling

#: Default bound on the bulk's non-normality; the Kolmogorov distance is below half of it.
TOLERANCE = 0.01
#: Extremes held at a time, which bounds the memory.
BLOCK = 1 << 20


class QueryErrors(NamedTuple):
    """Replicates of one query's error: along the tilt, ``sum p^2``, and the largest weight p."""

    along: Array
    collision: Array
    largest: Array


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedMap(SimulatedErrors):
    """Simulated map error at each size.

    ``largest_weight`` is the expected attention of the most attended key, with its standard error;
    all else as in :class:`SimulatedErrors`.
    """

    columns = (
        "rms",
        "rms_error",
        "mean",
        "mean_error",
        "largest_weight",
        "largest_weight_error",
        "extremes",
        "non_normality",
        "largest_share",
    )

    largest_weight: Array
    largest_weight_error: Array

    def map_rms(self) -> tuple[Array, Array]:
        """Root-mean-square map error at each size, and its standard error."""
        return self.rms, self.rms_error

    def __repr__(self) -> str:
        rows = [
            f"simulated map error, {self.replicates} queries per size ({self.queries}), "
            f"bulk within {self.tolerance:g} of normal"
        ]
        columns = (self.sizes, self.rms, self.rms_error, self.mean, self.mean_error, self.extremes)
        for n, rms, rms_error, mean, mean_error, drawn in zip(*columns, strict=True):
            rows.append(
                f"  n = {n:<8.4g} rms {rms:.4g} +- {rms_error:.2g}, "
                f"mean {mean:.4g} +- {mean_error:.2g}, {int(drawn)} keys drawn"
            )
        return "\n".join(rows)


def simulate_query(
    n: float, strength: float, replicates: int, seed: int = 0, tolerance: float = TOLERANCE
) -> QueryErrors:
    """Replicates of the error at one query of the given strength, from the natural law.

    Parameters
    ----------
    n
        Number of tokens, from 2 to 1e300.
    strength
        Tilt strength s; the limit lies s standard deviations out.
    replicates, seed
        Independent samples of n tokens, and their seed.
    tolerance
        Bound on the bulk's non-normality, which sets the number of extremes drawn.
    """
    size = float(as_sizes([n], "n")[0])
    s = as_nonnegative(strength, "strength")
    count = as_dim(replicates, "replicates")
    drawn, _ = extremes_needed(size, np.array([s]), as_positive(tolerance, "tolerance"))
    rng = random_stream(seed, "query extremes", size_mark(size))
    parts = []
    for rows in _blocks(count, drawn):
        strengths = np.full(rows, s)
        sums = softmax_sums(size, strengths, drawn, rng.standard_exponential(rows), rng)
        parts.append((sums.error / sums.weight, sums.square / sums.weight**2, 1 / sums.weight))
    return QueryErrors(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def simulate_map(
    head: Head,
    sizes: ArrayLike,
    replicates: int = 2000,
    seed: int = 0,
    queries: str = "population",
    tolerance: float = TOLERANCE,
) -> SimulatedMap:
    """Simulate the map error of a Gaussian head at sizes that no machine can hold.

    Parameters
    ----------
    head
        A head over Gaussian tokens.
    sizes
        Numbers of tokens, from 2 to 1e300; sizes are simulated independently.
    replicates, seed
        Queries per size, each over its own n tokens, and their seed.
    queries
        ``"population"`` (independent of the keys) or ``"tokens"`` (its own key is among the n).
    tolerance
        Bound on the bulk's non-normality, which sets the number of extremes drawn.

    Raises
    ------
    InputError
        For tokens that are not Gaussian.
    """
    n = as_sizes(sizes)
    count = simulated_replicates(head, replicates)
    limit = as_positive(tolerance, "tolerance")
    coupling = select_coupling(head, queries)
    rows = [_one_size(coupling, float(size), count, seed, queries, limit) for size in n]
    table = dict(zip(SimulatedMap.columns, np.array(rows).T, strict=True))
    return SimulatedMap(
        sizes=n, queries=queries, replicates=count, tolerance=limit, seed=int(seed), **table
    )


def simulated_replicates(head: Head, replicates: int) -> int:
    """The number of replicates, of a head whose extremes can be drawn alone.

    Raises
    ------
    InputError
        For too few, or for tokens that are not Gaussian.
    """
    as_head(head)
    count = as_dim(replicates, "replicates")
    if count < 2:
        raise InputError(f"replicates is {replicates}; a standard error needs at least 2")
    if not head.is_gaussian:
        raise InputError(
            "only the extremes of Gaussian tokens can be drawn without the others; "
            "use esscher sweep for other laws"
        )
    return count


def _one_size(
    coupling: Coupling, n: float, count: int, seed: int, queries: str, tolerance: float
) -> tuple[float, ...]:
    """Every number of ``SimulatedMap.columns`` at one size."""
    rng = random_stream(seed, "map extremes", size_mark(n))
    tilts, weights = QueryProposal(coupling, n).sample(count, rng)
    strengths = np.linalg.norm(tilts, axis=1)
    others = n - 1 if queries == "tokens" else n
    probe = np.quantile(strengths, np.linspace(0, 1, 33))
    drawn, rest = extremes_needed(others, probe, tolerance)
    first, key_weights = draw_first_arrivals(key_floor(others, strengths), rng)
    weights = weights * key_weights
    own = _own_keys(coupling, tilts, rng) if queries == "tokens" else None
    square, norm, largest = np.empty(count), np.empty(count), np.empty(count)
    start = 0
    for rows in _blocks(count, drawn):
        part = slice(start, start + rows)
        mine = None if own is None else (own[0][part], own[1][part])
        square[part], norm[part], largest[part] = _errors(
            coupling, tilts[part], others, drawn, first[part], mine, rng
        )
        start += rows
    total = weights * square
    value, spread = weighted_mean(square, weights)
    rms = float(np.sqrt(value))
    return (
        *(rms, spread / (2 * rms) if rms > 0 else 0.0),
        *weighted_mean(norm, weights),
        *weighted_mean(largest, weights),
        *(float(drawn), rest, float(total.max() / max(total.sum(), 1e-300))),
    )


def _errors(
    coupling: Coupling,
    tilts: Array,
    n: float,
    drawn: int,
    first: Array,
    own: tuple[Array, Array] | None,
    rng: np.random.Generator,
) -> tuple[Array, Array, Array]:
    """Squared error averaged across the tilt, norm of one error, largest weight; one per query."""
    strengths = np.linalg.norm(tilts, axis=1)
    sums = softmax_sums(n, strengths, drawn, first, rng)
    units = tilts / np.maximum(strengths, 1e-300)[:, None]
    lean = units @ coupling.loading.T
    weight, vector = sums.weight, sums.error[:, None] * lean
    square = sums.square
    if own is not None:
        logits, offsets = own
        log_share = logits - strengths * sums.largest
        # relative to whichever is larger, the own key or the largest other one
        scale = np.exp(-np.maximum(log_share, 0.0))
        mine = np.exp(np.minimum(log_share, 0.0))
        weight = scale * weight + mine
        vector = scale[:, None] * vector + mine[:, None] * offsets
        square = scale * scale * square
    vector = vector / weight[:, None]
    collision = square / weight**2
    total = float(np.trace(coupling.value_gram)) + coupling.residual_trace
    across = np.maximum(total - np.sum(lean**2, axis=1), 0.0)
    normal = rng.standard_normal(tilts.shape)
    normal -= np.sum(normal * units, axis=1, keepdims=True) * units
    sideways = normal @ coupling.loading.T
    if coupling.residual.any():
        extra = rng.standard_normal((len(tilts), len(coupling.residual)))
        sideways = sideways + extra @ symmetric_root(coupling.residual)
    drawn_error = vector + np.sqrt(collision)[:, None] * sideways
    return (
        np.asarray(np.sum(vector**2, axis=1) + collision * across),
        np.asarray(np.linalg.norm(drawn_error, axis=1)),
        np.asarray(1 / weight),  # the largest key has weight 1 in these units
    )


def _own_keys(coupling: Coupling, tilts: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Logit of each query's own key and its value minus the limit, given the query's tilt."""
    r, d_v = coupling.cross.shape[0], coupling.loading.shape[0]
    inverse = np.where(coupling.variances > 0, 1 / np.maximum(coupling.variances, 1e-300), 0.0)
    cross = np.hstack([coupling.cross, coupling.residual_cross])
    joint = np.zeros((r + d_v, r + d_v))
    joint[:r, :r], joint[r:, r:] = np.eye(r), coupling.residual
    rest = joint - cross.T @ (inverse[:, None] * cross)
    draws = (tilts - coupling.tau) * inverse @ cross
    draws = draws + rng.standard_normal(draws.shape) @ symmetric_root((rest + rest.T) / 2)
    keys, residuals = draws[:, :r], draws[:, r:]
    offsets = (keys - tilts) @ coupling.loading.T + residuals
    return np.sum(tilts * keys, axis=1), np.asarray(offsets)


def weighted_mean(values: Array, weights: Array) -> tuple[float, float]:
    """Mean of positive values with importance weights, and its standard error.

    The weights have mean 1: they serve as a control variate, so that what does not depend on the
    rare events is not made noisy by looking for them.
    """
    products, count = weights * values, len(values)
    spread = weights - weights.mean()
    power = float(spread @ spread)
    slope = float(spread @ products) / power if power > 0 else 0.0
    adjusted = products - slope * (weights - 1)
    if adjusted.mean() <= 0:  # a handful of replicates; the plain mean is positive
        adjusted = products
    error = adjusted.std(ddof=min(2, count - 1)) / np.sqrt(count)
    return float(adjusted.mean()), float(error)


def _blocks(count: int, drawn: int) -> Iterator[int]:
    """Numbers of rows whose extremes are held at a time."""
    rows = max(1, BLOCK // drawn)
    for start in range(0, count, rows):
        yield min(rows, count - start)


def size_mark(n: float) -> int:
    """The bits of a size, as the index of its random stream."""
    return int(np.float64(n).view(np.uint64))
