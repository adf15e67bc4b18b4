"""One replicate: draw tokens, attend in one pass, compare with the limit at every size.

The errors of replicate r are a function of the plan and r, to the bit: the random stream depends on
(seed, r) only, and arithmetic outside the kernel runs on one thread (see ``threads.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import ArrayHead, Head, Tokens
from esscher.runs.executors import one_blas_thread
from esscher.studies.sweep.reference import moments_of_rows

if TYPE_CHECKING:
    from esscher.engine.attention import AttentionStatistics

#: Errors that a sweep measures: norm of the error of the mean output, Frobenius norm of the error
#: of its covariance, root mean square over the queries of the error of the map.
METRICS = ("mean", "cov", "map")
#: Purpose of the random streams: replicate r draws from that of (seed, "sweep", r).
PURPOSE = "sweep"
#: Queries whose limit is computed at a time: arrays that stay in the cache, half the time.
ROWS = 4096


@dataclass(frozen=True, eq=False)
class Plan:
    """All that the errors of a replicate depend on, besides its number.

    ``means`` and ``covariances`` are those of the limit's outputs, axes [scale, ...]; they are used
    only when the queries are the tokens. ``outputs`` are the limit's outputs at all rows of a head
    from arrays, axes [scale, row, d_v]: replicates draw their queries among those.
    """

    head: Head
    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    seed: int
    queries: str
    query_count: int | None
    dtype: str
    device: str
    means: Array
    covariances: Array
    outputs: Array | None = None

    def up_to(self, depth: int) -> Plan:
        """The plan of a replicate that ends at the size number ``depth``."""
        return self if depth == len(self.sizes) else replace(self, sizes=self.sizes[:depth])


def measure_replicate(plan: Plan, replicate: int) -> Array:
    """Errors of one replicate, axes [metric, scale, size] with the metrics of ``METRICS``."""
    with one_blas_thread():
        rng = random_stream(plan.seed, PURPOSE, replicate)
        tokens, tilts, exact = _draw(plan, rng)
        found = _attend(plan, tilts, tokens.keys, tokens.values, exact)
        means, covariances = plan.means, plan.covariances
        if plan.queries == "population":
            # The error of the limit's own moments over these queries is no error of the keys.
            means, covariances = moments_of_rows(exact)
        mean = np.linalg.norm(found.mean - means[:, None], axis=-1)
        cov = np.linalg.norm(found.covariance - covariances[:, None], axis=(-2, -1))
        assert found.map_square is not None  # a limit was given
        # Rounding can leave a tiny negative square where the error is 0.
        return np.stack([mean, cov, np.sqrt(np.maximum(found.map_square, 0.0))])


def _draw(plan: Plan, rng: np.random.Generator) -> tuple[Tokens, Array, Array]:
    """Tokens, tilts of the queries, and the limit's outputs there, axes [scale, query, d_v]."""
    head, n = plan.head, plan.sizes[-1]
    apart = plan.queries == "population"
    count = plan.query_count or n
    if isinstance(head, ArrayHead) and plan.outputs is not None:
        rows = head.sample_rows(n, rng)
        asking = head.sample_rows(count, rng) if apart else rows[: plan.query_count]
        return head.take(rows), head.tilts[asking], plan.outputs[:, asking]
    tokens = head.sample(n, rng)
    tilts = head.sample(count, rng).tilts if apart else tokens.tilts[: plan.query_count]
    # in the precision of the arithmetic: a float64 limit of many scales would fill the memory
    exact = np.empty((len(plan.scales), len(tilts), tokens.values.shape[1]), np.dtype(plan.dtype))
    for start in range(0, len(tilts), ROWS):
        some = slice(start, start + ROWS)
        for s, alpha in enumerate(plan.scales):
            exact[s, some] = head.limit_map(alpha * tilts[some])
    return tokens, tilts, exact


def _attend(
    plan: Plan, tilts: Array, keys: Array, values: Array, exact: Array
) -> AttentionStatistics:
    """Statistics of the outputs at every scale and size, from one pass."""
    # Imported here: a result that is only read needs none of it.
    from esscher.engine.attention import attention_statistics

    separate, mask = plan.queries == "population", None
    if not separate and len(tilts) < len(keys):
        # Queries beyond the first ones are masked; the kernel still wants their rows.
        mask = np.arange(len(keys)) < len(tilts)
        tilts = np.pad(tilts, ((0, len(keys) - len(tilts)), (0, 0)))
        exact = np.pad(exact, ((0, 0), (0, len(keys) - exact.shape[1]), (0, 0)))
    # on a processor these stay numpy's, so that the compiled kernel need not wait for torch
    q, k, v, limit, chosen = (_on(plan.device, x) for x in (tilts, keys, values, exact, mask))
    return attention_statistics(
        q,
        k,
        v,
        sizes=plan.sizes,
        scales=plan.scales,
        queries="separate" if separate else "tokens",
        factor=1.0,
        limit=limit,
        query_mask=chosen,
        dtype=plan.dtype,
    )


def _on(device: str, x: NDArray[Any] | None) -> Any:
    """An array for a pass on a device."""
    if device == "cpu" or x is None:
        return x
    import torch

    return torch.from_numpy(x).to(device)
