"""The joint Gaussian law of a token's tilt, own key and own value, as conditionals on the tilt."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from esscher.core.validation import Array
from esscher.math.coupling import Coupling, symmetric_root


class QueryLaw:
    """What a query's own key and value are, given the tilt (``own_key`` integrates over it)."""

    def __init__(self, coupling: Coupling) -> None:
        g = coupling.variances
        # the same rounding as in the law of the strength
        self.active = np.round(g / max(float(g[0]) if g.size else 0.0, 1e-300), 13) > 0
        self.variances, self.tau = g[self.active], coupling.tau
        self.rank = int(self.active.sum())
        self.shift = float(np.sum(self.tau[~self.active] ** 2))
        self.loading = coupling.loading
        self.total = float(np.trace(coupling.value_gram)) + coupling.residual_trace
        root = np.sqrt(self.variances)
        self._root = root
        # given b = (a - tau)/root: eta has mean P b, eps has mean Q b
        self._p = (coupling.cross[self.active] / root[:, None]).T
        q = (coupling.residual_cross[self.active] / root[:, None]).T
        self._key_cov = np.eye(len(g)) - self._p @ self._p.T
        key_value = self._key_cov @ self.loading.T - self._p @ q.T
        self._key_offset = key_value
        self._offset = self.loading @ self._p + q
        offset_cov = self.loading @ key_value - q @ (self.loading @ self._p + q).T
        self._joint = np.block([[np.diag(g), coupling.cross], [coupling.cross.T, np.eye(len(g))]])
        self._offset_trace = float(np.trace(offset_cov)) + coupling.residual_trace

    @cached_property
    def is_noisy(self) -> bool:
        """Whether the own key is more than a function of the tilt, where the tilt points."""
        return float(np.abs(self._key_cov).max(initial=0.0)) > 1e-10

    def moments_given_own(self, log_weight: float) -> Array:
        """Second moments of the tilt under the law tilted until the own log-weight is this.

        The own log-weight ``<a, eta> - |a|^2/2`` is half a quadratic form Q; the law times
        ``exp(c Q/2)`` is Gaussian, and c is such that the mean of Q/2 is ``log_weight``.
        """
        r = len(self.tau)
        form = np.block([[-np.eye(r), np.eye(r)], [np.eye(r), np.zeros((r, r))]])
        root = symmetric_root(self._joint)
        values, vectors = np.linalg.eigh(root @ form @ root)
        turned = root @ vectors
        centre = np.concatenate([self.tau, np.zeros(r)])
        lean = turned.T @ form @ centre

        def tilted(c: float) -> tuple[Array, Array]:
            gap = 1 - c * values
            return centre + turned @ (c * lean / gap), (turned / gap) @ turned.T

        def excess(c: float) -> float:
            mean, covariance = tilted(c)
            level = np.sum(form * (covariance + np.outer(mean, mean))) / 2
            return float(level) - log_weight

        low, high = 0.0, 1 / max(float(values[-1]), 1e-12)
        for _ in range(40):  # bisection: the mean grows from c = 0 to infinity at the end
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        mean, covariance = tilted(low)
        active = np.flatnonzero(self.active)
        moments = covariance + np.outer(mean, mean)
        return np.asarray(moments[np.ix_(active, active)])

    def log_density(self, points: Array) -> Array:
        """Logarithm of the density of the tilt's varying coordinates."""
        b = (points - self.tau[self.active]) / self._root
        constant = np.sum(np.log(self._root)) + 0.5 * self.rank * np.log(2 * np.pi)
        return np.asarray(-0.5 * np.sum(b * b, axis=1) - constant)

    def tilts(self, unit: Array, radius: float) -> Array:
        """Tilts whose varying coordinates are ``radius * unit``."""
        a = np.tile(self.tau, (len(unit), 1))
        a[:, self.active] = radius * unit
        return a

    def own(self, a: Array) -> tuple[Array, Array, Array, Array]:
        """Mean and deviation of the own logit, mean offset, offset per deviation of the logit."""
        b = (a[:, self.active] - self.tau[self.active]) / self._root
        mean = np.sum(a * (b @ self._p.T), axis=1)
        variance = np.sum(a * (a @ self._key_cov), axis=1)
        strength = np.sum(a * a, axis=1)
        deviation = np.sqrt(np.where(variance > 1e-10 * strength, variance, 0.0))
        slope = a @ self._key_offset / np.where(deviation > 0, deviation, np.inf)[:, None]
        return mean, deviation, b @ self._offset.T - a @ self.loading.T, slope

    def offset_spread(self, slope: Array) -> Array:
        """Variance of the offset that its own logit does not explain."""
        left = self._offset_trace - np.sum(slope * slope, axis=1)
        return np.asarray(np.maximum(left, 0.0))
