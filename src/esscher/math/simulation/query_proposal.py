"""Where to draw queries and largest keys so that rare ones that carry the error are seen.

The mean square of the map error is carried, past ``H^2 = 1/2``, by queries with a rare strong tilt
and by samples with a rare large key. Both are drawn from mixtures that contain the natural law with
probability one half, so that no importance weight exceeds 2 (4 for the product).

Queries: ``a ~ N(tau, G)`` tilted by ``exp(theta |a|^2)`` is again Gaussian, with covariance
``G (I - 2 theta G)^{-1}`` and mean ``(I - 2 theta G)^{-1} tau``; the weight depends on |a| alone.
Largest keys: ``Gamma_1``, the expected number of keys above the largest one, is standard
exponential; the other half of the mixture is log-uniform on ``[floor, 1]``.
"""

from __future__ import annotations

import numpy as np

from esscher.core.validation import Array
from esscher.math.coupling import Coupling
from esscher.math.simulation.order_statistics import log_survival
from esscher.math.theory.tilt_law import TiltLaw

#: Share of the natural law in both mixtures.
NATURAL = 0.5
#: How far the largest key is drawn beyond the keys that carry the mean square, which spread over
#: one standard deviation, and beyond the key that takes all the attention, where errors stop
#: growing: what is left has a share below 1e-5.
CARRYING_MARGIN, SATURATED_MARGIN = 4.5, 1.5
#: Strengths on which the carrying one is searched for.
GRID = 160


def log_square_error(n: float, strength: Array) -> Array:
    """Leading order of ``ln E|error|^2`` at one query, ``x = s/sqrt(2 ln n)``.

    ``-L (1 - 2 x^2)`` up to ``x^2 = 1/3``, then ``-L (1/x - x)^2 / 4`` up to x = 1, then 0.
    """
    log_n = np.log(n)
    x2 = np.minimum(strength**2 / (2 * log_n), 1.0)
    late = -((1 - x2) ** 2) / (4 * np.maximum(x2, 1e-300))
    return np.asarray(log_n * np.where(x2 < 1 / 3, -(1 - 2 * x2), late))


class QueryProposal:
    """Mixture of tilted query laws for the map error over n tokens."""

    def __init__(self, coupling: Coupling, n: float) -> None:
        self._coupling = coupling
        self._law = TiltLaw(coupling)
        self.thetas = np.array([0.0, *self._targets(n)])
        others = len(self.thetas) - 1
        self.shares = np.array([1.0] if others == 0 else [NATURAL] + others * [0.5 / others])
        self._logs = np.array([float(self._law.log_transform(np.array(t))) for t in self.thetas])

    def _targets(self, n: float) -> list[float]:
        """Tilts theta towards the strengths that carry the mean square, and halfway there."""
        if self._law.is_constant:
            return []
        c = self._coupling
        log_n = float(np.log(n))
        gap = 1 - 2 * c.variances
        if gap.min() > 0:
            # errors grow like exp(s^2) as far as these queries reach: theta = 1 is theirs
            carrying = float(np.sum(c.variances / gap) + np.sum((c.tau / gap) ** 2))
            if carrying < 2 * log_n / 3:
                return [0.5, 1.0]
        typical = float(np.sqrt(np.sum(c.variances) + np.sum(c.tau**2)))
        top = float(np.sqrt(2 * log_n))
        if typical >= top:
            return []
        strengths = np.linspace(typical, top, GRID)[1:]
        thetas = self._law.saddles(strengths**2)
        log_density = self._law.log_transform(thetas) - thetas * strengths**2
        best = int(np.argmax(log_density + log_square_error(n, strengths)))
        if best < GRID // 16:
            return []
        return [float(thetas[best // 2]), float(thetas[best])]

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Tilts in whitened coordinates, and their importance weights."""
        g, tau = self._coupling.variances, self._coupling.tau
        # stratified: every component gets its share of the rows, up to rounding
        points = (np.arange(count) + rng.random()) / count
        which = np.searchsorted(np.cumsum(self.shares)[:-1], points, side="right")
        gap = 1 - 2 * self.thetas[which, None] * g
        tilts = tau / gap + rng.standard_normal((count, len(g))) * np.sqrt(g / gap)
        square = np.sum(tilts**2, axis=1, keepdims=True)
        ratio = np.exp(self.thetas * square - self._logs) @ self.shares
        return tilts, np.asarray(1 / ratio)


def key_floor(n: float, strengths: Array) -> Array:
    """Smallest ``Gamma_1`` that the proposal for the largest key reaches, 1 where it is not needed.

    The mean square at strength s is carried by keys around ``2 s`` or, if that comes first, by the
    key that takes all the attention, at ``(ln n)/s + s/2``. Frozen queries need no rare key.
    """
    log_n = np.log(n)
    s = np.maximum(strengths, 1e-12)
    reach = np.minimum(2 * s + CARRYING_MARGIN, log_n / s + s / 2 + SATURATED_MARGIN)
    log_floor = np.where(s < np.sqrt(2 * log_n), log_n + log_survival(reach), 0.0)
    return np.asarray(np.exp(np.where(log_floor < -1.0, log_floor, 0.0)))


def draw_first_arrivals(floors: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """``Gamma_1`` of each row from its proposal, and the importance weights."""
    count = len(floors)
    natural = rng.standard_exponential(count)
    depth = -np.log(floors)  # 0: natural law only
    rare = np.exp(-depth * rng.random(count))
    use = (rng.random(count) >= NATURAL) & (depth > 0)
    first = np.where(use, rare, natural)
    inside = (first > floors) & (first < 1) & (depth > 0)
    other = np.where(inside, 1 / (first * np.where(depth > 0, depth, 1.0)), 0.0)
    plain = np.exp(-first)
    mixed = np.where(depth > 0, NATURAL * plain + (1 - NATURAL) * other, plain)
    return first, np.asarray(plain / mixed)
