"""Checks of what is asked of a sweep, and the configuration that they amount to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import (
    Array,
    as_array,
    as_dim,
    as_positive,
    as_queries,
    as_seed,
    as_sizes,
)
from esscher.math.heads import ArrayHead, Head, as_head
from esscher.math.limits import missing_limit
from esscher.studies.sweep.provenance import describe_head
from esscher.studies.sweep.reference import EXISTENCE_SAMPLES, scaled_head
from esscher.studies.sweep.store import Request

#: Queries of a replicate that are drawn apart from its keys, unless a number is given.
POPULATION_QUERIES = 1024
#: Tokens that stand for a law without limit, as a multiple of the largest size.
REFERENCE_FACTOR = 4
#: Replicates that a precision may cost, as a multiple of those it starts with.
PATIENCE = 16


def make_configuration(
    head: Head,
    sizes: ArrayLike,
    seed: int,
    scales: ArrayLike,
    queries: str,
    query_count: int | None,
    dtype: str,
    device: str,
    reference_tokens: int | None = None,
) -> dict[str, Any]:
    """All that the errors of a sweep are a function of, in a form that JSON can hold."""
    as_head(head)
    as_seed(seed)
    n = [int(size) for size in as_sizes(sizes)]
    alphas = np.atleast_1d(as_array(scales, "scales"))
    if alphas.ndim != 1 or alphas.size == 0 or np.any(alphas <= 0):
        raise InputError(f"scales are {alphas.tolist()}; they must be positive numbers")
    if len(np.unique(alphas)) < alphas.size:
        raise InputError(f"scales are {alphas.tolist()}; each may occur only once")
    as_queries(queries)
    count = None if query_count is None else as_dim(query_count, "query_count")
    if dtype not in ("float32", "float64"):
        raise InputError(f"dtype is {dtype!r}; it must be 'float32' or 'float64'")
    return {
        "head": describe_head(head),
        "sizes": n,
        "scales": alphas.tolist(),
        "seed": int(seed),
        "queries": queries,
        "query_count": count or (POPULATION_QUERIES if queries == "population" else None),
        "dtype": dtype,
        "device": _checked_device(device),
        "engine": "torch",
        "reference_tokens": _reference_tokens(head, alphas, n[-1], int(seed), reference_tokens),
    }


def make_request(
    replicates: int,
    precision: float | None,
    max_replicates: int | None,
    configuration: dict[str, Any],
) -> Request:
    """How many replicates are wanted, checked."""
    count = as_dim(replicates, "replicates")
    if precision is None:
        if max_replicates is not None:
            raise InputError("max_replicates goes with precision; give both, or replicates alone")
        return Request(count)
    width = as_positive(precision, "precision")
    if len(configuration["sizes"]) < 2:
        raise InputError("precision is about a slope, which needs at least 2 sizes")
    most = PATIENCE * count if max_replicates is None else as_dim(max_replicates, "max_replicates")
    if most < count:
        raise InputError(f"max_replicates is {most}, below replicates, which is {count}")
    return Request(count, width, most)


def _reference_tokens(
    head: Head, alphas: Array, largest: int, seed: int, asked: int | None
) -> int | None:
    """Tokens that stand for the law: those asked for, or enough of them if it has no limit."""
    if asked is not None:
        if isinstance(head, ArrayHead):
            raise InputError(
                "reference_tokens is for laws; the reference of a head from arrays is all its rows"
            )
        count = as_dim(asked, "reference_tokens")
        if count < largest:
            raise InputError(
                f"reference_tokens is {count}, below the largest size, which is {largest}"
            )
        return count
    missing = any(
        missing_limit(scaled_head(head, float(alpha)), EXISTENCE_SAMPLES, seed) for alpha in alphas
    )
    return REFERENCE_FACTOR * largest if missing else None


def _checked_device(device: str) -> str:
    if device == "cpu":
        return device
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"device {device!r} cannot be used: {reason}") from error
    return str(device)
