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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.math.allocation import EffectCurve, allocate, smallest_within
from esscher.math.statistics import LEVEL
from esscher.studies.plan.effects import PassageEffects, average_effects

#: Budgets and powers, [layers, key heads] each.
Choice: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


class Cost(NamedTuple):
    """Predicted effect on the model's end.

    ``effect`` is that on prose, if there is any, and ``interval`` its 95% interval, None for one
    passage; ``retrieval`` is the effect on retrieval passages, None without.
    """

    effect: float
    interval: tuple[float, float] | None
    retrieval: float | None


@dataclass(frozen=True, eq=False)
class Predicted:
    """Budgets of every key head, the power of each, and what is predicted.

    Attributes
    ----------
    budgets, powers
        [layers, key heads]; ``powers`` are indices into ``POWERS``.
    own
        Effect of these budgets on every calibration passage, to first order.
    validated
        The same with budgets from the other passages (from itself if there is only one).
    price, gap
        What one more token would gain, and how far the budgets can be from the optimum of the
        model used (rounding only); None for budgets from a tolerance.
    """

    budgets: NDArray[np.int64]
    powers: NDArray[np.int64]
    own: Array
    validated: Array
    price: float | None = None
    gap: float | None = None

    def among(self, layers: NDArray[np.int64], count: int, prefix: int) -> Predicted:
        """The same for a model of ``count`` layers, of which these are planned.

        The others keep the whole prefix, or what their sliding window sees of it.
        """

        def placed(values: NDArray[Any], other: float) -> NDArray[Any]:
            out = np.full((count, *values.shape[1:]), other, dtype=values.dtype)
            out[layers] = values
            return out

        return replace(
            self,
            budgets=placed(self.budgets, prefix),
            powers=placed(self.powers, 0),
        )

    @property
    def optimism(self) -> float:
        """How much more budgets cost on a passage that they were not made from, as a factor."""
        own = float(self.own.sum())
        return float(self.validated.sum()) / own if own > 0 else 1.0

    def cost(self, realised: Array, prose: NDArray[np.bool_]) -> Cost:
        """Predict what the budgets cost from what they did on the passages they were made from.

        Parameters
        ----------
        realised
            Divergence of every calibration passage from dense.
        prose
            Which of them are prose.
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
        return Cost(float(values.mean()), interval, retrieval)


def plan_total(
    parts: Sequence[PassageEffects],
    sizes: NDArray[np.int64],
    total: int,
) -> Predicted:
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
    mean = average_effects(parts)
    curves = unit_curves(mean, sizes)
    found = allocate(curves, total)
    shape = mean.effect.shape[:2]
    budgets = found.budgets.reshape(shape)
    powers = best_powers(mean, sizes, budgets)

    def refit(others: Sequence[PassageEffects]) -> Choice:
        again = average_effects(others)
        own = allocate(unit_curves(again, sizes), total).budgets.reshape(shape)
        return own, best_powers(again, sizes, own)

    effects = _effects(parts, sizes, (budgets, powers), refit)
    return Predicted(budgets, powers, *effects, price=found.price, gap=found.gap(curves))


def plan_uniform(
    parts: Sequence[PassageEffects],
    sizes: NDArray[np.int64],
    each: int,
) -> Predicted:
    """The same budget for every key head, with the best power of each."""
    mean = average_effects(parts)
    budgets = np.full(mean.effect.shape[:2], each, dtype=np.int64)
    powers = best_powers(mean, sizes, budgets)

    def refit(others: Sequence[PassageEffects]) -> Choice:
        return budgets, best_powers(average_effects(others), sizes, budgets)

    return Predicted(budgets, powers, *_effects(parts, sizes, (budgets, powers), refit))


def plan_tolerance(
    parts: Sequence[PassageEffects],
    sizes: NDArray[np.int64],
    tolerance: float,
) -> Predicted:
    """The smallest budgets that keep the relative output error of every head within a tolerance."""
    mean = average_effects(parts)
    worst = _worst_squares(mean)
    # the first size at which a power reaches it; not of the minorant, which lies below the errors
    curves = [EffectCurve(sizes, one) for one in worst.reshape(-1, len(sizes))]
    found = smallest_within(curves, np.full(len(curves), tolerance**2)).reshape(worst.shape[:-1])
    budgets = np.where(found < 0, sizes[-1] + 1, found).min(axis=-1)
    if np.any(budgets > sizes[-1]):
        raise InputError(f"tolerance is {tolerance:g}; no budget reaches it")

    def safest(effects: PassageEffects) -> NDArray[np.int64]:
        # the power with the smallest effect on the model's end may exceed the tolerance
        return np.asarray(_at(_worst_squares(effects), sizes, budgets).argmin(-1), dtype=np.int64)

    def refit(others: Sequence[PassageEffects]) -> Choice:
        return budgets, safest(average_effects(others))

    powers = safest(mean)
    return Predicted(budgets, powers, *_effects(parts, sizes, (budgets, powers), refit))


def _worst_squares(effects: PassageEffects) -> Array:
    """Squared relative error of the neediest query head, [layers, key heads, powers, sizes]."""
    layers, key_heads = effects.effect.shape[:2]
    relative = effects.square / effects.norm[..., None, None]
    return np.asarray(relative.reshape(layers, key_heads, -1, *relative.shape[2:]).max(axis=2))


def unit_curves(effects: PassageEffects, sizes: NDArray[np.int64]) -> list[EffectCurve]:
    """Effect of every key head as a function of its budget, by the best power."""
    best = effects.effect.min(axis=2)
    return [EffectCurve.below(sizes, unit) for unit in best.reshape(-1, len(sizes))]


def best_powers(
    effects: PassageEffects, sizes: NDArray[np.int64], budgets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The power with the smaller effect at each key head's budget."""
    return np.asarray(_at(effects.effect, sizes, budgets).argmin(axis=-1), dtype=np.int64)


def _at(values: Array, sizes: NDArray[np.int64], budgets: NDArray[np.int64]) -> Array:
    """Values [layers, units, powers, sizes] at a budget per unit, [layers, units, powers]."""
    layers, units, powers = values.shape[:3]
    out = np.empty((layers, units, powers))
    for layer, unit, power in np.ndindex(layers, units, powers):
        out[layer, unit, power] = np.interp(budgets[layer, unit], sizes, values[layer, unit, power])
    return out


def _chosen(values: Array, powers: NDArray[np.int64]) -> Array:
    return np.asarray(np.take_along_axis(values, powers[..., None], axis=-1)[..., 0])


def _effects(
    parts: Sequence[PassageEffects],
    sizes: NDArray[np.int64],
    choice: Choice,
    refit: Callable[[Sequence[PassageEffects]], Choice],
) -> tuple[Array, Array]:
    """Effect on every passage of one choice, and of budgets from the other passages."""

    def effect(part: PassageEffects, choice: Choice) -> float:
        budgets, powers = choice
        return float(_chosen(_at(part.effect, sizes, budgets), powers).sum())

    validated = []
    for i, part in enumerate(parts):
        others = [other for j, other in enumerate(parts) if j != i]
        validated.append(effect(part, refit(others) if others else choice))
    return np.array([effect(part, choice) for part in parts]), np.array(validated)
