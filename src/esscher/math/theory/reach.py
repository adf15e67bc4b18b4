"""A planted key among n others: how much attention it gets, exactly, at any n and any scale.

A query looks for one key, the needle, whose logit exceeds the mean of the others' by z. The others'
logits X_j are independent draws of a law, or of a cloud. At scale b (an inverse temperature) the
needle's weight is ``p = a / (a + c + S)``, ``a = e^{bz}``, ``S = sum_j e^{b X_j}``, c the weight of
keys that are there at every n. With ``phi(l) = E e^{-l w}``, ``w = e^{bX}``, and
``1/y^k = int l^{k-1} e^{-l y} dl / (k-1)!``, expectations of ratios are integrals:

    E p          = int  a        e^{-l(a+c)} phi^n dl
    E p^2        = int  a^2 l    e^{-l(a+c)} phi^n dl
    E sum q_j^2  = int  n l E[w^2 e^{-lw}] e^{-l(a+c)} phi^{n-1} dl          (the other keys)
    E ln Z       = ln a + int (e^{-la} - e^{-l(a+c)} phi^n) dl / l
    E sum p ln w = int { a ln a phi^n + n E[w ln w e^{-lw}] phi^{n-1} } e^{-la} dl       (c = 0)
    E max p      = int  e^{-la} { a phi_a^n + int_{m > a} m d(phi_m^n) } dl              (c = 0)

with ``phi_m = E[e^{-lw}; w <= m]``.

The first is exact for every n, law and scale; n enters as a power. The law of p itself is that of
S, whose Laplace transform is phi^n: :meth:`NeedleTable.below` inverts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_finite, as_positive, as_sizes
from esscher.math.theory.reach_noise import NoiseLogits

#: Step of the trapezoidal rule in ln l: its error is below 1e-7 (the integrands are analytic).
STEP = 0.4
#: Natural logarithm below which what an integrand adds is neglected.
NEGLIGIBLE = 30.0
#: Entries of a [lambda, key] table at a time, which bounds the memory.
BLOCK = 2_000_000
#: Terms of the inversion of a Laplace transform (Abate and Whitt's Euler sum): five
#: digits of a distribution function without jumps.
TERMS = 20
#: Halvings of the range of a quantile, in the logit of a weight.
HALVINGS = 40
#: Below this coefficient of variation of S its law is narrower than the inversion resolves, and
#: normal with a correction for its skewness (Cornish and Fisher), within 0.002.
NARROW = 0.05
#: Expected number of draws beyond a value, below which quantiles leave it out.
RARE = 0.003


def log_weights_window(noise: NoiseLogits, z: float, b: float, most: float) -> tuple[float, float]:
    """Range of ln l outside of which every integrand is negligible."""
    # the sum of weights is at most n e^{b max}, and typically n e^{K(b)}
    heaviest = min(math.log(most) + noise.log_mgf(b), b * float(noise.values[-1]) + math.log(most))
    low = -max(b * z, heaviest, b * float(noise.values[-1])) - NEGLIGIBLE
    return low, -b * z + math.log(NEGLIGIBLE + 5)


@dataclass(frozen=True, eq=False)
class NeedleTable:
    """Expectations over one other key, on a grid of ln l, at one advantage and scale.

    Attributes
    ----------
    noise, advantage, scale
        The other keys' logits, z, and b.
    beside
        Logarithm of c, the weight of keys that are there at every n; ``-inf`` for none.
    ell
        Grid of ln l.
    log_phi
        ``ln E e^{-lw}``.
    second, logs
        ``l^2 E[w^2 e^{-lw}]`` and ``l E[w ln w e^{-lw}]``.
    """

    noise: NoiseLogits
    advantage: float
    scale: float
    beside: float
    ell: Array
    log_phi: Array
    second: Array
    logs: Array

    @cached_property
    def _planted(self) -> Array:
        """``l a``."""
        return np.exp(np.minimum(self.ell + self.scale * self.advantage, 700.0))

    @cached_property
    def _decay(self) -> Array:
        """``e^{-l(a+c)}``."""
        c = np.exp(np.minimum(self.ell + self.beside, 700.0))
        return np.asarray(np.exp(-self._planted - c))

    def _powers(self, count: Array) -> Array:
        return np.asarray(np.exp(count[:, None] * self.log_phi))

    def weight(self, sizes: ArrayLike) -> Array:
        """``E p`` with n other keys."""
        body = self._powers(_counts(sizes)) * (self._planted * self._decay)
        return np.asarray(STEP * body.sum(axis=1))

    def square(self, sizes: ArrayLike) -> Array:
        """``E p^2``."""
        body = self._powers(_counts(sizes)) * (self._planted**2 * self._decay)
        return np.asarray(STEP * body.sum(axis=1))

    def others_square(self, sizes: ArrayLike) -> Array:
        """``E sum_j q_j^2`` over the other keys."""
        n = _counts(sizes)
        body = n[:, None] * self._powers(n - 1) * (self.second * self._decay)
        return np.asarray(STEP * body.sum(axis=1))

    def effective(self, sizes: ArrayLike) -> Array:
        """Effective number of keys, ``1 / E sum p^2`` over all of them."""
        return np.asarray(1 / (self.square(sizes) + self.others_square(sizes)))

    def error(self, sizes: ArrayLike) -> Array:
        """Root mean square of the output less the needle's value, in units of the values' spread.

        Values, the needle's among them, are independent of the logits and of each other:
        ``E (1-p)^2 + E sum_j q_j^2``. Without any attention to the needle this is 1 and more.
        """
        p, p2 = self.weight(sizes), self.square(sizes)
        return np.sqrt(np.maximum(1 - 2 * p + p2, 0.0) + self.others_square(sizes))

    def entropy(self, sizes: ArrayLike) -> Array:
        """``E [-sum p ln p]``, in nats, over all keys."""
        self._check_alone("the entropy")
        n = _counts(sizes)
        powers = self._powers(n)
        log_a = self.scale * self.advantage
        missing = -np.expm1(n[:, None] * self.log_phi) * self._decay
        log_sum = log_a + STEP * missing.sum(axis=1)
        own = log_a * powers * (self._planted * self._decay)
        rest = n[:, None] * self._powers(n - 1) * (self.logs * self._decay)
        return np.asarray(np.maximum(log_sum - STEP * (own + rest).sum(axis=1), 0.0))

    def largest(self, sizes: ArrayLike) -> Array:
        """``E max p``, the needle included."""
        self._check_alone("the largest weight")
        n = _counts(sizes)
        b, z = self.scale, self.advantage
        values, shares = self.noise.values, self.noise.shares
        above = np.searchsorted(values, z, side="right")
        beyond = 1 - np.cumsum(shares)
        # accurate where little is left
        beyond[:-1] = np.cumsum(shares[::-1])[::-1][1:]
        beyond[-1] = 0.0
        total = np.zeros(len(n))
        rows = max(1, BLOCK // len(values))
        for start in range(0, len(self.ell), rows):
            ell = self.ell[start : start + rows, None]
            weight = np.exp(np.minimum(ell + b * values, 700.0))
            # 1 - phi_m, at every m among the values
            gap = np.cumsum(-np.expm1(-weight) * shares, axis=1) + beyond
            log_part = np.log1p(-np.minimum(gap, 1 - 1e-16))
            decay, planted = (part[start : start + rows] for part in (self._decay, self._planted))
            # phi_m^n at the value before, over that at the value: its share may be tiny
            own_share = shares[above:] * np.exp(-weight[:, above:] - log_part[:, above:])
            before = np.log1p(-np.minimum(own_share, 1 - 1e-16))
            for i, count in enumerate(n):
                inside = np.exp(count * log_part[:, above - 1]) if above else float(count == 0)
                steps = np.exp(count * log_part[:, above:]) * -np.expm1(count * before)
                rest = (weight[:, above:] * steps).sum(axis=1)
                total[i] += STEP * float(decay @ (planted * inside + rest))
        return np.minimum(total, 1.0)

    def below(self, n: float, weights: ArrayLike) -> Array:
        """``P(p <= x)`` with n other keys: the law of S, by inverting its Laplace transform."""
        x = as_array(weights, "weights")
        if np.any((x <= 0) | (x >= 1)):
            raise InputError("weights must lie between 0 and 1")
        # p <= x where c + S >= a (1 - x)/x
        log_rest = self.scale * self.advantage + np.log1p(-x) - np.log(x)
        rest = 1 - np.exp(np.minimum(self.beside - log_rest, 0.0))
        inside = rest > 0
        found = np.ones(x.shape)
        log_y = log_rest[inside] + np.log(rest[inside])
        found[inside] = 1 - self._sum_below(n, log_y)
        return np.clip(found, 0.0, 1.0)

    def _sum_below(self, n: float, log_y: Array) -> Array:
        """``P(S <= y)`` by the Euler sum."""
        k = np.arange(2 * TERMS + 1)
        roots = TERMS * math.log(10) / 3 + 1j * math.pi * k
        tail = np.cumsum(scipy.special.binom(TERMS, np.arange(TERMS))) * 2.0**-TERMS
        signs = np.concatenate([[0.5], np.ones(TERMS), tail[::-1]]) * (-1.0) ** k
        out = np.empty(len(log_y))
        for i, at in enumerate(log_y):
            # weights in units of y: those that are far larger never occur below it
            weight = np.exp(np.minimum(self.scale * self.noise.values - at, 30.0))
            gap = -np.expm1(-roots[:, None] * weight) @ self.noise.shares
            transform = np.exp(n * np.log1p(-gap)) / roots
            out[i] = 10 ** (TERMS / 3) * float(signs @ transform.real)
        return out

    def quantiles(self, n: float, probabilities: ArrayLike) -> Array:
        """Quantiles of the weight with n other keys, within 0.005 of the probability.

        They need logits without ties: over a handful of keys the weight has jumps, and the
        inversion rounds them off.
        """
        wanted = as_array(probabilities, "probabilities", ndim=1)
        b, z = self.scale, self.advantage
        log_w = b * self.noise.values
        weight = np.exp(log_w - log_w.max())
        # without keys so large that n draws hardly ever have one: they make no quantile
        shares = np.where(n * np.cumsum(self.noise.shares[::-1])[::-1] < RARE, 0, self.noise.shares)
        mean = float(shares @ weight)
        moments = [float(shares @ (weight - mean) ** k) for k in (2, 3)]
        varied = math.sqrt(moments[0] / n) / mean
        if varied < NARROW:
            skew = moments[1] / (moments[0] ** 1.5 * math.sqrt(n)) if moments[0] > 0 else 0.0
            x = scipy.special.ndtri(1 - wanted)
            sums = n * mean * (1 + varied * (x + skew * (x**2 - 1) / 6))
            log_rest = np.logaddexp(np.log(sums) + log_w.max(), self.beside)
            return np.asarray(scipy.special.expit(b * z - log_rest))
        # ln S lies between n keys at their lowest and n at their highest
        ends = [b * z - np.logaddexp(v + math.log(n), self.beside) for v in (log_w[-1], log_w[0])]
        low, high = (np.full(len(wanted), end) for end in ends)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            under = self.below(n, scipy.special.expit(middle)) < wanted
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return np.asarray(scipy.special.expit((low + high) / 2))

    def _check_alone(self, what: str) -> None:
        if self.beside > -math.inf:
            raise InputError(f"{what} is not known with keys that are there at every n")


def needle_table(
    noise: NoiseLogits,
    advantage: float,
    scale: float = 1.0,
    *,
    most: float,
    beside: float = -math.inf,
) -> NeedleTable:
    """Tabulate what the weight of a needle needs, for every n up to ``most``.

    Parameters
    ----------
    noise
        Logits of the other keys.
    advantage
        z, by which the needle's logit exceeds their mean.
    scale
        b, which multiplies all logits.
    most
        Largest number of other keys that will be asked for.
    beside
        Logarithm of the weight (at this scale) of keys that are there at every n.

    Raises
    ------
    InputError
        For a scale that is not positive, or an advantage that is not finite.
    """
    z, b = as_finite(advantage, "advantage"), as_positive(scale, "scale")
    largest = as_positive(most, "most")
    low, high = log_weights_window(noise, z, b, max(largest, 1.0))
    ell = _grid(low, high)
    log_w = b * noise.values
    logs_of = noise.shares * log_w
    parts: list[Array] = []
    rows = max(1, BLOCK // len(log_w))
    for start in range(0, len(ell), rows):
        exponent = ell[start : start + rows, None] + log_w
        weight = np.exp(np.minimum(exponent, 700.0))
        gap = -np.expm1(-weight) @ noise.shares
        # l w e^{-lw} and its square, by exponents: a factor alone may overflow
        logs = np.exp(exponent - weight) @ logs_of
        second = np.exp(2 * exponent - weight) @ noise.shares
        parts.append(np.column_stack([gap, second, logs]))
    gap, second, logs = np.concatenate(parts).T
    log_phi = np.log1p(-np.minimum(gap, 1 - 1e-16))
    return NeedleTable(noise, z, b, beside, ell, log_phi, second, logs)


def expected_weight(
    noise: NoiseLogits, advantage: float, scale: float, sizes: ArrayLike,
    beside: float = -math.inf,
) -> Array:  # fmt: skip
    """``E p`` alone, at each number of other keys (0 is allowed)."""
    n = _counts(sizes)
    z, b = as_finite(advantage, "advantage"), as_positive(scale, "scale")
    low, high = log_weights_window(noise, z, b, max(float(n.max()), 1.0))
    low = min(low, -beside - NEGLIGIBLE)
    ell = _grid(low, high)
    gap = np.empty(len(ell))
    rows = max(1, BLOCK // len(noise.values))
    for start in range(0, len(ell), rows):
        exponent = np.minimum(ell[start : start + rows, None] + b * noise.values, 5.0)
        gap[start : start + rows] = -np.expm1(-np.exp(exponent)) @ noise.shares
    log_phi = np.log1p(-np.minimum(gap, 1 - 1e-16))
    planted = np.exp(np.minimum(ell + b * z, 700.0))
    decay = planted * np.exp(-planted - np.exp(np.minimum(ell + beside, 700.0)))
    return np.asarray(STEP * np.exp(n[:, None] * log_phi) @ decay)


def _grid(low: float, high: float) -> Array:
    """Multiples of the step."""
    return np.asarray(STEP * np.arange(math.floor(low / STEP), math.ceil(high / STEP) + 1.0))


def _counts(sizes: ArrayLike) -> Array:
    """Numbers of other keys; none at all is allowed."""
    return as_sizes(sizes, "sizes", smallest=0)
