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
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.coupling import Coupling

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


# The law of the tilt strength s = |a| over queries, a ~ N(tau, G).
#
# s^2 is a generalised chi-square variable. Error curves need its density with RELATIVE accuracy far
# into the tail (at n = 10^12 the queries that matter can be five standard deviations out), which
# rules out sampling. Here the density is the inverse Laplace transform along the parabola that
# leaves the saddle point in the direction of steepest descent, where the trapezoidal rule converges
# exponentially, in the tail as in the bulk.

#: Step and number of nodes of the rule along the saddle-point contour (one half, by symmetry).
CONTOUR_STEP, CONTOUR_NODES = 0.11, 110
#: Panels and points per panel of the Gauss-Legendre rule over strengths.
PANELS, POINTS = 8, 12
#: Halvings of the interval that holds a saddle point: a span of 64 ends below rounding.
BISECTIONS = 60
#: Drop in natural logarithms after which a strength is left out of the rule.
FAINT = 42.0


@dataclass(frozen=True, eq=False)
class TiltRule:
    """Quadrature over tilt strengths.

    ``E f(s) = sum weights * f(strengths)`` and ``E[f(s) u'Wu] = sum along * f(strengths)`` with
    ``u = a/|a|`` and W the Gram matrix of the values; ``steps`` are the weights of the plain
    integral over s.
    """

    strengths: Array
    weights: Array
    along: Array
    steps: Array


