"""The law of the tilt strength ``s = |a|`` over queries, ``a ~ N(tau, G)``.

``s^2`` is a generalised chi-square variable. Error curves need its density with RELATIVE accuracy
far into the tail (at n = 10^12 the queries that matter can be five standard deviations out), which
rules out sampling. Here the density is the inverse Laplace transform along the parabola that leaves
the saddle point in the direction of steepest descent, where the trapezoidal rule converges
exponentially, in the tail as in the bulk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.coupling import Coupling

#: Step and number of nodes of the rule along the saddle-point contour (one half, by symmetry).
CONTOUR_STEP, CONTOUR_NODES = 0.11, 110
#: Panels and points per panel of the Gauss-Legendre rule over strengths.
PANELS, POINTS = 8, 12
#: Halvings of the interval that holds a saddle point: a span of 64 ends below rounding.
BISECTIONS = 60
#: Drop in natural logarithms after which a strength is left out of the rule.
NEGLIGIBLE = 42.0


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
            keep = (logs > logs.max() - NEGLIGIBLE) | (heavy > heavy.max() - NEGLIGIBLE)
            if not keep[-1]:
                break
            top *= 1.5
        first, last = np.flatnonzero(keep)[[0, -1]]
        return floor if first == 0 else float(s[first - 1]), float(s[min(last + 1, len(s) - 1)])
