"""Integer budgets that minimise a sum of predicted effects, with a certificate that they do.

Units (key heads) have effects ``e_u(n)`` of keeping n tokens, known at some sizes and piecewise
linear between them. Their greatest convex minorants are used instead: between two corners of the
minorant no integer does better than the line. Then

    minimise  sum_u e_u(n_u)   subject to  sum_u n_u = B,  lowest_u <= n_u <= highest_u

is separable and convex, and handing out tokens one by one where the next one gains most is optimal:
gains of a unit never grow, so the B best gains of all units are exactly those that are handed out.
The certificate is the price ``lambda`` of a token, the last gain handed out. For every unit and
every n, ``e_u(n) + lambda n >= e_u(n_u) + lambda n_u``; summed over the units, no other budgets of
the same total are better. :func:`Allocation.gap` checks this inequality and returns by how much it
fails, which is rounding error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array


@dataclass(frozen=True, eq=False)
class EffectCurve:
    """Effect of a unit's budget: convex, not increasing, linear between its corners.

    Attributes
    ----------
    sizes
        Corners, whole numbers in increasing order.
    effects
        Effects at the corners.
    """

    sizes: NDArray[np.int64]
    effects: Array

    @classmethod
    def below(cls, sizes: Sequence[int] | NDArray[np.int64], effects: Array) -> EffectCurve:
        """Greatest convex minorant of effects at some sizes; noise that rises is flattened."""
        n = np.asarray(sizes, dtype=np.int64)
        # more tokens can be left unused: the effect never has to rise
        e = np.minimum.accumulate(np.asarray(effects, dtype=np.float64))
        corners: list[int] = []
        for i in range(len(n)):
            while len(corners) > 1:
                a, b = corners[-2:]
                # whether corner b lies on or above the line from a to i
                if not (e[b] - e[a]) * (n[i] - n[a]) >= (e[i] - e[a]) * (n[b] - n[a]):
                    break
                corners.pop()
            corners.append(i)
        return cls(n[corners], e[corners])

    def __call__(self, n: Array | float) -> Array:
        """Effect at budgets between the first and the last corner."""
        return np.asarray(np.interp(n, self.sizes, self.effects))


@dataclass(frozen=True, eq=False)
class Allocation:
    """Budgets of all units, and the price that proves them optimal.

    Attributes
    ----------
    budgets
        Tokens of each unit.
    effect
        Sum of the effects.
    price
        What one more token would gain, at most: the multiplier of the total.
    """

    budgets: NDArray[np.int64]
    effect: float
    price: float

    def gap(self, curves: Sequence[EffectCurve]) -> float:
        """Effect minus the largest lower bound that the price gives for any budgets of this total.

        The Lagrangian ``sum_u min_n (e_u(n) + price n) - price B`` is such a bound.
        """
        bound = sum(float(np.min(c.effects + self.price * c.sizes)) for c in curves)
        return self.effect - (bound - self.price * float(self.budgets.sum()))


def allocate(curves: Sequence[EffectCurve], total: int) -> Allocation:
    """Budgets of a given total that minimise the sum of the effects.

    Parameters
    ----------
    curves
        One per unit.
    total
        Tokens of all units together. What all units together cannot use is left over.

    Raises
    ------
    InputError
        If the total is below the sum of the smallest budgets.
    """
    smallest = np.array([curve.sizes[0] for curve in curves], dtype=np.int64)
    lowest = int(smallest.sum())
    if total < lowest:
        raise InputError(
            f"a total of {total:,} tokens is below the {lowest:,} that must be kept; the smallest "
            f"possible budget is {lowest:,} tokens"
        )
    budgets = smallest.copy()
    # segments of all curves, best gain per token first; a unit's own come in order, being convex
    unit = np.concatenate([np.full(len(c.sizes) - 1, u) for u, c in enumerate(curves)])
    length = np.concatenate([np.diff(c.sizes) for c in curves])
    gain = np.concatenate([-np.diff(c.effects) / np.diff(c.sizes) for c in curves])
    left = total - lowest
    price = float(gain.max(initial=0.0))
    # ties go to the unit that comes first, so that the result does not depend on rounding
    for i in np.lexsort((np.arange(len(unit)), -gain)):
        if left <= 0:
            break
        taken = min(int(length[i]), left)
        budgets[unit[i]] += taken
        left -= taken
        price = float(gain[i])
    if left > 0:
        price = 0.0
    effect = sum(float(curve(b)) for curve, b in zip(curves, budgets, strict=True))
    return Allocation(budgets, effect, price)


def smallest_within(curves: Sequence[EffectCurve], tolerances: Array) -> NDArray[np.int64]:
    """Smallest budget of each unit whose effect is within its tolerance; -1 where none is."""
    out = np.empty(len(curves), dtype=np.int64)
    for u, (curve, tolerance) in enumerate(zip(curves, tolerances, strict=True)):
        if curve.effects[-1] > tolerance:
            out[u] = -1
            continue
        i = int(np.argmax(curve.effects <= tolerance))
        if i == 0:
            out[u] = curve.sizes[0]
            continue
        (a, b), (x, y) = curve.effects[i - 1 : i + 1], curve.sizes[i - 1 : i + 1]
        out[u] = int(np.ceil(x + (a - tolerance) / (a - b) * (y - x) - 1e-9))
    return out
