"""How far a query reaches: rules to leading order in ln n, and the four phases of (n, b).

With ``K(b) = ln E e^{bX}`` of the other keys' logits, the sum of n weights is about ``n e^{K(b)}``,
so that the needle has half of the attention at

    n_half(b) = exp(b z - K(b)).                                Gaussian: exp(b z - b^2 s^2 / 2)

The best scale has ``K'(b) = z`` (the keys that carry the sum are then as large as the needle), and
no scale reaches beyond ``exp(I(z))``, I the Legendre transform of K: Cramer's rate, at which one of
n keys is larger than the needle. Gaussian: ``b = z/s^2`` and ``exp(z^2/(2 s^2))``. The sum is
carried by its largest keys (frozen) where ``ln n < b K'(b) - K(b)``; Gaussian:
``b > sqrt(2 ln n)/s``. At the best scale both borders meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy

from esscher.core.validation import Array, as_finite, as_positive
from esscher.math.laws import Law
from esscher.math.theory.reach import expected_weight
from esscher.math.theory.reach_noise import NoiseLogits, law_logits

#: Names of the phases.
PHASES = ("averaging", "retrieving", "frozen", "lost")
#: Expected weight from which a needle counts as found.
HALF = 0.5
#: Scales beyond this many over the spread of the logits are hardmax.
STEEP = 60.0
#: Scales tried for the best one, as multiples of the leading-order rule, and rounds around it.
TRIED, ROUNDS = np.geomspace(0.2, 4.0, 13), 2
#: Longest length that is looked for.
LONGEST = 1e15


@dataclass(frozen=True)
class LeadingReach:
    """Rules to leading order: natural logarithms of lengths, and scales.

    Attributes
    ----------
    half_length
        ln of the n at which the needle has half of the attention, at the scale given.
    best_scale
        Where that is largest; infinite if no key can be larger than the needle.
    limit
        ln of the n beyond which no scale helps; infinite likewise.
    """

    half_length: float
    best_scale: float
    limit: float


def leading_reach(noise: NoiseLogits, advantage: float, scale: float = 1.0) -> LeadingReach:
    """Rules of a needle among keys with these logits."""
    z, b = as_finite(advantage, "advantage"), as_positive(scale, "scale")
    half = b * z - noise.log_mgf(b)
    top = float(noise.values[-1])
    if z >= top:
        return LeadingReach(half, math.inf, math.inf)
    if z <= 0:
        return LeadingReach(half, 0.0, 0.0)
    end = 1.0 / noise.spread
    while noise.tilted_mean(end) < z and end < 1e6 / noise.spread:
        end *= 2
    best = float(
        scipy.optimize.brentq(lambda at: noise.tilted_mean(at) - z, 1e-9 / noise.spread, end)
    )
    return LeadingReach(half, best, best * z - noise.log_mgf(best))


def is_frozen(noise: NoiseLogits, n: float, scale: float) -> bool:
    """Whether the largest of n keys carry the sum of their weights, to leading order."""
    b = as_positive(scale, "scale")
    return _missing_entropy(noise, math.log(n), b) > 0


class Planted:
    """A needle among keys of a law: exact weights at any scale, half-weight lengths, best scales.

    Parameters
    ----------
    law
        Law of the tokens; the logits are ``spread`` times its first coordinate.
    spread
        Standard deviation s of the logits at scale 1.
    advantage
        z, by which the needle's logit exceeds their mean at scale 1.
    """

    def __init__(self, law: Law, spread: float, advantage: float) -> None:
        self.law = law
        self.spread = as_positive(spread, "spread")
        self.advantage = as_finite(advantage, "advantage")

    def noise(self, scale: float, most: float) -> NoiseLogits:
        """Logits of the other keys, resolved for a scale and a number of keys."""
        return law_logits(self.law, self.spread, scale=scale, most=most, advantage=self.advantage)

    def weight(self, n: float, scale: float) -> float:
        """``E p`` with n other keys."""
        return float(expected_weight(self.noise(scale, n), self.advantage, scale, [n])[0])

    def leading(self, scale: float = 1.0, most: float = 1e9) -> LeadingReach:
        """Rules to leading order."""
        return leading_reach(self.noise(scale, most), self.advantage, scale)

    def half_length(self, scale: float = 1.0) -> float:
        """The n at which ``E p = 1/2``, exactly: 0 if there is none, infinite beyond 1e15."""
        noise = self.noise(scale, LONGEST)
        return _half_length(lambda n: float(expected_weight(noise, self.advantage, scale, [n])[0]))

    def hardmax(self, n: float) -> float:
        """``E p`` at an infinite scale: the probability that no other key is larger."""
        noise = self.noise(1.0, n)
        larger = float(noise.shares[noise.values > self.advantage].sum())
        return math.exp(n * math.log1p(-min(larger, 1 - 1e-16)))

    def limit_length(self) -> float:
        """The n beyond which hardmax does not find the needle in half of all cases, exactly."""
        return _half_length(self.hardmax)

    def best_scale(self, n: float) -> tuple[float, float]:
        """Scale of the largest ``E p`` at n keys, infinite for hardmax, and that weight.

        The maximum is flat: the scale is good to a few percent, the weight to 1e-3 of itself.
        """
        rule = self.leading(most=n).best_scale
        start = rule if 0 < rule < math.inf else math.sqrt(2 * math.log(max(n, 2))) / self.spread
        tried = np.minimum(start * TRIED, STEEP / self.spread)
        best = math.inf, self.hardmax(n)
        for _ in range(ROUNDS):
            tried = np.unique(tried)
            weights = [self.weight(n, float(b)) for b in tried]
            at = int(np.argmax(weights))
            if weights[at] > best[1]:
                best = float(tried[at]), float(weights[at])
            tried = np.geomspace(
                tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)], len(TRIED)
            )
        return best

    def phase(self, n: float, scale: float, best: float | None = None) -> str:
        """Phase at n keys and a scale; ``best`` is the largest weight of any scale, if known."""
        reached = self.best_scale(n)[1] if best is None else best
        if reached < HALF:
            return "lost"
        noise = self.noise(scale, n)
        if is_frozen(noise, n, scale):
            return "frozen"
        weight = float(expected_weight(noise, self.advantage, scale, [n])[0])
        return "retrieving" if weight >= HALF else "averaging"


def phase_edges(reach: Planted, sizes: Array) -> tuple[Array, Array]:
    """Scales from which the needle has half of the attention, and from which keys are frozen.

    The first exactly, nan where no scale does so; the second to leading order.
    """
    found, frozen = np.full(len(sizes), np.nan), np.empty(len(sizes))
    top = STEEP / reach.spread
    for i, n in enumerate(map(float, sizes)):
        # the rule needs moments alone, which panels of any width have
        noise = reach.noise(math.sqrt(2 * math.log(n)) / reach.spread, n)
        frozen[i] = _root(partial(_missing_entropy, noise, math.log(n)), top)
        if reach.hardmax(n) > HALF:
            found[i] = _root(lambda b, n=n: reach.weight(n, b) - HALF, top)  # type: ignore[misc]
    return found, frozen


def _missing_entropy(noise: NoiseLogits, log_n: float, scale: float) -> float:
    """``b K'(b) - K(b) - ln n``: positive where the largest of n keys carry the sum."""
    return scale * noise.tilted_mean(scale) - noise.log_mgf(scale) - log_n


def _root(function: Callable[[float], float], end: float) -> float:
    """Where an increasing function of a scale is 0; the end if it is nowhere below it."""
    return (
        float(scipy.optimize.brentq(function, 1e-6, end, rtol=1e-3)) if function(end) > 0 else end
    )


def _half_length(weight: Callable[[float], float]) -> float:
    """Where a weight that falls with n is a half: 0 if it is below at n = 1."""
    if weight(LONGEST) > HALF:
        return math.inf
    if weight(1.0) < HALF:
        return 0.0
    low, high = 0.0, math.log(LONGEST)
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if weight(round(math.exp(middle))) >= HALF else (low, middle)
    return math.exp(low)