class TiltLaw:
    """Law of ``|a|^2`` for ``a ~ N(tau, G)``, G diagonal, with its transform and its density."""

    def __init__(self, coupling: Coupling) -> None:
        g, w = coupling.variances, coupling.value_gram
        # Equal variances enter only through the sum of tau_j^2 and W_jj: group them.
        scale = max(float(g[0]) if g.size else 0.0, 1e-300)
        rounded = np.round(g / scale, 13)
        self._g, index = np.unique(rounded, return_inverse=True)
        self._g = self._g * scale
        self._count = np.bincount(index).astype(np.float64)
        self._tau2 = np.bincount(index, weights=coupling.tau**2)
        self._w = np.bincount(index, weights=np.diag(w))
        # W between groups, seen by the mean tilt only
        member = np.zeros((len(self._g), len(g)))
        member[index, np.arange(len(g))] = 1.0
        lean = member * coupling.tau
        self._w_tau = lean @ w @ lean.T
        self.shift = float(self._tau2[self._g == 0].sum())  # s^2 cannot fall below this
        self.is_constant = bool(np.all(self._g == 0))
        self._coupling = coupling

    def log_transform(self, theta: Array) -> Array:
        """``ln E exp(theta |a|^2)`` for complex theta, off the cut ``theta >= 1/(2 g_max)``."""
        gap = 1 - 2 * self._g * theta[..., None]
        return np.asarray(
            np.sum(theta[..., None] * self._tau2 / gap - 0.5 * self._count * np.log(gap), axis=-1)
        )

    def _cumulants(self, theta: float) -> tuple[float, float, float]:
        """First three derivatives of the log-transform at a real theta below the cut."""
        g, gap = self._g, 1 - 2 * self._g * theta
        tau2, count = self._tau2, self._count
        first = np.sum(count * g / gap + tau2 / gap**2)
        second = np.sum(2 * count * g**2 / gap**2 + 4 * tau2 * g / gap**3)
        third = np.sum(8 * count * g**3 / gap**3 + 24 * tau2 * g**2 / gap**4)
        return float(first), float(second), float(third)

    def saddles(self, x: Array) -> Array:
        """Solve ``K'(theta) = x`` below the cut, for all x at once."""
        top = 1 / (2 * float(self._g[-1]))
        target = np.log(x - self.shift)

        def excess(v: Array) -> Array:
            gap = 1 + 2 * self._g * top * np.expm1(v)[:, None]
            slope = np.sum(self._count * self._g / gap + self._tau2 / gap**2, axis=-1)
            return np.asarray(np.log(slope - self.shift) - target)

        # in v = ln(1 - theta/top) the equation is monotone and has no singular end
        span = np.full(len(x), 4.0)
        while (short := (excess(-span) < 0) | (excess(span) > 0)).any():
            span[short] *= 2
        low, high = -span, span
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            right = excess(middle) > 0
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return np.asarray(top * -np.expm1((low + high) / 2))

    def density(self, x: float, theta: float | None = None) -> tuple[float, float]:
        """Density of ``|a|^2`` at x, and the same weighted by ``a'Wa``; ``theta`` is x's saddle."""
        if theta is None:
            theta = float(self.saddles(np.array([x]))[0])
        _, second, third = self._cumulants(theta)
        width = second**-0.5
        bend = third * width / (6 * second)
        v = CONTOUR_STEP * np.arange(CONTOUR_NODES)
        path = theta + width * (1j * v + bend * v**2)
        slope = width * (1j + 2 * bend * v)
        value = np.exp(self.log_transform(path) - path * x) * slope
        value[0] *= 0.5  # the node on the real axis is shared by both halves
        # E[a'Wa exp(theta |a|^2)] / E exp(theta |a|^2) along the path
        gap = 1 - 2 * self._g * path[:, None]
        gram = np.sum(self._w * self._g / gap, axis=-1)
        gram = gram + np.einsum("...i,ij,...j->...", 1 / gap, self._w_tau, 1 / gap)
        scale = CONTOUR_STEP / np.pi
        return float(scale * np.sum(value).imag), float(scale * np.sum(value * gram).imag)

    def rule(self, largest_n: float) -> TiltRule:
        """Quadrature rule for error curves up to ``largest_n`` tokens.

        Errors grow like ``exp(s^2)/n`` until they freeze, so the rule reaches out to where the
        density no longer matters even with the weight ``min(exp(s^2), n)``.
        """
        c = self._coupling
        if self.is_constant:
            only = float(np.sqrt(np.sum(c.tau**2)))
            along = float(c.tau @ c.value_gram @ c.tau) / only**2 if only > 0 else 0.0
            return TiltRule(np.array([only]), np.ones(1), np.array([along]), np.ones(1))
        low, high = self._range(float(np.log(largest_n)))
        nodes, weights = np.polynomial.legendre.leggauss(POINTS)
        edges = np.linspace(low, high, PANELS + 1)
        half = np.diff(edges)[:, None] / 2
        s = ((edges[:-1] + edges[1:])[:, None] / 2 + half * nodes).ravel()
        ds = (half * weights).ravel()
        saddles = self.saddles(s**2)
        pairs = [self.density(x, theta) for x, theta in zip(s**2, saddles, strict=True)]
        density, gram = np.array(pairs).T
        return TiltRule(s, 2 * s * ds * density, 2 * ds * gram / s, ds)

    def _range(self, log_n: float) -> tuple[float, float]:
        """Strengths that matter, plain or weighted by ``min(exp(s^2), n)``."""
        floor = float(np.sqrt(self.shift))
        typical, spread, _ = self._cumulants(0.0)
        top = np.sqrt(typical + 10 * np.sqrt(spread)) + 2 * np.sqrt(log_n)
        while True:
            s = np.linspace(floor, top, 401)[1:]
            # the leading saddle-point approximation is good enough to choose a range
            x = s**2
            theta = self.saddles(x)
            second = np.array([self._cumulants(at)[1] for at in theta])
            logs = np.asarray(self.log_transform(theta) - theta * x - 0.5 * np.log(second))
            logs = logs + np.log(s)
            heavy = logs + np.minimum(s**2, log_n)
            keep = (logs > logs.max() - FAINT) | (heavy > heavy.max() - FAINT)
            if not keep[-1]:
                break
            top *= 1.5
        first, last = np.flatnonzero(keep)[[0, -1]]
        return floor if first == 0 else float(s[first - 1]), float(s[min(last + 1, len(s) - 1)])


# Cubic splines through values on a grid, and averages of them.
#
# The spline is that of scipy.interpolate.CubicSpline with its default ends ("not a knot"). That
# module takes a third of a second to import, half as long as all that theory predicts for a sweep;
# and averages of a spline over many points are a matrix product here, which it does not offer.


