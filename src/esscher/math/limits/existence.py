"""Share of a head's queries that have no infinite-token limit.

The limit at tilt ``t`` exists when ``E exp<t, X>`` is finite near ``t``: always for light tails,
only in a box for exponential tails, only at 0 for power-law tails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.heads import Head, WeightHead
from esscher.math.laws import Laplace
from esscher.math.limits.product_rule import single_entries
from esscher.math.limits.results import NoLimit
from esscher.math.limits.sampling import query_blocks


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
        if low >= high:
            return 1.0
        outside = _laplace_tail(-low / scale) + _laplace_tail(high / scale)
        log_inside += float(np.log1p(-outside))
    return float(-np.expm1(log_inside))


def _laplace_tail(x: float) -> float:
    """``P(X > x)`` at scale 1, accurate for small tails."""
    return float(0.5 * np.exp(-x)) if x > 0 else float(1.0 - 0.5 * np.exp(x))


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
