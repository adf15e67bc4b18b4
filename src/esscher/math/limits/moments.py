"""Moments by sampling: random queries of a head, block by block, and moments summed over blocks.

The queries are a function of the seed alone; every entry has its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_array, as_dim, as_positive
from esscher.math.heads import ArrayHead, Head, WeightHead, as_head
from esscher.math.laws import Cube, FiniteTokens, Laplace, ProductLaw, Sphere
from esscher.math.laws.sphere import bessel_ratio_over_argument
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

Rule = tuple[Array, Array]


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


def product_moments(law: ProductLaw, matrix: Array, bias: Array) -> OutputMoments | None:
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


def _rule(law: ProductLaw, slopes: Array, bias: Array, points: int) -> Rule:
    """Nodes and weights for one coordinate of the law."""
    if not isinstance(law, Cube):
        return law.marginal_rule(points)
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


# Deterministic output covariance for tokens on a sphere.
#
# With z uniform on the unit sphere of R^d and ``Q = sum_j lambda_j z_j^2``, the output covariance
# needs ``E[z_i^2 f(Q)]`` for an analytic f. The squares ``(z_j^2)`` follow a Dirichlet(1/2, ...,
# 1/2) law, and two facts about Dirichlet laws do the work:
#
# * adding a coordinate: ``Q' = B lambda + (1 - B) Q`` with B a Beta variable independent of Q;
# * weighting by ``z_i^2`` adds 1 to the i-th parameter, which is one more such step:
#   ``E[z_i^2 f(Q)] = E f(B lambda_i + (1 - B) Q) / d`` with ``B ~ Beta(1, d/2)``.
#
# So the N-point Gauss rule of Q is built coordinate by coordinate: mix the rule so far with a
# Gauss-Jacobi rule for B, then compress the N^2 points back to N by Lanczos (Golub-Welsch). Every
# step integrates polynomials of degree 2N-1 exactly, so the result IS the Gauss rule of Q, and all
# weights stay positive, so nothing cancels.

#: Numbers of nodes; the rule is refined until two in a row agree.
SPHERE_POINTS = (8, 16, 32, 64)
#: Relative agreement at which refining stops.
TOLERANCE = 1e-10
#: Relative error that rounding is allowed (measured: below 3e-14 up to d = 4096).
ROUNDING = 1e-13
#: Values closer than this, relative to the largest, are one value with multiplicity.
EQUAL = 1e-12
#: Length of a Lanczos vector that means the points are used up (they are scaled to [-1, 1]).
EXHAUSTED = 1e-14
#: Distinct values whose integrands are evaluated at a time.
LEVELS_AT_A_TIME = 64


def sphere_output_eigenvalues(
    spectrum: Array, dim: int, radius: float = 1.0, tolerance: float = TOLERANCE
) -> tuple[Array, Array]:
    """``E[g(|t|)^2 t_i^2 / |t|^2]`` for ``t = A x``, x uniform on the sphere, in A's left basis.

    ``g(s) = R I_{d/2}(R s) / I_{d/2-1}(R s)``. For a head with values ``V x`` and ``A = U S W'``
    the output covariance is ``V U diag(values) U' V'``.

    Parameters
    ----------
    spectrum
        Singular values of A, at most ``dim`` of them; those left out are 0.
    dim, radius
        The sphere.
    tolerance
        Relative agreement of two rules at which refining stops.

    Returns
    -------
    values, errors
        ``E[Gamma_i^2]`` along the left singular vectors of A, in the order of the spectrum, and
        estimated absolute errors: the difference between the last two rules, plus rounding.
    """
    d, r = as_dim(dim), as_positive(radius, "radius")
    given = np.atleast_1d(as_array(spectrum, "spectrum"))
    if given.ndim != 1 or len(given) > d:
        raise InputError(f"spectrum has shape {given.shape}; it must be a list of at most {d}")
    squares = np.zeros(d)
    squares[: len(given)] = (r * given) ** 2

    def gain(q: Array) -> Array:
        """``(g(s) / s)^2`` at ``s^2 = q``: analytic in q, so that Gauss rules converge fast."""
        return np.asarray((r * r * bessel_ratio_over_argument(d / 2 - 1, r * np.sqrt(q))) ** 2)

    current = squares * weighted_means(gain, squares, SPHERE_POINTS[0])
    for points in SPHERE_POINTS[1:]:
        previous, current = current, squares * weighted_means(gain, squares, points)
        change = np.abs(current - previous)
        if np.all(change <= tolerance * current):
            break
    return current, change + ROUNDING * current


def weighted_means(f: Callable[[Array], Array], values: Array, points: int) -> Array:
    """``E[z_i^2 f(Q)]`` for every i, ``Q = sum_j values_j z_j^2``; exact up to degree 2 points - 1.

    Parameters
    ----------
    f
        Vectorised function on ``[min(values), max(values)]``.
    values
        The d coefficients; their number is the dimension of the sphere.
    points
        Number of Gauss nodes.
    """
    d = len(values)
    levels, member = _distinct(values)
    nodes, weights = quadratic_form_rule(values, points)
    share, share_weights = beta_rule(1.0, d / 2, points)
    means = np.empty(len(levels))
    for start in range(0, len(levels), LEVELS_AT_A_TIME):
        part = levels[start : start + LEVELS_AT_A_TIME, None, None]
        mixed = share[:, None] * part + (1.0 - share[:, None]) * nodes
        means[start : start + LEVELS_AT_A_TIME] = (f(mixed) @ weights) @ share_weights
    return np.asarray(means[member] / d)


def quadratic_form_rule(values: Array, points: int) -> Rule:
    """Gauss rule (nodes, weights) of the law of ``sum_j values_j z_j^2``, z uniform on the sphere.

    It has ``points`` nodes, or fewer when the law is a point mass.
    """
    levels, member = _distinct(values)
    counts = np.bincount(member)
    nodes, weights, parameter = levels[:1], np.ones(1), counts[0] / 2
    for level, count in zip(levels[1:], counts[1:], strict=True):
        share, share_weights = beta_rule(count / 2, parameter, points)
        mixed = share[:, None] * level + (1.0 - share[:, None]) * nodes
        nodes, weights = gauss_rule(mixed.ravel(), np.outer(share_weights, weights).ravel(), points)
        parameter += count / 2
    return nodes, weights


def beta_rule(alpha: float, beta: float, points: int) -> Rule:
    """Gauss rule of the Beta(alpha, beta) law on [0, 1], from the Jacobi recurrence.

    The recurrence is written for [0, 1] itself: with beta large the mass sits near 0, where
    ``(1 + x) / 2`` of a rule on [-1, 1] would have lost its digits.
    """
    s = alpha + beta - 2.0
    k = np.arange(1.0, points)
    diagonal = np.empty(points)
    diagonal[0] = alpha / (alpha + beta)
    diagonal[1:] = (2 * k * (k + s + 1) + s * alpha) / ((2 * k + s) * (2 * k + s + 2))
    square = np.empty(points - 1)
    if points > 1:
        # k = 1 apart: the common factor s + 1 vanishes for the arcsine law.
        square[0] = alpha * beta / ((s + 2) ** 2 * (s + 3))
        k = k[1:]
        square[1:] = (k * (k + alpha - 1) * (k + beta - 1) * (k + s)) / (
            (2 * k + s) ** 2 * (2 * k + s + 1) * (2 * k + s - 1)
        )
    return _golub_welsch(diagonal, np.sqrt(square))


def gauss_rule(points: Array, weights: Array, count: int) -> Rule:
    """Gauss rule with ``count`` nodes of a discrete law, by Lanczos with full reorthogonalisation.

    Fewer nodes are returned when the law has fewer points.
    """
    low, high = float(points.min()), float(points.max())
    centre, half = (low + high) / 2, (high - low) / 2
    if half <= 4 * np.finfo(float).eps * max(abs(low), abs(high)):
        return np.array([centre]), np.ones(1)
    x = (points - centre) / half
    basis = np.empty((count, len(x)))
    diagonal, off = np.empty(count), np.empty(count)
    vector = np.sqrt(weights / weights.sum())
    size = count
    for k in range(count):
        basis[k] = vector
        image = x * vector
        diagonal[k] = vector @ image
        for _ in range(2):  # once is not enough to stay orthogonal to rounding
            image -= (basis[: k + 1] @ image) @ basis[: k + 1]
        off[k] = np.linalg.norm(image)
        if off[k] <= EXHAUSTED:
            size = k + 1
            break
        vector = image / off[k]
    nodes, rule_weights = _golub_welsch(diagonal[:size], off[: size - 1])
    # Clipped because rounding may carry a node past the ends, and f need not exist there.
    return np.clip(centre + half * nodes, low, high), rule_weights


def _golub_welsch(diagonal: Array, off: Array) -> Rule:
    """Nodes and weights from the Jacobi matrix of a probability law."""
    if len(diagonal) == 1:
        return diagonal.copy(), np.ones(1)
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal, off)
    weights = np.asarray(vectors[0] ** 2)
    return np.asarray(nodes), weights / weights.sum()


def _distinct(values: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the distinct values, smallest first, and the index of each value among them.

    Smallest first because the rule grows in this order: what rounding does to the many small
    values is then small beside the large ones that come last.
    """
    order = np.argsort(values)
    ordered = values[order]
    tolerance = EQUAL * float(np.abs(values).max())
    starts = [0]
    for i in range(1, len(ordered)):
        if ordered[i] - ordered[starts[-1]] > tolerance:
            starts.append(i)
    counts = np.diff([*starts, len(ordered)])
    member = np.empty(len(values), dtype=np.intp)
    member[order] = np.repeat(np.arange(len(starts)), counts)
    return np.add.reduceat(ordered, starts) / counts, member
