"""Moments by sampling: random queries of a head, block by block, and moments summed over blocks.

The queries are a function of the seed alone; every entry has its standard error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim
from esscher.math.heads import ArrayHead, Head, WeightHead, as_head
from esscher.math.laws import Cube, FiniteTokens, Signs, Sphere
from esscher.math.limits.mapping import NoLimit, OutputMoments, gaussian_limit_map

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

    The fraction is exact for Student tokens and for queries that do not depend on the token;
    otherwise it is the share among ``samples`` queries.
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
    return _sampled(head, samples, seed)


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
#: Singular values whose squares differ by less than this, relatively, are equal.
EQUAL = 1e-12


def limit_moments(head: Head, samples: int = 65536, seed: int = 0) -> OutputMoments | NoLimit:
    """Mean and covariance of ``Gamma(q)`` for queries q drawn from the head.

    The first way that the head allows, as ``method`` of the result says:

    * ``"closed form"``: Gaussian tokens (``Gamma`` is affine), tilts that do not vary, and tokens
      on a sphere whose tilts all have the same length;
    * ``"finite sum"``: finite sets of at most ``max(4096, samples)`` tokens, all queries against
      all keys;
    * ``"quadrature"``: the cube and signs when every row of A has at most one entry;
    * ``"sampling"``: independent queries through the closed-form map. For a head from arrays it is
      ``"sampled queries, all keys"``: ``samples`` of its rows, drawn without replacement.

    Parameters
    ----------
    head
        Any head.
    samples
        Number of queries for the methods that sample.
    seed
        Seed of the sampling methods; the result is a function of the head, samples and seed.

    Returns
    -------
    OutputMoments or NoLimit
        NoLimit when a positive share of the queries has no infinite-token limit.
    """
    as_head(head)
    if as_dim(samples, "samples") < 2:
        raise InputError(f"samples is {samples}; a covariance needs at least 2")
    missing = missing_limit(head, samples, seed)
    if missing is not None:
        return missing
    known = _closed_form(head) or _finite_sum(head, max(ALWAYS_SUMMED, samples))
    return known or _quadrature(head) or sampled_moments(head, samples, seed)


def _closed_form(head: Head) -> OutputMoments | None:
    """``V (m + Sigma (A m + a)) + b_v`` and ``V Sigma A Sigma A' Sigma V'``; or see below."""
    if not isinstance(head, WeightHead):
        return None
    if head.is_gaussian:
        moments = gaussian_limit_map(head).push(head.law.mean, head.law.covariance)
        return OutputMoments.exact(*moments, method="closed form")
    if not head.A.any():
        output = head.limit_map(head.query_bias * head.scale)
        return OutputMoments.exact(output, np.zeros((len(output), len(output))), "closed form")
    if isinstance(head.law, Sphere) and not head.a.any():
        # A x has one length s R if all singular values of A are s, and points anywhere: the mean
        # output is 0, and the covariance that of an output of fixed length
        gram = head.A.T @ head.A
        square = float(np.trace(gram)) / len(gram)
        if np.allclose(gram, square * np.eye(len(gram)), rtol=0, atol=EQUAL * square):
            tilt = np.zeros(len(gram))
            tilt[0] = head.law.radius * np.sqrt(square)
            length = float(np.linalg.norm(head.law.tilted_mean(tilt)))
            covariance = length**2 / len(gram) * head.value_weight @ head.value_weight.T
            return OutputMoments.exact(head.value_bias, covariance, "closed form")
    return None


def _finite_sum(head: Head, most: int) -> OutputMoments | None:
    """All queries of a finite set of at most so many tokens against all its keys."""
    if isinstance(head, ArrayHead) and len(head.keys) <= most:
        weights, outputs = np.full(len(head.keys), 1 / len(head.keys)), head.limit_map(head.tilts)
    elif (
        isinstance(head, WeightHead)
        and isinstance(head.law, FiniteTokens)
        and len(head.law.tokens) <= most
    ):
        weights, outputs = head.law.weights, head.limit_map(head.tokens(head.law.tokens).tilts)
    else:
        return None
    mean = weights @ outputs
    centred = outputs - mean
    return OutputMoments.exact(mean, (centred * weights[:, None]).T @ centred, "finite sum")


def _quadrature(head: Head) -> OutputMoments | None:
    """One-dimensional rules for the cube and for signs."""
    if not isinstance(head, WeightHead) or not isinstance(head.law, Cube | Signs):
        return None
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


def sampled_moments(head: Head, samples: int, seed: int) -> OutputMoments:
    """Send random queries through the exact map, block by block."""
    outputs = (head.limit_map(tilts) for tilts in query_blocks(head, samples, seed))
    if isinstance(head, ArrayHead):
        return block_moments(outputs, "sampled queries, all keys", population=len(head.keys))
    return block_moments(outputs, "sampling")


# Deterministic output moments for laws with independent coordinates.
#
# When every tilt coordinate depends on one token coordinate, t_i = A_ij x_j + a_i, so does every
# coordinate of grad K(t): its moments are one-dimensional integrals, and two coordinates are
# correlated only if they share their column j.

#: Gauss nodes of the coarse and the fine rule (per panel, for the cube).
PRODUCT_POINTS = (12, 20)
#: Width of the panels next to a zero of a tilt, in units of the width of the map's step there.
STEP = 4.0
#: Entries below this share of the largest one are put down to the rounding of ``W_k' W_q``.
ZERO_ENTRY = 1e-15


def single_entries(matrix: Array) -> tuple[NDArray[np.intp], Array] | None:
    """Return the column and the value of the only entry of each row, or None if a row has more.

    A row of zeros has value 0 (and an arbitrary column).
    """
    size = np.abs(matrix)
    nonzero = size > ZERO_ENTRY * len(matrix) * float(size.max(initial=0.0))
    if nonzero.sum(axis=1).max(initial=0) > 1:
        return None
    columns = size.argmax(axis=1)
    values = np.where(nonzero.any(axis=1), matrix[np.arange(len(matrix)), columns], 0.0)
    return columns, values


def product_moments(law: Cube | Signs, matrix: Array, bias: Array) -> OutputMoments | None:
    """Mean and covariance of ``grad K(A x + a)``, or None if a row of A has several entries.

    The errors are the differences between a coarse and a fine rule.
    """
    entries = single_entries(matrix)
    if entries is None:
        return None
    columns, slopes = entries
    d = law.dim
    mean, covariance = law.tilted_mean(bias).copy(), np.zeros((d, d))  # right for rows of zeros
    mean_error, covariance_error = np.zeros(d), np.zeros((d, d))
    for column in np.unique(columns[slopes != 0]):
        rows = np.flatnonzero((columns == column) & (slopes != 0))
        block = np.ix_(rows, rows)
        for points in PRODUCT_POINTS:
            nodes, weights = _rule(law, slopes[rows], bias[rows], points)
            tilts = nodes[:, None] * slopes[rows] + bias[rows]
            # tilted means of one coordinate: scalar tilts, packed into rows of length d
            padded = np.zeros((-(-tilts.size // d), d))
            padded.flat[: tilts.size] = tilts.ravel()
            outputs = np.asarray(law.tilted_mean(padded).flat[: tilts.size]).reshape(tilts.shape)
            coarse = mean[rows], covariance[block]
            mean[rows] = weights @ outputs
            centred = outputs - mean[rows]
            covariance[block] = (centred * weights[:, None]).T @ centred
        mean_error[rows] = np.abs(mean[rows] - coarse[0])
        covariance_error[block] = np.abs(covariance[block] - coarse[1])
    return OutputMoments(
        mean, covariance, mean_error, covariance_error, method="quadrature", samples=0
    )


def _rule(law: Cube | Signs, slopes: Array, bias: Array, points: int) -> tuple[Array, Array]:
    """Nodes and weights for one coordinate of the law: of signs, its two atoms."""
    if isinstance(law, Signs):
        return np.array([-law.scale, law.scale]), np.array([0.5, 0.5])
    edges = _panels(law.scale, slopes, bias)
    nodes, weights = scipy.special.roots_legendre(points)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[:-1, None] + edges[1:, None]) / 2
    return (middle + half * nodes).ravel(), (half * weights / (2 * law.scale)).ravel()


def _panels(half_width: float, slopes: Array, bias: Array) -> Array:
    """Edges of panels that double in width away from the zeros of the tilts.

    A large tilt turns Langevin's function into a step of width ``1 / (|A| s)`` where
    ``A x + a = 0``, with an algebraic tail. On doubling panels its poles stay at a fixed distance
    in units of the panel, so one number of nodes is right for every tilt.
    """
    widths = STEP / (np.abs(slopes) * half_width)
    edges = [np.array([-half_width, half_width])]
    for zero, width in zip(-bias / slopes, widths, strict=True):
        doublings = np.ceil(np.log2(max((half_width + abs(zero)) / width, 1.0)))
        steps = width * 2.0 ** np.arange(doublings + 1)
        edges.append(np.concatenate([[zero], zero - steps, zero + steps]))
    ordered = np.unique(np.clip(np.concatenate(edges), -half_width, half_width))
    # Many rows on one column would bring many almost equal edges; half a step is fine enough.
    kept = [-half_width]
    for edge in ordered[1:-1]:
        if edge - kept[-1] > widths.min() / 2:
            kept.append(float(edge))
    return np.array([*kept, half_width])