class Spline:
    """A function on the line with known values on a grid.

    Parameters
    ----------
    grid
        At least four points, increasing.
    values
        The first axis runs along the grid; further ones are further functions.
    """

    def __init__(self, grid: Array, values: Array) -> None:
        self._grid, self._values = grid, values
        # slopes that make second derivatives continuous, and third ones next to the ends
        flat = values.reshape(len(values), -1)
        dx = np.diff(grid)
        slope = np.diff(flat, axis=0) / dx[:, None]
        wide = dx[:, None]
        first, last = grid[2] - grid[0], grid[-1] - grid[-3]
        bands = np.zeros((3, len(grid)))
        bands[1, 1:-1] = 2 * (dx[:-1] + dx[1:])
        bands[0, 2:], bands[2, :-2] = dx[:-1], dx[1:]
        bands[1, 0], bands[0, 1] = dx[1], first
        bands[1, -1], bands[2, -2] = dx[-2], last
        right = np.empty_like(flat)
        right[1:-1] = 3 * (wide[1:] * slope[:-1] + wide[:-1] * slope[1:])
        right[0] = ((dx[0] + 2 * first) * dx[1] * slope[0] + dx[0] ** 2 * slope[1]) / first
        right[-1] = (dx[-1] ** 2 * slope[-2] + (2 * last + dx[-1]) * dx[-2] * slope[-1]) / last
        slopes = scipy.linalg.solve_banded((1, 1), bands, right, True, True, check_finite=False)
        self._slopes = np.asarray(slopes).reshape(values.shape)

    def __call__(self, x: Array) -> Array:
        """Values at the points of an array of one axis; beyond the grid its ends are continued."""
        at, parts = self._parts(x)
        low, high, slope, next_slope = (
            part.reshape(-1, *(1,) * (self._values.ndim - 1)) for part in parts
        )
        ends = low * self._values[at] + high * self._values[at + 1]
        return np.asarray(ends + slope * self._slopes[at] + next_slope * self._slopes[at + 1])

    def averages(self, x: Array, masses: Array) -> Array:
        """Averages over points, [k, row, ...], for values of two axes.

        Parameters
        ----------
        x
            Points [row, point].
        masses
            Weights of the points, [k, point].
        """
        rows, count = len(x), len(self._grid)
        at, parts = self._parts(x)
        # a row of weights of the values, then of the slopes
        first = (at + 2 * count * np.arange(rows)[:, None]).ravel()
        places = np.concatenate([first, first + 1, first + count, first + count + 1])
        weights = np.empty((len(masses), rows * 2 * count))
        for k, mass in enumerate(masses):
            each = np.concatenate([(mass * part).ravel() for part in parts])
            weights[k] = np.bincount(places, each, weights.shape[1])
        both = np.concatenate([self._values, self._slopes])
        sums = weights.reshape(-1, 2 * count) @ both
        return np.asarray(sums.reshape(len(masses), rows, -1))

    def _parts(self, x: Array) -> tuple[NDArray[np.int64], list[Array]]:
        """Piece of the grid and what counts there: both values, then the slopes at both ends."""
        grid = self._grid
        at = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
        width = grid[at + 1] - grid[at]
        u = (x - grid[at]) / width
        square, rest = u * u, 1 - u
        high = square * (3 - 2 * u)
        return at, [1 - high, high, width * u * rest * rest, -width * square * rest]


# Laplace integrals of attention with one key held fixed, as functions of that key's weight.
#
# At one query of tilt strength s, the n keys are: a fixed key of log-weight L, the query's own key
# (when tokens attend to each other), and the others, which ``softmax_moments`` averages out by a
# transform. With ``p`` the softmax weights and ``rest = sum over others p_j (x_j - s)`` the part of
# the error that the others contribute along the tilt, this file tabulates the expectations of
#
#     p_key, p_own, rest, p_key^2, p_key p_own, p_key rest, p_own^2, p_own rest, rest^2 (along),
#     and, across the tilt, the sum over others of p_j^2.
#
# Those without p_key have a limit as L falls, their level, that a fixed key changes little: among
# n = 10^24 tokens by 10^-24 of it, less than rounding. So the change is what is tabulated, from
# ``e^{-lambda w} - 1`` in place of ``e^{-lambda w}``, and the level is kept apart.

