"""From measured effects to budgets in bytes, and what they are predicted to cost.

Effects are of first order, of one head at a time, and know nothing of a fit. They say how budgets
should be shared out; what these cost is measured, on the calibration passages themselves, read with
the cache of the plan. There budgets look better than on other passages: for each passage, budgets
are also allocated from the others, and the effects of both compared. What was measured is raised by
that factor. Its interval is Student's over passages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.engine.attention.bits import ENTRY_BYTES, EXACT, list_bytes
from esscher.engine.cache.budgets import POWERS, SelectionKind
from esscher.engine.models.outline import ModelRecord
from esscher.math.allocation import EffectCurve, allocate, smallest_within
from esscher.math.statistics import LEVEL
from esscher.studies.plan.effects import PassageEffects, average_effects, budget_grid, ways

#: Tokens, and which of the ways to keep them, [layers, key heads] each.
Choice: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


class Budgets(NamedTuple):
    """What every key head of a model keeps.

    ``tokens``, ``powers`` of the scores and ``nbytes`` are [layers, key heads], ``bits`` of keys
    and values [layers, key heads, 2].
    """

    tokens: NDArray[np.int64]
    powers: Array
    bits: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    selection: SelectionKind = "sample"


@dataclass(frozen=True, eq=False)
class Ways:
    """Ways in which a key head can keep tokens, and the bytes that they take.

    Attributes
    ----------
    selection
        How tokens are chosen.
    sizes
        Budgets in tokens at which effects are known.
    powers, bits
        Of every way, [ways] and [ways, 2].
    nbytes
        Bytes of 0 to all tokens of the prefix, [ways, prefix + 1].
    """

    selection: SelectionKind
    sizes: NDArray[np.int64]
    powers: Array
    bits: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    @classmethod
    def of(cls, selection: SelectionKind, prefix: int, certain: int, model: ModelRecord) -> Ways:
        """The ways of a selection, where so many tokens are kept for certain, and not rounded."""
        powers, bits = zip(*ways(selection), strict=True)
        tokens, entry = np.arange(prefix + 1), ENTRY_BYTES[model.dtype]
        tables = [list_bytes(tokens, certain, prefix, model.head_dim, entry, b) for b in bits]
        sizes = budget_grid(prefix, certain)
        return cls(selection, sizes, np.array(powers), np.array(bits), np.array(tables))

    @property
    def least(self) -> int:
        """Bytes of the smallest budget."""
        return int(self.nbytes[:, self.sizes[0]].min())

    def tokens(self, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens that fit into bytes [layers, units] in each way, [layers, units, ways]."""
        rows = [np.searchsorted(table, nbytes, side="right") - 1 for table in self.nbytes]
        return np.stack(rows, axis=-1)

    def choose(self, nbytes: NDArray[np.int64], costs: Array) -> Choice:
        """For bytes of every unit, the way that costs least, and the tokens that fit.

        ``costs`` are [layers, units, ways, sizes].
        """
        tokens = self.tokens(nbytes)
        values = interpolated(costs, self.sizes, tokens)
        values[tokens < self.sizes[0]] = np.inf
        best = values.argmin(-1)
        return np.take_along_axis(tokens, best[..., None], axis=-1)[..., 0], best


@dataclass(frozen=True, eq=False)
class Predicted:
    """Tokens of every key head, how each keeps them, and what is predicted.

    Attributes
    ----------
    tokens, way
        [layers, key heads]; ``way`` numbers the :class:`Ways`.
    effects
        Effect of these budgets on every calibration passage, to first order.
    validated
        The same with budgets from the other passages (from itself if there is only one).
    """

    tokens: NDArray[np.int64]
    way: NDArray[np.int64]
    effects: Array
    validated: Array

    @classmethod
    def of(
        cls,
        parts: Sequence[PassageEffects],
        ways: Ways,
        choose: Callable[[PassageEffects], Choice],
    ) -> Predicted:
        """Choose budgets from all passages, and for each passage from the others."""

        def effect(part: PassageEffects, choice: Choice) -> float:
            tokens, way = choice
            values = interpolated(part.effect, ways.sizes, tokens[..., None])
            return float(np.take_along_axis(values, way[..., None], axis=-1).sum())

        choice = choose(average_effects(parts))
        validated = []
        for part in parts:
            others = [other for other in parts if other is not part]
            again = choose(average_effects(others)) if others else choice
            validated.append(effect(part, again))
        effects = np.array([effect(part, choice) for part in parts])
        return cls(*choice, effects, np.array(validated))

    def budgets(self, layers: NDArray[np.int64], count: int, ways: Ways) -> Budgets:
        """Return the budgets of a model of ``count`` layers, of which these are planned.

        The others keep the whole prefix, or what their sliding window sees of it.
        """
        shape = (count, self.tokens.shape[1])
        tokens, powers = np.full(shape, ways.nbytes.shape[1] - 1), np.full(shape, POWERS[0])
        bits, nbytes = np.full((*shape, 2), EXACT), np.zeros(shape, dtype=np.int64)
        tokens[layers], powers[layers] = self.tokens, ways.powers[self.way]
        bits[layers], nbytes[layers] = ways.bits[self.way], ways.nbytes[self.way, self.tokens]
        return Budgets(tokens, powers, bits, nbytes, ways.selection)

    @property
    def optimism(self) -> float:
        """How much more budgets cost on a passage that they were not made from, as a factor."""
        seen = float(self.effects.sum())
        return float(self.validated.sum()) / seen if seen > 0 else 1.0

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
        values = realised * self.optimism if self.effects.any() else np.zeros_like(realised)
        retrieval = None if prose.all() else float(values[~prose].mean())
        if prose.any():
            values = values[prose]
        interval = None
        if len(values) > 1:
            half = scipy.stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * scipy.stats.sem(values)
            interval = (max(0.0, float(values.mean() - half)), float(values.mean() + half))
        return float(values.mean()), interval, retrieval


