"""Moments by sampling: random queries of a head, block by block, and moments summed over blocks.

The queries are a function of the seed alone; every entry has its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim
from esscher.math.heads import ArrayHead, Head, WeightHead, as_head
from esscher.math.laws import FiniteTokens, Laplace, ProductLaw, Sphere
from esscher.math.limits.mapping import NoLimit, OutputMoments, gaussian_limit_map
from esscher.math.limits.rules import product_moments, single_entries, sphere_output_eigenvalues

#: Queries drawn at a time; memory is bounded by a block.
BLOCK = 1024


def query_blocks(head: Head, samples: int, seed: int) -> Iterator[Array]:
    """Yield the tilts of ``samples`` queries in blocks: independent, or rows of an array head."""
    rng = random_stream(seed, "limit queries")
    if isinstance(head, ArrayHead):
        size = len(head.keys)
        rows = rng.choice(size, size=min(samples, size), replace=False)
        for start in range(0, len(rows), BLOCK):
            yield head.tilts[rows[start : start + BLOCK]]
        return
    for start in range(0, samples, BLOCK):
        yield head.sample(min(BLOCK, samples - start), rng).tilts


def block_moments(
    blocks: Iterable[Array], method: str, population: int | None = None
) -> OutputMoments:
    """Mean and covariance of rows that come in blocks, with their standard errors.

    Sums of products up to fourth order are kept, so that memory does not grow with the rows. The
    standard error of a covariance entry is that of the mean of ``(y_i - E y_i)(y_j - E y_j)``, so
    it needs ``E[y_i^2 y_j^2]`` and no normality.

    Parameters
    ----------
    blocks
        Arrays of shape (rows, d).
    method
        Name of the method, for the result.
    population
        Size N of the finite population that the rows were drawn from WITHOUT replacement; the
        squared errors shrink by ``1 - n/N`` and the covariance is the population's (divided
        by N). None for independent rows.
    """
    n = 0
    centre = first = np.zeros(0)
    second = third = fourth = np.zeros((0, 0))
    for block in blocks:
        if n == 0:
            dim = block.shape[1]
            # Centring at the first block's mean keeps the sums free of cancellation.
            centre, first = block.mean(axis=0), np.zeros(dim)
            second, third, fourth = (np.zeros((dim, dim)) for _ in range(3))
        u = block - centre
        square = u * u
        n += len(block)
        first += u.sum(axis=0)
        second += u.T @ u
        third += square.T @ u
        fourth += square.T @ square
    shift = first / n
    second, third, fourth = second / n, third / n, fourth / n
    spread = second - np.outer(shift, shift)
    # E[(u_i - s_i)^2 (u_j - s_j)^2], expanded; s is the small mean left after centring.
    along = np.diag(second)[:, None] * shift**2
    mixed = third * shift
    products = (
        fourth
        - 2 * (mixed + mixed.T)
        + along
        + along.T
        + 4 * np.outer(shift, shift) * second
        - 3 * np.outer(shift**2, shift**2)
    )
    left = 1.0 if population is None else 1.0 - n / population
    unbiased = spread * (n / (n - 1))
    if population is not None:
        unbiased = unbiased * ((population - 1) / population)
    return OutputMoments(
        mean=centre + shift,
        covariance=(unbiased + unbiased.T) / 2,
        mean_error=np.sqrt(np.maximum(np.diag(unbiased), 0.0) * left / n),
        covariance_error=np.sqrt(np.maximum(products - spread**2, 0.0) * left / (n - 1)),
        method=method,
        samples=n,
    )


# Share of a head's queries that have no infinite-token limit.
#
# The limit at tilt ``t`` exists when ``E exp<t, X>`` is finite near ``t``: always for light tails,
# only in a box for exponential tails, only at 0 for power-law tails.


def missing_limit(head: Head, samples: int, seed: int) -> NoLimit | None:
    """Return a :class:`NoLimit` if a positive share of the head's queries has none, else None.

    The fraction is exact for Student tokens, for queries that do not depend on the token, and for
    Laplace tokens when every tilt coordinate depends on one token coordinate; otherwise it is the
    share among ``samples`` queries.
    """
    domain = head.tilt_domain
    if domain.kind == "all":
        return None
    if not isinstance(head, WeightHead):
        return _sampled(head, samples, seed)
    law, matrix, bias = repr(head.law), head.A, head.a
    reason = f"the limit needs {domain}"
    if not matrix.any():
        # Every query has the tilt a; the value itself may still be missing (Student, df <= 1).
        alone = bool(np.isfinite(head.law.tilted_mean(bias)).all())
        return None if alone else NoLimit(law, 1.0, 0.0, f"{reason}, and every tilt is the same")
    if domain.kind == "zero":
        # The law has a density, so A x + a = 0 has probability 0.
        return NoLimit(law, 1.0, 0.0, reason)
    entries = single_entries(matrix)
    if isinstance(head.law, Laplace) and entries is not None:
        fraction = _laplace_fraction(head.law.scale, entries, bias, domain.half_width)
        return NoLimit(law, fraction, 0.0, reason)
    return _sampled(head, samples, seed)


def _laplace_fraction(
    scale: float, entries: tuple[NDArray[np.intp], Array], bias: Array, half_width: float
) -> float:
    """``1 - P(|A_ij x_j + a_i| < 1/b for all i)`` for independent Laplace coordinates x_j.

    Rows that share a column j restrict x_j to the intersection of their intervals.
    """
    columns, slopes = entries
    fixed = slopes == 0
    if np.any(np.abs(bias[fixed]) >= half_width):
        return 1.0
    log_inside = 0.0
    for column in np.unique(columns[~fixed]):
        rows = ~fixed & (columns == column)
        edges = (np.array([[-half_width], [half_width]]) - bias[rows]) / slopes[rows]
        low, high = float(edges.min(axis=0).max()), float(edges.max(axis=0).min())
        tails = []
        if low >= high:
            return 1.0
        for x in (-low / scale, high / scale):  # P(X > x) at scale 1, accurate for small tails
            tails.append(float(0.5 * np.exp(-x)) if x > 0 else float(1.0 - 0.5 * np.exp(x)))
        log_inside += float(np.log1p(-(tails[0] + tails[1])))
    return float(-np.expm1(log_inside))


def _sampled(head: Head, samples: int, seed: int) -> NoLimit | None:
    """Share of sampled queries outside the domain, with its binomial standard error."""
    outside = 0
    for tilts in query_blocks(head, samples, seed):
        outside += int(np.sum(~head.tilt_domain.contains(head.law_tilts(tilts))))
    share = outside / samples
    law = repr(head.law) if isinstance(head, WeightHead) else type(head).__name__
    reason = f"the limit needs {head.tilt_domain}"
    if outside:
        return NoLimit(law, share, float(np.sqrt(share * (1 - share) / samples)), reason)
    if isinstance(head, WeightHead) and np.isfinite(head.law.support_radius):
        return None
    return NoLimit(
        law,
        0.0,
        1.0 / samples,
        f"{reason}; none of {samples} queries broke it, but tilts are unbounded: "
        f"the fraction is positive and below about 1/{samples}",
    )


# Mean and covariance of the output law, by the most exact method that a head allows.

#: Finite sets of up to this many tokens are summed exactly, whatever the number of samples.
ALWAYS_SUMMED = 4096
#: Relative agreement of two rules from which their difference bounds the error.
TRUSTED = 1e-3


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
        if method == "auto" and name == "finite sum":
            law = head.law if isinstance(head, WeightHead) else None
            rows = head.keys if isinstance(head, ArrayHead) else np.empty(0)
            rows = law.tokens if isinstance(law, FiniteTokens) else rows
            if len(rows) > max(ALWAYS_SUMMED, samples):
                continue
        moments = METHODS[name](head, samples, seed)
        if moments is not None:
            return moments
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
    """One-dimensional rules for the sphere and for product laws; see :mod:`rules`."""
    if not isinstance(head, WeightHead):
        return None
    tokens = None
    if isinstance(head.law, Sphere) and not head.a.any():
        # mean 0 by symmetry; covariance diagonal in the left singular basis of A
        left, spectrum, _ = np.linalg.svd(head.A)
        values, errors = sphere_output_eigenvalues(spectrum, head.law.dim, head.law.radius)
        # Rules that still move may be further off than their difference: so for tilts so large that
        # the poles of the Bessel ratio come close to the support (d = 2: horizons from 40 on).
        if np.all(errors <= TRUSTED * values):
            covariance_error = (np.abs(left) * errors) @ np.abs(left).T
            zero = np.zeros(head.law.dim)
            tokens = OutputMoments(
                zero, (left * values) @ left.T, zero, covariance_error, "quadrature", 0
            )
    elif isinstance(head.law, ProductLaw):
        tokens = product_moments(head.law, head.A, head.a)
    if tokens is None:
        return None
    # from moments of grad K(t) to those of V grad K(t) + b_v
    v, size = head.value_weight, np.abs(head.value_weight)
    covariance = v @ tokens.covariance @ v.T
    return OutputMoments(
        mean=v @ tokens.mean + head.value_bias,
        covariance=(covariance + covariance.T) / 2,
        mean_error=size @ tokens.mean_error,
        covariance_error=size @ tokens.covariance_error @ size.T,
        method="quadrature",
        samples=0,
    )


def _sampling(head: Head, samples: int, seed: int) -> OutputMoments | None:
    """Send random queries through the exact map, block by block."""
    outputs = (head.limit_map(tilts) for tilts in query_blocks(head, samples, seed))
    if isinstance(head, ArrayHead):
        return block_moments(outputs, "sampled queries, all keys", population=len(head.keys))
    return block_moments(outputs, "sampling")


#: The methods in the order in which "auto" tries them; each returns None where it does not apply.
METHODS: dict[str, Callable[[Head, int, int], OutputMoments | None]] = {
    "closed form": _closed_form,
    "finite sum": _finite_sum,
    "quadrature": _quadrature,
    "sampling": _sampling,
}
