"""Predicted map error at finite n, for Gaussian tokens and any spectrum, n = 2 to 10^12 and beyond.

In whitened coordinates the error covariance at tilt strength s is ``a uu' + b (I - uu')`` with the
two universal functions of ``softmax_mean``; averaging over the law of the tilt gives

    E|Gamma_n - Gamma|^2 = E[ a(n,s) u'Wu + b(n,s) (tr W - u'Wu + tr R) ],

W the Gram matrix of the values in whitened key coordinates and R the covariance of what the values
do not share with the keys. This is exact, before and after freezing, when queries are independent
of the keys (``queries="population"``). When the tokens attend to each other
(``queries="tokens"``) one of the n keys belongs to the query itself; it is carried through the same
integrals, exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.validation import Array, as_sizes
from esscher.math.coupling import Coupling
from esscher.math.heads import Head
from esscher.math.theory.curve import Curve
from esscher.math.theory.exact_constants import select_coupling
from esscher.math.theory.own_key import own_key_square
from esscher.math.theory.softmax_mean import STRONGEST, LaplaceTable, laplace_table, softmax_moments
from esscher.math.theory.tilt_law import TiltLaw, TiltRule


def map_curve(head: Head, sizes: ArrayLike, queries: str = "population", seed: int = 0) -> Curve:
    """Root-mean-square map error over queries and tokens, at each size.

    For ``queries="tokens"`` and a head that is neither isotropic nor of small rank (``own_key``)
    the average over directions of the query is sampled (``seed``), with a standard error.

    Raises
    ------
    UndefinedError
        If that average is carried by too few of its terms to be known.
    """
    n = as_sizes(sizes)
    coupling = select_coupling(head, queries)
    law = TiltLaw(coupling)
    rule = law.rule(float(n.max()))
    validity = "every n" if head.is_gaussian else "Gaussian theory applied to the second moments"
    # without tilts attention is uniform: a query's own key is one among n, as any other
    uniform = coupling.horizon == 0 and not coupling.tau.any()
    if queries == "population" or uniform:
        square = _population_square(coupling, n, rule)
        square_error, method = np.zeros_like(n), "exact reduction"
    elif coupling.isotropy is not None:
        square = _isotropic_self_square(coupling, n, rule)
        square_error, method = np.zeros_like(n), "exact reduction with the query's own key"
    else:
        square, square_error, method = own_key_square(coupling, n, law, rule, seed)
    error = np.sqrt(square)
    return Curve("map", "rms", n, error, square_error / (2 * error), queries, method, validity)


def _population_square(coupling: Coupling, n: Array, rule: TiltRule) -> Array:
    moments = softmax_moments(n, rule.strengths)
    total = float(np.trace(coupling.value_gram)) + coupling.residual_trace
    along = (moments.squared_error - moments.collision) @ rule.along
    return np.asarray(along + moments.collision @ rule.weights * total)


def _isotropic_self_square(coupling: Coupling, n: Array, rule: TiltRule) -> Array:
    """The same with the query's own key, ``M = h I``: that key is ``a / h``, along the tilt."""
    isotropy = coupling.isotropy
    assert isotropy is not None
    h, gain = isotropy
    d = len(coupling.tau)
    square = np.zeros(len(n))
    for s, weight in zip(rule.strengths, rule.weights, strict=True):
        strength = min(float(s), STRONGEST)
        own = s / h
        own_weight = strength * own - strength**2 / 2
        table = laplace_table(strength, float(n.max()), heaviest=own_weight)
        off = own - s
        for i, size in enumerate(n):
            square[i] += (
                weight
                * gain
                * _square_with_own_key(table, size, strength * own, off * off, off, 1.0, d - 1.0)
            )
    return square


def _square_with_own_key(
    table: LaplaceTable,
    n: float,
    own_logit: float,
    offset_square: float,
    offset_along: float,
    along: float,
    across: float,
) -> float:
    """Mean squared error at one query whose own key is among the n keys.

    The own key has weight ``w0 = exp(own_logit - s^2/2)``; ``offset`` is its value minus the limit,
    and ``along``, ``across`` are the squared value loadings along and across the tilt.
    """
    weight = np.exp(np.minimum(table.ell + own_logit - table.strength**2 / 2, 6.6))
    m = n - 1
    last = table.powers(m - 1)
    body = (
        weight**2 * offset_square * table.powers(m)
        + 2 * weight * offset_along * m * table.y1 * last
        + m * (table.y2 * along + table.w2 * across) * last
        + m * (m - 1) * table.y1**2 * along * table.powers(m - 2)
    )
    return float(table.step * np.sum(np.exp(-weight) * body))
