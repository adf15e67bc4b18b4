"""Exact finite-n map error of a finite set of tokens: no Gaussian assumption, no simulation.

A query with limit output ``y`` attends n tokens drawn with replacement from the set; with weights
``w = e^{<t, k>}`` its output is ``sum_i w_i v_i / Z``, ``Z = sum_i w_i``. Since
``1/Z^2 = int_0^inf l e^{-l Z} dl`` and tokens are independent,

    E|output - y|^2 = n int l g_2(l) f(l)^{n-1} dl + n (n-1) int l |g_1(l)|^2 f(l)^{n-2} dl,

    f(l) = E e^{-l w},   g_1(l) = E[w (v - y) e^{-l w}],   g_2(l) = E[w^2 |v - y|^2 e^{-l w}],

expectations over the set. Each is a sum over the tokens, so that one query costs as much as a few
dozen attention passes of that query, for all n at once.
"""

from __future__ import annotations

from itertools import count

import numpy as np
from scipy.special import logsumexp

from esscher.core.validation import Array, as_sizes

#: Distance of the nodes in ln(lambda); the trapezoidal rule is then good to 1e-6.
STEP = 0.4
#: The integrals are cut where what is left is this power of 1/e of them, or less.
REACH = 22.0


def empirical_map_square(
    tilts: Array,
    keys: Array,
    values: Array,
    outputs: Array,
    sizes: Array,
    step: float = STEP,
    reach: float = REACH,
) -> Array:
    """``E|output_n - output|^2`` at each query and size, axes [query, size].

    Parameters
    ----------
    tilts
        One row per query.
    keys, values
        The tokens, from which n are drawn with replacement.
    outputs
        Attention over all tokens, one row per query.
    sizes
        Numbers of tokens n, at least 2, of any magnitude.
    step
        Distance of the nodes in ln(lambda); twice the default costs half and is good to 5e-4.
    reach
        The integrals are cut where what is left is ``e^-reach`` of them, or less.
    """
    n = as_sizes(sizes, smallest=2)
    squares = np.empty((len(tilts), len(n)))
    for i, tilt in enumerate(tilts):
        squares[i] = _one_query(keys @ tilt, values - outputs[i], n, step, reach)
    return squares


def _one_query(logits: Array, residuals: Array, n: Array, step: float, reach: float) -> Array:
    log_w = logits - logsumexp(logits) + np.log(len(logits))  # mean weight 1
    columns = np.hstack([residuals, np.sum(residuals**2, axis=1)[:, None]])
    log_f, single, pairs = [], [], []
    # Below 1/n and 1/max w the integrands fall like l^2.
    low = -max(np.log(n[-1]), log_w.max()) - reach
    # Where l w is below e^-50 for a token, it plays no part yet: the few heavy ones come first.
    order = np.argsort(-log_w)
    log_w, columns = log_w[order], columns[order]
    for index in count():
        at = low + index * step
        heavy = int(np.searchsorted(-log_w, at + 50.0))
        # a = ln(l w); beyond a = 6.6 the factor e^{-l w} is 0 in any case
        lw = np.exp(np.minimum(at + log_w[:heavy], 7.0))
        decay = np.exp(-lw)
        missing = float(np.sum(-np.expm1(-lw))) / len(log_w)
        if missing >= 1.0 or (n[0] - 1) * np.log1p(-missing) < -reach:
            break
        log_f.append(np.log1p(-missing))
        moment = lw * decay
        # l dl = l^2 d(ln l): each l goes to the weight that it multiplies
        single.append(float((moment * lw) @ columns[:heavy, -1]) / len(log_w))
        pairs.append(float(np.sum((moment @ columns[:heavy, :-1] / len(log_w)) ** 2)))
    powers = np.array(log_f)
    one = n * (np.exp((n[:, None] - 1) * powers) @ np.array(single))
    two = n * (n - 1) * (np.exp((n[:, None] - 2) * powers) @ np.array(pairs))
    return np.asarray(step * (one + two))
