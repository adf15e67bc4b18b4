"""Mean and covariance of the output law, by the most exact method that a head allows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import as_dim
from esscher.math.heads import ArrayHead, Head, WeightHead, as_head
from esscher.math.laws import FiniteTokens, ProductLaw, Sphere
from esscher.math.limits.existence import missing_limit
from esscher.math.limits.mapping import gaussian_limit_map
from esscher.math.limits.product_rule import product_moments
from esscher.math.limits.results import NoLimit, OutputMoments
from esscher.math.limits.sampling import BLOCK, MomentAccumulator, query_blocks, query_stream
from esscher.math.limits.sphere_rule import sphere_output_eigenvalues

#: Finite sets of up to this many tokens are summed exactly, whatever the number of samples.
ALWAYS_SUMMED = 4096


def limit_moments(
    head: Head, samples: int = 65536, seed: int = 0, method: str = "auto"
) -> OutputMoments | NoLimit:
    """Mean and covariance of ``Gamma(q)`` for queries q drawn from the head.

    Parameters
    ----------
    head
        Any head.
    samples
        Number of queries for the methods that sample.
    seed
        Seed of the sampling methods; the result is a function of the head, samples and seed.
    method
        ``"auto"`` takes the first that the head allows:

        * ``"closed form"``: Gaussian tokens (``Gamma`` is affine), or tilts that do not vary;
        * ``"finite sum"``: finite sets of at most ``max(4096, samples)`` tokens, all queries
          against all keys;
        * ``"quadrature"``: the sphere without query bias (unless the tilts are too large for the
          rule to converge), and product laws when every row of A has at most one entry;
        * ``"sampling"``: independent queries through the closed-form map; for a head from arrays,
          ``samples`` of its rows, drawn without replacement, against all keys.

    Returns
    -------
    OutputMoments or NoLimit
        NoLimit when a positive share of the queries has no infinite-token limit.
    """
    as_head(head)
    if method != "auto" and method not in METHODS:
        raise InputError(f"unknown method {method!r}; choose from auto, {', '.join(METHODS)}")
    if as_dim(samples, "samples") < 2:
        raise InputError(f"samples is {samples}; a covariance needs at least 2")
    missing = missing_limit(head, samples, seed)
    if missing is not None:
        return missing
    for name in METHODS if method == "auto" else (method,):
        if method == "auto" and name == "finite sum" and _is_long(head, samples):
            continue
        found = METHODS[name](head, samples, seed)
        if found is not None:
            return found
    over = f" over {head.law!r}" if isinstance(head, WeightHead) else ""
    raise InputError(
        f"method {method!r} is not available for this {type(head).__name__}{over}; "
        "'auto' takes the best one that is, 'sampling' always works"
    )


def _closed_form(head: Head, samples: int, seed: int) -> OutputMoments | None:
    """``V (m + Sigma (A m + a)) + b_v`` and ``V Sigma A Sigma A' Sigma V'``; or a constant."""
    if not isinstance(head, WeightHead):
        return None
    if head.is_gaussian:
        moments = gaussian_limit_map(head).push(head.law.mean, head.law.covariance)
        return OutputMoments.exact(*moments, method="closed form")
    if not head.A.any():
        output = head.limit_map(head.query_bias * head.scale)
        return OutputMoments.exact(output, np.zeros((len(output), len(output))), "closed form")
    return None


def _finite_sum(head: Head, samples: int, seed: int) -> OutputMoments | None:
    """All queries of a finite set against all its keys."""
    if isinstance(head, ArrayHead):
        weights, outputs = np.full(len(head.keys), 1 / len(head.keys)), head.limit_map(head.tilts)
    elif isinstance(head, WeightHead) and isinstance(head.law, FiniteTokens):
        weights, outputs = head.law.weights, head.limit_map(head.tokens(head.law.tokens).tilts)
    else:
        return None
    mean = weights @ outputs
    centred = outputs - mean
    return OutputMoments.exact(mean, (centred * weights[:, None]).T @ centred, "finite sum")


def _quadrature(head: Head, samples: int, seed: int) -> OutputMoments | None:
    """One-dimensional rules; see ``sphere_rule`` and ``product_rule``."""
    if not isinstance(head, WeightHead):
        return None
    if isinstance(head.law, Sphere) and not head.a.any():
        return _sphere(head, head.law)
    if isinstance(head.law, ProductLaw):
        found = product_moments(head.law, head.A, head.a)
        return None if found is None else _through_values(head, found)
    return None


def _sphere(head: WeightHead, law: Sphere) -> OutputMoments | None:
    """Mean 0 by symmetry; covariance diagonal in the left singular basis of A."""
    left, spectrum, _ = np.linalg.svd(head.A)
    found = sphere_output_eigenvalues(spectrum, law.dim, law.radius)
    if not found.converged:
        return None
    return _through_values(
        head,
        OutputMoments(
            mean=np.zeros(law.dim),
            covariance=(left * found.values) @ left.T,
            mean_error=np.zeros(law.dim),
            covariance_error=(np.abs(left) * found.errors) @ np.abs(left).T,
            method="quadrature",
            samples=0,
        ),
    )


def _through_values(head: WeightHead, tokens: OutputMoments) -> OutputMoments:
    """Turn moments of ``grad K(t)`` into those of ``V grad K(t) + b_v``."""
    v, size = head.value_weight, np.abs(head.value_weight)
    covariance = v @ tokens.covariance @ v.T
    return OutputMoments(
        mean=v @ tokens.mean + head.value_bias,
        covariance=(covariance + covariance.T) / 2,
        mean_error=size @ tokens.mean_error,
        covariance_error=size @ tokens.covariance_error @ size.T,
        method=tokens.method,
        samples=tokens.samples,
    )


def _sampling(head: Head, samples: int, seed: int) -> OutputMoments | None:
    """Send random queries through the exact map, block by block."""
    sums = MomentAccumulator()
    if isinstance(head, ArrayHead):
        size = len(head.keys)
        rows = query_stream(seed).choice(size, size=min(samples, size), replace=False)
        for start in range(0, len(rows), BLOCK):
            sums.add(head.limit_map(head.tilts[rows[start : start + BLOCK]]))
        return sums.moments("sampled queries, all keys", population=size)
    for tilts in query_blocks(head, samples, seed):
        sums.add(head.limit_map(tilts))
    return sums.moments("sampling")


def _is_long(head: Head, samples: int) -> bool:
    """Whether a finite set has more queries than the caller asked to spend."""
    size = 0
    if isinstance(head, ArrayHead):
        size = len(head.keys)
    elif isinstance(head, WeightHead) and isinstance(head.law, FiniteTokens):
        size = len(head.law.tokens)
    return size > max(ALWAYS_SUMMED, samples)


#: The methods in the order in which "auto" tries them; each returns None where it does not apply.
METHODS: dict[str, Callable[[Head, int, int], OutputMoments | None]] = {
    "closed form": _closed_form,
    "finite sum": _finite_sum,
    "quadrature": _quadrature,
    "sampling": _sampling,
}