def plan_total(parts: Sequence[PassageEffects], ways: Ways, total: int) -> Predicted:
    """Budgets of so many bytes in all, over all layers and key heads.

    Parameters
    ----------
    parts
        Effects on each calibration passage.
    ways
        Ways to keep tokens.
    total
        Bytes of all key heads together.
    """
    sizes = ways.nbytes[:, ways.sizes].ravel()

    def curves_of(mean: PassageEffects) -> list[EffectCurve]:
        # whichever way costs least
        out = []
        for unit in mean.effect.reshape(-1, len(sizes)):
            order = np.lexsort((unit, sizes))
            ordered, first = np.unique(sizes[order], return_index=True)
            out.append(EffectCurve.below(ordered, unit[order][first]))
        return out

    def choose(mean: PassageEffects) -> Choice:
        nbytes = allocate(curves_of(mean), total).budgets.reshape(mean.effect.shape[:2])
        return ways.choose(nbytes, mean.effect)

    return Predicted.of(parts, ways, choose)


def plan_uniform(parts: Sequence[PassageEffects], ways: Ways, each: int) -> Predicted:
    """The same number of bytes for every key head, each of which spends them in its best way."""
    nbytes = np.full(parts[0].effect.shape[:2], each, dtype=np.int64)
    return Predicted.of(parts, ways, lambda mean: ways.choose(nbytes, mean.effect))


def plan_tolerance(parts: Sequence[PassageEffects], ways: Ways, tolerance: float) -> Predicted:
    """The fewest bytes that keep the relative output error of every head within a tolerance."""
    worst = _worst_squares(average_effects(parts))
    # the first size at which a way reaches it; not of the minorant, which lies below the errors
    curves = [EffectCurve(ways.sizes, squares) for squares in worst.reshape(-1, len(ways.sizes))]
    least = smallest_within(curves, np.full(len(curves), tolerance**2)).reshape(worst.shape[:-1])
    if np.any(least.max(axis=-1) < 0):
        raise InputError(f"tolerance is {tolerance:g}; no budget reaches it")
    nbytes = ways.nbytes[np.arange(worst.shape[2]), least]
    nbytes = np.where(least < 0, ways.nbytes.max() + 1, nbytes).min(axis=-1)
    # the way with the smallest effect on the model's end may exceed the tolerance
    return Predicted.of(parts, ways, lambda mean: ways.choose(nbytes, _worst_squares(mean)))


def _worst_squares(effects: PassageEffects) -> Array:
    """Squared relative error of the neediest query head, [layers, key heads, ways, sizes]."""
    layers, key_heads = effects.effect.shape[:2]
    relative = effects.square / effects.norm[..., None, None]
    return np.asarray(relative.reshape(layers, key_heads, -1, *relative.shape[2:]).max(axis=2))


def interpolated(values: Array, sizes: NDArray[np.int64], tokens: NDArray[np.int64]) -> Array:
    """Values [layers, units, ways, sizes] at tokens [layers, units, ways or 1]."""
    layers, units, count = values.shape[:3]
    out = np.empty((layers, units, count))
    for layer, unit in np.ndindex(layers, units):
        for way, row in enumerate(values[layer, unit]):
            at = tokens[layer, unit, way % tokens.shape[2]]
            out[layer, unit, way] = np.interp(at, sizes, row)
    return out
