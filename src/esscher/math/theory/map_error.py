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

from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_sizes
from esscher.math.coupling import Coupling
from esscher.math.heads import Head
from esscher.math.theory.curve import Curve
from esscher.math.theory.exact_constants import select_coupling
from esscher.math.theory.softmax_mean import STRONGEST, LaplaceTable, laplace_table, softmax_moments
from esscher.math.theory.tilt_law import TiltLaw, TiltRule

#: Heads without symmetry: the effect of a query's own key is averaged over batches of queries until
#: the curve is known to this precision, or the largest number of queries is reached.
SELF_BATCH, SELF_LARGEST, SELF_PRECISION = 256, 2048, 0.01
#: Trapezoidal step for those: a relative error of 1e-5 is far below their sampling error.
SELF_STEP = 0.7


def map_curve(head: Head, sizes: ArrayLike, queries: str = "population", seed: int = 0) -> Curve:
    """Root-mean-square map error over queries and tokens, at each size.

    For ``queries="tokens"`` and a head that is not isotropic the average over the query and its own
    key is a Monte Carlo average of exact conditional errors (``seed``), and the standard error is
    reported.
    """
    n = as_sizes(sizes)
    coupling = select_coupling(head, queries)
    rule = TiltLaw(coupling).rule(float(n.max()))
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
        population = _population_square(coupling, n, rule)
        difference, square_error, used = _self_difference(coupling, n, population, seed)
        square = population + difference
        method = f"exact reduction, own key averaged over {used} queries"
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
        table = laplace_table(strength, float(n.max()))
        own = s / h
        off = own - s
        for i, size in enumerate(n):
            square[i] += (
                weight
                * gain
                * _square_with_own_key(table, size, strength * own, off * off, off, 1.0, d - 1.0)
            )
    return square


def _self_difference(
    coupling: Coupling, n: Array, population: Array, seed: int
) -> tuple[Array, Array, int]:
    """Average of (error with the own key) - (error without), standard error, queries used.

    Where the own key takes all the attention the error is its offset from the limit, whose mean
    square is known: it serves as a control variate. Batches of queries are added until the standard
    error is small against the whole.
    """
    rng = random_stream(seed, "own key")
    rows: list[Array] = []
    controls: list[Array] = []
    while True:
        queries = coupling.sample_queries(SELF_BATCH, rng)
        controls.append(np.sum(queries.offsets**2, axis=1))
        rows += [
            _own_key_effect(coupling, n, tilt, float(logit), offset)
            for tilt, logit, offset in zip(*queries, strict=True)
        ]
        values, control = np.array(rows), np.concatenate(controls)
        centred = control - control.mean()
        slopes = centred @ (values - values.mean(axis=0)) / (centred @ centred)
        adjusted = values - np.outer(control - coupling.mean_square_offset, slopes)
        mean = adjusted.mean(axis=0)
        error = adjusted.std(axis=0, ddof=2) / np.sqrt(len(values))
        # the square's relative error is twice that of its root
        precise = np.all(error <= 2 * SELF_PRECISION * np.maximum(population + mean, 0.0))
        if precise or len(values) >= SELF_LARGEST:
            return mean, error, len(values)


def _own_key_effect(
    coupling: Coupling, n: Array, tilt: Array, own_logit: float, offset: Array
) -> Array:
    """Squared error at one query with its own key among the n keys, minus that without, per n."""
    gram = coupling.value_gram
    total = float(np.trace(gram)) + coupling.residual_trace
    s = float(np.linalg.norm(tilt))
    u = tilt / max(s, 1e-300)
    along = float(u @ gram @ u)
    strength = min(s, STRONGEST)
    table = laplace_table(strength, float(n.max()), SELF_STEP)
    square, off_along = float(offset @ offset), float(offset @ coupling.loading @ u)
    out = np.empty(len(n))
    for j, size in enumerate(n):
        mine = _square_with_own_key(
            table,
            size,
            own_logit * min(1.0, strength / max(s, 1e-300)),
            square,
            off_along,
            along,
            total - along,
        )
        alone = table.squared_error(size) * along + table.collision(size) * (total - along)
        out[j] = mine - alone
    return out


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
