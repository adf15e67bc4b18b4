"""Second order of the mean's error on the line: what pairs of tokens do beyond their sum.

``moment_errors`` projects the mean output on sums of functions of single tokens. The next term of
Hoeffding's expansion is the part of ``E[mean_n | eta_1, eta_2]`` that no such sum carries,

    h_2(eta_1, eta_2) = E[mean_n | eta_1, eta_2] - (its two projections) + E[mean_n],

with the variance ``n (n - 1)/2 E h_2^2``. On the line the Laplace integrals with two keys held
fixed are products of one function of each key, so that a table over pairs is a matrix product.
"""

from __future__ import annotations

import numpy as np

from esscher.core.validation import Array
from esscher.math.coupling import Coupling
from esscher.math.theory.softmax_mean import STRONGEST, LaplaceTable, laplace_table
from esscher.math.theory.tilt_law import TiltLaw

#: Tilt strengths with less mass than this do not matter.
LIGHT = 1e-10
#: Nodes of the rule over the norm of each token, and trapezoidal step: good to 1% of the variance,
#: which is itself at most a tenth of the whole.
NODES, STEP = 32, 0.7
#: exp(-exp(CUT)) vanishes in double precision.
CUT = 6.6


def pair_variance(
    coupling: Coupling, h: float, n: Array, nodes: Array, masses: Array, queries: str
) -> Array:
    """Variance of the mean's error at each size that pairs of tokens add, ``M = h`` on the line.

    ``nodes`` and ``masses`` are a rule for averages over the norm of a token.
    """
    tokens = queries == "tokens"
    x = np.concatenate([-nodes[::-1], nodes])
    mass = np.concatenate([masses[::-1], masses]) / 2
    rule = TiltLaw(coupling).rule(float(n.max()))
    total = np.zeros((len(n), len(x), len(x)))
    for s, weight in zip(rule.strengths, rule.weights, strict=True):
        if weight < LIGHT:
            continue
        strength = min(float(s), STRONGEST)
        table = laplace_table(strength, float(n.max()), STEP)
        fixed = _Fixed(table, x)
        own = strength / h if tokens else None
        for i, size in enumerate(n):
            along = fixed.error(size, own)
            # the query may point either way
            total[i] += weight * (along - along[::-1, ::-1]) / 2
    if tokens:
        own_part = _own_queries(h, n, x)
        total = total * ((n - 2) / n)[:, None, None] + own_part / n[:, None, None]
    centred = total - np.einsum("nij,j->ni", total, mass)[:, :, None]
    centred -= np.einsum("nij,i->nj", centred, mass)[:, None, :]
    return np.asarray(n * (n - 1) / 2 * np.einsum("nij,i,j->n", centred**2, mass, mass))


class _Fixed:
    """One strength's kernels of a fixed key at each node: exp(-w) and w (x - s) exp(-w)."""

    def __init__(self, table: LaplaceTable, x: Array) -> None:
        self._table = table
        s = table.strength
        logs = table.ell[:, None] + s * x - s * s / 2
        weight = np.exp(np.minimum(logs, CUT))
        self.plain = np.exp(-weight)
        self.pull = weight * (x - s) * self.plain

    def error(self, n: float, own: float | None) -> Array:
        """``E[Gamma_n - s]`` given two keys (rows and columns), and the own key if there is one."""
        table = self._table
        others = n - 2 if own is None else n - 3
        damp = table.step * table.powers(others)
        rest = table.step * others * table.y1 * table.powers(max(others - 1, 0.0))
        if own is not None:
            s = table.strength
            weight = np.exp(np.minimum(table.ell + s * own - s * s / 2, CUT))
            fade = np.exp(-weight)
            rest = (rest + damp * weight * (own - s)) * fade
            damp = damp * fade
        pull = self.plain.T @ (damp[:, None] * self.pull)
        return np.asarray(pull + pull.T + self.plain.T @ (rest[:, None] * self.plain))


def _own_queries(h: float, n: Array, x: Array) -> Array:
    """``E[Gamma_n]`` at the query of one of the two tokens, summed over the two."""
    out = np.zeros((len(n), len(x), len(x)))
    last = len(x) - 1
    for k in range(len(x) // 2, len(x)):
        token = x[k]
        tilt = h * float(token)
        sign = 1.0 if tilt >= 0 else -1.0
        table = laplace_table(min(abs(tilt), STRONGEST), float(n.max()), STEP)
        fixed = _Fixed(table, sign * x)
        for i, size in enumerate(n):
            others = size - 2
            damp = table.step * table.powers(others)
            rest = table.step * others * table.y1 * table.powers(max(others - 1, 0.0))
            plain, pull = fixed.plain[:, k], fixed.pull[:, k]
            row = fixed.pull.T @ (damp * plain) + fixed.plain.T @ (damp * pull + rest * plain)
            out[i, k] = sign * row
            out[i, last - k] = -sign * row[::-1]  # all signs reversed
    return np.asarray(out + out.transpose(0, 2, 1))
