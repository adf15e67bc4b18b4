"""Direct simulation for the tests of the theory layer."""

from __future__ import annotations

from benchmarks.direct import DirectErrors, direct_errors

from esscher import Head, limit_moments
from esscher.theory import OutputMoments


def simulate(
    head: Head,
    sizes: list[int],
    replicates: int,
    queries: str = "tokens",
    seed: int = 1,
    query_count: int | None = None,
) -> DirectErrors:
    limit = limit_moments(head)
    assert isinstance(limit, OutputMoments)
    return direct_errors(
        head,
        sizes,
        replicates=replicates,
        seed=seed,
        queries=queries,
        limit=(limit.mean, limit.covariance),
        query_count=query_count,
    )