#: Largest spacing of the table in the fixed key's log-weight: everything varies on the scale 1.
SPACING = 0.25
#: exp(-exp(CUT)) vanishes in double precision.
CUT = 6.6
#: Steps of ell, in multiples of which matrices of kernels are kept.
KERNELS = 64


class Expectations(NamedTuple):
    """Expectations given the fixed key (see the module); all arrays of the same shape."""

    key: Array
    own: Array
    rest: Array
    key_key: Array
    key_own: Array
    key_rest: Array
    own_own: Array
    own_rest: Array
    along: Array
    across: Array


def _transforms(table: LaplaceTable, others: Array, own_logit: float | None) -> dict[str, Array]:
    """Products over all keys but the fixed one, on the table's grid (first axis: sizes)."""
    m = others[:, None]
    # clamped exponents only ever meet a factor m or m - 1 that is then zero
    phi0, phi1, phi2 = (np.exp(np.maximum(m - k, 0) * table.log_phi) for k in range(3))
    weight = np.zeros_like(table.ell)
    if own_logit is not None:
        weight = np.exp(np.minimum(table.ell + own_logit - table.strength**2 / 2, CUT))
    damp = np.exp(-weight)
    rest = damp * m * table.y1 * phi1
    none = damp * phi0
    return {
        "none": none,
        "own": weight * none,
        "rest": rest,
        "own_own": weight**2 * none,
        "own_rest": weight * rest,
        "along": damp * m * (table.y2 * phi1 + (m - 1) * table.y1**2 * phi2),
        "across": damp * m * table.w2 * phi1,
    }


def _powers(sums: NDArray[np.floating[Any]]) -> tuple[Array, Array, Array]:
    """``e^-w - 1``, ``w e^-w`` and ``w^2 e^-w`` at ``ln w = L + ell``."""
    weight = np.exp(np.minimum(sums, CUT))
    decay = np.exp(-weight)
    return np.expm1(-weight), weight * decay, weight * weight * decay


@lru_cache(maxsize=8)
def _binned_kernels(step: float, ratio: int, steps: int) -> tuple[Array, ...]:
    """The same as matrices, rows of L by columns of ell, for a table of so many steps.

    They depend on L + ell only. With a spacing in L that divides the step in ell they are computed
    once per value of the sum, and a strided view lays them out as a matrix. The grid in L begins
    where the largest ell has a weight of e^-8 and ends at the table's ``heaviest``: but for where
    it begins nothing depends on the table, and one matrix serves all that are not longer.
    """
    spacing = step / ratio
    count = int(np.ceil((step * steps + 8 - MARGIN) / spacing)) + 1
    sums = -8 - step * steps + spacing * np.arange(count + ratio * steps)
    return tuple(
        # copied: products of overlapping rows do not go through the library
        np.ascontiguousarray(
            np.lib.stride_tricks.sliding_window_view(x, ratio * steps + 1)[:, ::ratio]
        )
        for x in _powers(sums)
    )


