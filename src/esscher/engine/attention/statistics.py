"""Results of a pass: immutable, in float64, with named axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array

#: Levels of the quantiles by which per-query numbers are summarised.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class QuerySummary:
    """A number per query, summarised over the queries of each size.

    Attributes
    ----------
    mean
        Axes [heads..., scale, size].
    quantiles
        Axes [heads..., scale, size, level], at ``levels``.
    values
        Axes [heads..., scale, size, query], ``nan`` for a query that a size or a mask leaves out;
        ``None`` unless asked for.
    """

    levels: tuple[float, ...]
    mean: Array
    quantiles: Array
    values: Array | None = None

    @property
    def median(self) -> Array:
        """Axes [heads..., scale, size]."""
        middle: Array = self.quantiles[..., self.levels.index(0.5)]
        return middle


@dataclass(frozen=True, eq=False)
class AttentionStatistics:
    """Statistics of attention restricted to the first ``sizes[j]`` tokens.

    Attributes
    ----------
    sizes, scales
        The axes "size" and "scale" of every array; leading axes are those of the queries.
    query_counts
        Number of queries, axes [heads..., size].
    mean, covariance
        Of the outputs over the queries (divided by their number); axes [heads..., scale, size, d_v]
        and [heads..., scale, size, d_v, d_v].
    map_square
        Mean over the queries of the squared distance between output and limit, axes
        [heads..., scale, size]; ``None`` without a limit.
    received_sizes, received
        Received attention (column sums), axes [heads..., scale, received size, key]: 0 for a masked
        key, ``nan`` for a key beyond the size. ``None`` unless asked for.
    participation
        ``1 / sum_j p_j^2`` of each query, the number of keys it effectively attends.
    largest
        The largest weight of each query.
    dtype
        Precision of the arithmetic inside a block; sums over blocks and queries are float64.
    """

    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    query_counts: NDArray[np.int64]
    mean: Array
    covariance: Array
    map_square: Array | None
    received_sizes: tuple[int, ...]
    received: Array | None
    participation: QuerySummary | None
    largest: QuerySummary | None
    dtype: str

    @property
    def head_shape(self) -> tuple[int, ...]:
        """Shape of the leading axes."""
        return self.query_counts.shape[:-1]

    @property
    def map_rms(self) -> Array:
        """Root of ``map_square``."""
        if self.map_square is None:
            raise InputError("no map error: pass limit= to attention_statistics")
        root: Array = np.sqrt(self.map_square)
        return root

    def __repr__(self) -> str:
        present = [
            name
            for name in ("map_square", "received", "participation", "largest")
            if getattr(self, name) is not None
        ]
        return (
            f"AttentionStatistics(heads={self.head_shape}, scales={self.scales}, "
            f"sizes={self.sizes}, value_dim={self.mean.shape[-1]}, dtype={self.dtype}, "
            f"with mean, covariance{''.join(f', {name}' for name in present)})"
        )


def summarise(values: Array, *, keep: bool) -> QuerySummary:
    """Summarise [..., query] numbers, of which some are ``nan`` because a size leaves them out."""
    quantiles = np.moveaxis(np.nanquantile(values, LEVELS, axis=-1), 0, -1)
    return QuerySummary(LEVELS, np.nanmean(values, axis=-1), quantiles, values if keep else None)
