"""Deterministic output moments for laws with independent coordinates.

When every tilt coordinate depends on one token coordinate, ``t_i = A_ij x_j + a_i``, so does every
coordinate of ``grad K(t)``: its moments are one-dimensional integrals, and two coordinates are
correlated only if they share their column j.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.laws import Cube, ProductLaw
from esscher.math.limits.results import OutputMoments

#: Gauss nodes of the coarse and the fine rule (per panel, for the cube).
POINTS = (12, 20)
#: Width of the panels next to a zero of a tilt, in units of the width of the map's step there.
STEP = 4.0
#: Entries below this share of the largest one are put down to the rounding of ``W_k' W_q``.
ROUNDING = 1e-15

Rule = tuple[Array, Array]


def single_entries(matrix: Array) -> tuple[NDArray[np.intp], Array] | None:
    """Return the column and the value of the only entry of each row, or None if a row has more.

    A row of zeros has value 0 (and an arbitrary column).
    """
    size = np.abs(matrix)
    nonzero = size > ROUNDING * len(matrix) * float(size.max(initial=0.0))
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
        coarse, fine = (
            _moments(law, slopes[rows], bias[rows], _rule(law, slopes[rows], bias[rows], points))
            for points in POINTS
        )
        mean[rows], covariance[block] = fine
        mean_error[rows] = np.abs(fine[0] - coarse[0])
        covariance_error[block] = np.abs(fine[1] - coarse[1])
    return OutputMoments(
        mean, covariance, mean_error, covariance_error, method="quadrature", samples=0
    )


def _moments(law: ProductLaw, slopes: Array, bias: Array, rule: Rule) -> tuple[Array, Array]:
    """Mean and covariance of the outputs that depend on one token coordinate."""
    nodes, weights = rule
    outputs = _coordinate_means(law, nodes[:, None] * slopes + bias)
    mean = weights @ outputs
    centred = outputs - mean
    return mean, (centred * weights[:, None]).T @ centred


def _coordinate_means(law: ProductLaw, tilts: Array) -> Array:
    """Tilted mean of one coordinate at any array of scalar tilts, packed into rows of length d."""
    padded = np.zeros((-(-tilts.size // law.dim), law.dim))
    padded.flat[: tilts.size] = tilts.ravel()
    return np.asarray(law.tilted_mean(padded).flat[: tilts.size]).reshape(tilts.shape)


def _rule(law: ProductLaw, slopes: Array, bias: Array, points: int) -> Rule:
    """Nodes and weights for one coordinate of the law."""
    if not isinstance(law, Cube):
        return law.marginal_rule(points)
    edges = _panels(law.half_width, slopes, bias)
    nodes, weights = scipy.special.roots_legendre(points)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[:-1, None] + edges[1:, None]) / 2
    return (middle + half * nodes).ravel(), (half * weights / (2 * law.half_width)).ravel()


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