class KeyTable:
    """Expectations as functions of the fixed key's log-weight ``L = <a, eta> - s^2/2``.

    Parameters
    ----------
    strength
        Strength of the query's tilt.
    sizes
        Numbers of tokens n.
    step
        Trapezoidal step of the Laplace integrals.
    heaviest
        Largest log-weight that the fixed key will have.
    own_logit
        Logit of the query's own key, or None when the query is not one of the tokens.

    Attributes
    ----------
    fields
        Names of the expectations that are not zero, in the order of ``values``.
    levels
        Limits of the same as the fixed key's log-weight falls.
    """

    def __init__(
        self,
        strength: float,
        sizes: Array,
        step: float,
        heaviest: float,
        own_logit: float | None = None,
    ) -> None:
        half, largest = strength**2 / 2, float(sizes.max())
        if own_logit is not None:
            # beyond it the own key has all the attention anyway
            own_logit = min(own_logit, dominant(strength, largest) + half)
            heaviest = max(heaviest, own_logit - half)
        heaviest = min(heaviest, dominant(strength, largest))
        table = laplace_table(strength, largest, step, heaviest)
        self._table, self._sizes, self._own_logit = table, sizes, own_logit
        taken = 1.0 if own_logit is None else 2.0
        t = _transforms(table, sizes - taken, own_logit)
        # by the power of the fixed key's weight in them: 0, 1 and 2
        names, key_names = ["rest", "along", "across"], ["key", "key_rest"]
        once = [t["none"], t["rest"]]
        if own_logit is not None:
            names += ["own", "own_own", "own_rest"]
            key_names += ["key_own"]
            once += [t["own"]]
        self.fields = (*names, *key_names, "key_key")
        plain = [t[name] for name in names]
        # what meets the kernel's power 0, 1 and 2 of the fixed key's weight
        self._columns = [np.concatenate(plain).T, np.concatenate(once).T, t["none"].T]
        levels = [table.step * x.sum(axis=1) for x in plain]
        absent = np.zeros((len(self.fields) - len(plain)) * len(sizes))
        self.levels = np.concatenate([*levels, absent])
        self._ratio = max(1, int(np.ceil(table.step / SPACING)))
        spacing = table.step / self._ratio
        count = int(np.ceil((table.ell[-1] - table.ell[0] + 8 - MARGIN) / spacing)) + 1
        self._grid = -table.ell[-1] - 8 + spacing * np.arange(count)

    def _tabulate(self) -> Array:
        """Values minus levels on the grid."""
        steps, count = len(self._table.ell) - 1, len(self._grid)
        # a grid of a longer table begins earlier: this one is the end of it
        kernels = _binned_kernels(self._table.step, self._ratio, -(-steps // KERNELS) * KERNELS)
        rows, columns = len(kernels[0]) - count, steps + 1
        parts = [k[rows:, :columns] @ x for k, x in zip(kernels, self._columns, strict=True)]
        return np.asarray(self._table.step * np.hstack(parts))

    def split(self, values: Array) -> Expectations:
        """Expectations from an array whose last axis runs over fields and, in each, the sizes."""
        parts = np.split(values, len(self.fields), axis=-1)
        present = dict(zip(self.fields, parts, strict=True))
        absent = np.zeros_like(parts[0])
        return Expectations(*(present.get(name, absent) for name in Expectations._fields))

    def __call__(self, log_weights: Array) -> Expectations:
        """Expectations at log-weights; the last axis of each runs over the sizes."""
        inside = np.clip(log_weights, self._grid[0], self._grid[-1])
        # at many points, all kept, this is faster than our own spline
        spline = scipy.interpolate.CubicSpline(self._grid, self._tabulate())
        return self.split(np.asarray(spline(inside) + self.levels))

    def averages(self, log_weights: Array, masses: Array) -> Array:
        """Averages of values minus levels over log-weights [row, point], by ``masses`` [k, point].

        Axes [k, row, field and size].
        """
        inside = np.clip(log_weights, self._grid[0], self._grid[-1])
        return Spline(self._grid, self._tabulate()).averages(inside, masses)

    def value(self, log_weight: float) -> Array:
        """Values [field and size] at one log-weight, summed there and not tabulated."""
        inside = float(np.clip(log_weight, self._grid[0], self._grid[-1]))
        kernels = _powers(inside + self._table.ell)
        parts = [kernel @ x for kernel, x in zip(kernels, self._columns, strict=True)]
        return np.asarray(self._table.step * np.concatenate(parts) + self.levels)

    def without_key(self) -> Expectations:
        """The same when no key is fixed: n keys (or n - 1 and the own one), all averaged out."""
        taken = 0.0 if self._own_logit is None else 1.0
        t = _transforms(self._table, self._sizes - taken, self._own_logit)
        zero = np.zeros(len(self._sizes))
        sums = {name: self._table.step * x.sum(axis=1) for name, x in t.items() if name != "none"}
        return Expectations(key=zero, key_key=zero, key_own=zero, key_rest=zero, **sums)


# Second order of the mean's error on the line: what pairs of tokens do beyond their sum.
#
# ``moment_curves`` projects the mean output on sums of functions of single tokens. The next term of
# Hoeffding's expansion is the part of ``E[mean_n | eta_1, eta_2]`` that no such sum carries,
#
#     h_2(eta_1, eta_2) = E[mean_n | eta_1, eta_2] - (its two projections) + E[mean_n],
#
# with the variance ``n (n - 1)/2 E h_2^2``. On the line the Laplace integrals with two keys held
# fixed are products of one function of each key, so that a table over pairs is a matrix product.

#: Tilt strengths with less mass than this do not matter.
LIGHT = 1e-10
#: Nodes of the rule over the norm of each token, and trapezoidal step: good to 1% of the variance,
#: which is itself at most a tenth of the whole.
NODES, PAIR_STEP = 32, 0.7


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
    for s, mass_s in zip(rule.strengths, rule.weights, strict=True):
        if mass_s < LIGHT:
            continue
        strength = min(float(s), STRONGEST)
        table = laplace_table(strength, float(n.max()), PAIR_STEP)
        plain, pull = _fixed_kernels(table, x)
        for i, size in enumerate(n):
            # E[Gamma_n - s] given two keys (rows and columns), and the own key if there is one
            others = size - 3 if tokens else size - 2
            damp = table.step * table.powers(others)
            rest = table.step * others * table.y1 * table.powers(max(others - 1, 0.0))
            if tokens:
                own = strength / h
                weight = np.exp(
                    np.minimum(table.ell + strength * own - strength * strength / 2, CUT)
                )
                fade = np.exp(-weight)
                rest = (rest + damp * weight * (own - strength)) * fade
                damp = damp * fade
            pulled = plain.T @ (damp[:, None] * pull)
            along = pulled + pulled.T + plain.T @ (rest[:, None] * plain)
            # the query may point either way
            total[i] += mass_s * (along - along[::-1, ::-1]) / 2
    if tokens:
        # E[Gamma_n] at the query of one of the two tokens, summed over the two
        out = np.zeros((len(n), len(x), len(x)))
        last = len(x) - 1
        for k in range(len(x) // 2, len(x)):
            tilt = h * float(x[k])
            sign = 1.0 if tilt >= 0 else -1.0
            table = laplace_table(min(abs(tilt), STRONGEST), float(n.max()), PAIR_STEP)
            plain, pull = _fixed_kernels(table, sign * x)
            for i, size in enumerate(n):
                others = size - 2
                damp = table.step * table.powers(others)
                rest = table.step * others * table.y1 * table.powers(max(others - 1, 0.0))
                row = pull.T @ (damp * plain[:, k])
                row = row + plain.T @ (damp * pull[:, k] + rest * plain[:, k])
                out[i, k] = sign * row
                out[i, last - k] = -sign * row[::-1]  # all signs reversed
        own_part = out + out.transpose(0, 2, 1)
        total = total * ((n - 2) / n)[:, None, None] + own_part / n[:, None, None]
    centred = total - np.einsum("nij,j->ni", total, mass)[:, :, None]
    centred -= np.einsum("nij,i->nj", centred, mass)[:, None, :]
    return np.asarray(n * (n - 1) / 2 * np.einsum("nij,i,j->n", centred**2, mass, mass))


def _fixed_kernels(table: LaplaceTable, x: Array) -> tuple[Array, Array]:
    """``e^-w`` and ``w (x - s) e^-w`` of a fixed key at each node x, [ell, node]."""
    s = table.strength
    weight = np.exp(np.minimum(table.ell[:, None] + s * x - s * s / 2, CUT))
    plain = np.exp(-weight)
    return plain, weight * (x - s) * plain
