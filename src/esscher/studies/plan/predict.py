"""From measured effects to budgets, and what they are predicted to cost.

Effects are of first order, of one head at a time, and know nothing of a fit. They say how budgets
should be shared out; what these cost is measured, on the calibration passages themselves, read with
the cache of the plan. There budgets look better than on other passages: for each passage, budgets
are also allocated from the others, and the effects of both compared. What was measured is raised by
that factor. Its interval is Student's over passages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS, SelectionKind
from esscher.math.allocation import EffectCurve, allocate, smallest_within
from esscher.math.statistics import LEVEL
from esscher.studies.plan.effects import FITTED, PassageEffects, average_effects

#: Tokens, and which of the ways to select, [layers, key heads] each.
Choice: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


class Budgets(NamedTuple):
    """What every key head of a model keeps.

    ``tokens`` and ``powers`` of the scores are [layers, key heads].
    """

    tokens: NDArray[np.int64]
    powers: Array
    selection: SelectionKind = "sample"


@dataclass(frozen=True, eq=False)
class Predicted:
    """Tokens of every key head, how each selects them, and what is predicted.

    Attributes
    ----------
    tokens, ways
        [layers, key heads]; ``ways`` number the selections of the effects.
    own
        Effect of these budgets on every calibration passage, to first order.
    validated
        The same with budgets from the other passages (from itself if there is only one).
    price, gap
        What one more token would gain, and how far the budgets can be from the optimum of the
        model used (rounding only); None for budgets from a tolerance.
    """

    tokens: NDArray[np.int64]
    ways: NDArray[np.int64]
    own: Array
    validated: Array
    price: float | None = None
    gap: float | None = None

    @classmethod
    def of(
        cls,
        parts: Sequence[PassageEffects],
        sizes: NDArray[np.int64],
        choose: Callable[[PassageEffects], Choice],
    ) -> Predicted:
        """Choose budgets from all passages, and for each passage from the others."""

        def effect(part: PassageEffects, choice: Choice) -> float:
            tokens, ways = choice
            values = interpolated(part.effect, sizes, tokens)
            return float(np.take_along_axis(values, ways[..., None], axis=-1)[..., 0].sum())

        choice = choose(average_effects(parts))
        validated = []
        for part in parts:
            others = [other for other in parts if other is not part]
            again = choose(average_effects(others)) if others else choice
            validated.append(effect(part, again))
        own = np.array([effect(part, choice) for part in parts])
        return cls(*choice, own, np.array(validated))

    def budgets(
        self, layers: NDArray[np.int64], count: int, prefix: int, selection: SelectionKind
    ) -> Budgets:
        """Return the budgets of a model of ``count`` layers, of which these are planned.

        The others keep the whole prefix, or what their sliding window sees of it.
        """
        shape = (count, self.tokens.shape[1])
        tokens, powers = np.full(shape, prefix), np.full(shape, POWERS[0])
        first = FITTED if selection == "fitted" else 0
        tokens[layers], powers[layers] = self.tokens, np.array(POWERS)[self.ways + first]
        return Budgets(tokens, powers, selection)

    @property
    def optimism(self) -> float:
        """How much more budgets cost on a passage that they were not made from, as a factor."""
        own = float(self.own.sum())
        return float(self.validated.sum()) / own if own > 0 else 1.0

    def cost(
        self, realised: Array, prose: NDArray[np.bool_]
    ) -> tuple[float, tuple[float, float] | None, float | None]:
        """Predict what the budgets cost from what they did on the passages they were made from.

        Parameters
        ----------
        realised
            Divergence of every calibration passage from dense.
        prose
            Which of them are prose.

        Returns
        -------
        tuple[float, tuple[float, float] | None, float | None]
            The effect on prose, if there is any, its 95% interval (None for one passage), and the
            effect on retrieval passages (None without).
        """
        # budgets that keep all tokens cost nothing: what is left of them is rounding
        values = realised * self.optimism if self.own.any() else np.zeros_like(realised)
        retrieval = None if prose.all() else float(values[~prose].mean())
        if prose.any():
            values = values[prose]
        interval = None
        if len(values) > 1:
            half = scipy.stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * scipy.stats.sem(values)
            interval = (max(0.0, float(values.mean() - half)), float(values.mean() + half))
        return float(values.mean()), interval, retrieval


def plan_total(parts: Sequence[PassageEffects], sizes: NDArray[np.int64], total: int) -> Predicted:
    """Budgets of a given total, over all layers and key heads.

    Parameters
    ----------
    parts
        Effects on each calibration passage.
    sizes
        Budgets at which they are known.
    total
        Tokens of all key heads together.
    """

    def curves_of(mean: PassageEffects) -> list[EffectCurve]:
        # by the best power of each key head
        best = mean.effect.min(axis=2).reshape(-1, len(sizes))
        return [EffectCurve.below(sizes, unit) for unit in best]

    def choose(mean: PassageEffects) -> Choice:
        budgets = allocate(curves_of(mean), total).budgets.reshape(mean.effect.shape[:2])
        return budgets, best_powers(mean, sizes, budgets)

    curves = curves_of(average_effects(parts))
    allocation = allocate(curves, total)
    planned = Predicted.of(parts, sizes, choose)
    return replace(planned, price=allocation.price, gap=allocation.gap(curves))


def plan_uniform(parts: Sequence[PassageEffects], sizes: NDArray[np.int64], each: int) -> Predicted:
    """The same budget for every key head, with the best power of each."""
    budgets = np.full(parts[0].effect.shape[:2], each, dtype=np.int64)
    return Predicted.of(parts, sizes, lambda mean: (budgets, best_powers(mean, sizes, budgets)))


def plan_tolerance(
    parts: Sequence[PassageEffects], sizes: NDArray[np.int64], tolerance: float
) -> Predicted:
    """The smallest budgets that keep the relative output error of every head within a tolerance."""
    worst = _worst_squares(average_effects(parts))
    # the first size at which a power reaches it; not of the minorant, which lies below the errors
    curves = [EffectCurve(sizes, squares) for squares in worst.reshape(-1, len(sizes))]
    least = smallest_within(curves, np.full(len(curves), tolerance**2)).reshape(worst.shape[:-1])
    budgets = np.where(least < 0, sizes[-1] + 1, least).min(axis=-1)
    if np.any(budgets > sizes[-1]):
        raise InputError(f"tolerance is {tolerance:g}; no budget reaches it")

    def choose(mean: PassageEffects) -> Choice:
        # the power with the smallest effect on the model's end may exceed the tolerance
        squares = interpolated(_worst_squares(mean), sizes, budgets)
        return budgets, np.asarray(squares.argmin(-1), dtype=np.int64)

    return Predicted.of(parts, sizes, choose)


def _worst_squares(effects: PassageEffects) -> Array:
    """Squared relative error of the neediest query head, [layers, key heads, powers, sizes]."""
    layers, key_heads = effects.effect.shape[:2]
    relative = effects.square / effects.norm[..., None, None]
    return np.asarray(relative.reshape(layers, key_heads, -1, *relative.shape[2:]).max(axis=2))


def best_powers(
    effects: PassageEffects, sizes: NDArray[np.int64], budgets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The power with the smaller effect at each key head's budget."""
    return np.asarray(interpolated(effects.effect, sizes, budgets).argmin(-1), dtype=np.int64)


def interpolated(values: Array, sizes: NDArray[np.int64], budgets: NDArray[np.int64]) -> Array:
    """Values [layers, units, powers, sizes] at a budget per unit, [layers, units, powers]."""
    layers, units, powers = values.shape[:3]
    out = np.empty((layers, units, powers))
    for layer, unit, power in np.ndindex(layers, units, powers):
        out[layer, unit, power] = np.interp(budgets[layer, unit], sizes, values[layer, unit, power])
    return out
