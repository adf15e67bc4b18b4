"""Deterministic output moments for laws with independent coordinates.

When every tilt coordinate depends on one token coordinate, ``t_i = A_ij x_j + a_i``, so does every
coordinate of ``grad K(t)``: its moments are one-dimensional integrals, and two coordinates are
correlated only if they share their column j.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_dim, as_positive
from esscher.math.laws import Cube, ProductLaw
from esscher.math.laws.sphere import bessel_ratio_over_argument
from esscher.math.limits.mapping import OutputMoments

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
BLOCK = 64


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
    for start in range(0, len(levels), BLOCK):
        part = levels[start : start + BLOCK, None, None]
        mixed = share[:, None] * part + (1.0 - share[:, None]) * nodes
        means[start : start + BLOCK] = (f(mixed) @ weights) @ share_weights
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
