"""Exact finite-n moments of a one-dimensional softmax mean of standard normals.

For ``x_1..x_n`` standard normal and a tilt of strength ``s``, put ``w_j = exp(s x_j - s^2/2)`` and
``p_j = w_j / sum w``. The d-dimensional map error at any n needs only

    a(n, s) = E (sum_j p_j x_j - s)^2,     b(n, s) = E sum_j p_j^2.

Both are ratios of sums, and ``1/Z^2 = int_0^inf lambda exp(-lambda Z) dlambda`` turns them into
products over independent tokens, with ``y = (x - s) w`` and ``phi = E exp(-lambda w)``:

    a = int lambda { n E[y^2 e^{-lambda w}] phi^{n-1} + n(n-1) E[y e^{-lambda w}]^2 phi^{n-2} }
    b = int lambda   n E[w^2 e^{-lambda w}] phi^{n-1}
    E sum_j p_j x_j - s = int n E[y e^{-lambda w}] phi^{n-1}

This is exact for every n, positive term by positive term, and n enters only through powers of
``phi``: the same few hundred values of lambda serve n = 10 and n = 10^12, before and after
freezing, with no simulation. In ``ell = ln lambda`` and in ``x`` the integrands are analytic in a
strip, so the trapezoidal rule converges exponentially; ``STEP`` puts its error below 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from esscher.core.validation import Array

#: Step of the trapezoidal rules, in ``ell`` and in ``s x``: 0.5 leaves a relative error below 1e-6,
#: 0.35 below 1e-9.
STEP = 0.5
#: Coarsest step in ell: a fixed key's share of attention is good to 3e-5, its square to 2e-4.
COARSEST = 0.75
#: Half-width at which the standard normal density is negligible (1e-20 of its peak).
REACH = 9.5
#: Drop, in natural logarithms, after which a contribution is neglected.
NEGLIGIBLE = 45.0
#: What has decayed by this many natural logarithms below the peak of an integral over ell is cut.
MARGIN = 22.5
#: Beyond this strength attention is frozen at every n of interest and moments are extrapolated.
STRONGEST = 80.0
#: Most nodes in x for each node in ell.
MOST_SHARES = 16
#: Entries of a (lambda, x) table evaluated at a time, which bounds the memory.
BLOCK = 2_000_000


@dataclass(frozen=True, eq=False)
class LaplaceTable:
    """Single-token expectations at one tilt strength, on a uniform grid of ``ell = ln lambda``.

    ``log_phi`` is ``ln E exp(-lambda w)``; ``y1 = lambda E[y e^{-lambda w}]``,
    ``y2 = lambda^2 E[y^2 e^{-lambda w}]`` and ``w2 = lambda^2 E[w^2 e^{-lambda w}]`` are made
    dimensionless by powers of lambda.
    """

    strength: float
    ell: Array
    step: float
    log_phi: Array
    y1: Array
    y2: Array
    w2: Array

    @property
    def heaviest(self) -> float:
        """Largest log-weight of a fixed key whose share of attention the grid in ell resolves."""
        return float(-self.ell[0] - MARGIN)

    def powers(self, count: float) -> Array:
        """``phi^count``, the Laplace transform of the sum of ``count`` weights."""
        return np.exp(count * self.log_phi)

    def squared_error(self, n: float) -> float:
        """``a(n, s)``."""
        pairs = n * (n - 1) * self.y1**2 * self.powers(n - 2)
        return float(self.step * np.sum(n * self.y2 * self.powers(n - 1) + pairs))

    def collision(self, n: float) -> float:
        """``b(n, s)``."""
        return float(self.step * np.sum(n * self.w2 * self.powers(n - 1)))

    def bias(self, n: float) -> float:
        """``E sum_j p_j x_j - s``."""
        return float(self.step * np.sum(n * self.y1 * self.powers(n - 1)))


def laplace_table(
    strength: float, largest_n: float, step: float = STEP, heaviest: float = -np.inf
) -> LaplaceTable:
    """Tabulate single-token expectations at a tilt strength, for every n up to ``largest_n``.

    Keys that are held fixed beside those tokens may have log-weights up to ``heaviest``.
    """
    s, log_n = float(strength), float(np.log(largest_n))
    low = s * s / 2 - s * _extreme(log_n) - 4
    if s < 12:
        low = min(low, -log_n - MARGIN)
    return _laplace_table(s, log_n, float(step), min(low, -float(heaviest) - MARGIN))


def dominant(strength: float, largest_n: float) -> float:
    """Log-weight from which one key has all the attention among n others, up to e^-20."""
    log_n = float(np.log(largest_n))
    return max(log_n, strength * _extreme(log_n) - strength**2 / 2) + 20


def _extreme(log_n: float) -> float:
    """No key beyond this occurs among n tokens, up to a probability of e^-45."""
    return float(np.sqrt(2 * (log_n + NEGLIGIBLE)))


@lru_cache(maxsize=512)  # errors of the map and of the moments are averages over the same strengths
def _laplace_table(s: float, log_n: float, step: float, low: float) -> LaplaceTable:
    top = min(2 * s, _extreme(log_n)) + REACH
    finest = min(0.3 * s, step)
    # Where attention is frozen the grid in ell follows the extremes and may be coarser: everything
    # is smooth on the scale s, but for a key that is held fixed.
    step = min(step * max(1.0, s / 25), max(step, COARSEST))
    # lambda w depends on ell + s x alone: with a spacing in s x that divides the step in ell, few
    # values occur in the whole table, whose sums over x are then correlations. Only for the weakest
    # tilts that spacing would be too small.
    ratio = int(np.ceil(step / finest)) if finest * MOST_SHARES > step else 0
    h = step / (ratio * s) if ratio else 0.3
    high = s * s / 2 + REACH * s + 4
    ell = step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)

    x = h * np.arange(np.floor(-REACH / h), np.ceil(top / h) + 1)
    log_w = s * x - s * s / 2
    plain = np.exp(-0.5 * x * x) * (h / np.sqrt(2 * np.pi))
    tilted = np.exp(-0.5 * (x - s) ** 2) * (h / np.sqrt(2 * np.pi))
    # of 1 - e^-z, z e^-z and z^2 e^-z at z = lambda w
    weights = [plain, tilted * (x - s)], [plain * (x - s)], [plain * (x - s) ** 2, plain]
    if ratio:
        log_z = ell[0] + log_w[0] + h * s * np.arange(ratio * (len(ell) - 1) + len(x))
        sums_over_x = [
            np.stack([np.correlate(kernel, each, "valid")[::ratio] for each in columns])
            for kernel, columns in zip(_kernels(log_z), weights, strict=True)
        ]
    else:
        parts = []
        rows = max(1, BLOCK // len(x))
        for start in range(0, len(ell), rows):
            kernels = _kernels(ell[start : start + rows, None] + log_w)
            parts.append([c @ k.T for k, c in zip(kernels, map(np.array, weights), strict=True)])
        sums_over_x = [np.concatenate(part, axis=1) for part in zip(*parts, strict=True)]
    (one_minus_phi, y_gap), (first,), (y2, w2) = sums_over_x
    # E[y] = 0: while lambda is small, E[y e^{-lambda w}] is a small difference from that
    small = ell + s * s / 2 < 0
    y1 = np.where(small, -y_gap * np.exp(np.where(small, ell, 0.0)), first)
    # phi = 1 - (1 - phi) may round to nothing; no token then has a small enough weight to survive
    log_phi = np.log1p(-np.minimum(one_minus_phi, 1 - 1e-16))
    return LaplaceTable(s, ell, step, log_phi, y1, y2, w2)


def _kernels(log_z: Array) -> tuple[Array, Array, Array]:
    """``1 - e^-z``, ``z e^-z`` and ``z^2 e^-z``."""
    # cut where exp(-z) vanishes in double precision
    z = np.exp(np.minimum(log_z, 6.6))
    decay = z * np.exp(-z)
    return -np.expm1(-z), decay, z * decay


def softmax_moments(sizes: Array, strengths: Array) -> tuple[Array, Array, Array]:
    """Exact ``a(n, s)``, ``b(n, s)`` and bias, each [size, strength].

    Strengths above ``STRONGEST`` are extrapolated from it: the softmax mean is then the maximum up
    to terms of order ``1/s^2``, so its first two moments no longer move (``a`` is off by less than
    1e-4 of itself) and ``1 - b`` falls like ``1/s``.
    """
    shape = (len(sizes), len(strengths))
    a, b, bias = np.empty(shape), np.empty(shape), np.empty(shape)
    largest = float(np.max(sizes))
    frozen: LaplaceTable | None = None
    for j, s in enumerate(strengths):
        if s < STRONGEST:
            table = laplace_table(float(s), largest)
        else:
            table = frozen = frozen or laplace_table(STRONGEST, largest)
        for i, n in enumerate(sizes):
            a[i, j] = table.squared_error(n)
            b[i, j] = table.collision(n)
            bias[i, j] = table.bias(n)
        if s > STRONGEST:
            more = float(s) - STRONGEST
            a[:, j] += more * more - 2 * more * bias[:, j]
            bias[:, j] -= more
            b[:, j] = 1 - (1 - b[:, j]) * STRONGEST / float(s)
    return a, b, bias
