"""Which tokens each key head keeps: those of a prompt, and again when others have come.

A prompt is judged by its last queries (``observation.py``), and what is kept is a weighted sample
(``selection.py``). When later tokens have to share the budget, what was kept and the new tokens are
judged together in the same way. A token that was kept with probability p and is kept again with
probability q then counts 1/(p q) times: sums over all tokens stay unbiased, however often that is
repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.engine.cache.budgets import TokenBudgets
from esscher.engine.cache.observation import observe
from esscher.engine.cache.selection import Kept, certain_keys, select_sample

if TYPE_CHECKING:
    from esscher.engine.models import LayerInputs


class PlannedRule:
    """Token budgets applied to texts of any length.

    Parameters
    ----------
    budgets
        What each key head keeps.
    seed
        Seed of the samples.
    length
        Budgets are shares of all tokens seen, or of this many at most.
    """

    def __init__(self, budgets: TokenBudgets, seed: int = 0, length: int | None = None) -> None:
        self.budgets, self.seed, self.length = budgets, seed, length
        self._ratios, self._powers = budgets.ratios, np.array(budgets.powers)

    @property
    def recent(self) -> int:
        """Latest tokens that are kept for certain."""
        return self.budgets.keeping.recent

    def tokens(self, layer: int, seen: int) -> NDArray[np.int64]:
        """Tokens that each key head of a layer may keep of so many."""
        share = seen if self.length is None else min(seen, self.length)
        return np.asarray(np.ceil(self._ratios[layer] * share - 1e-9), dtype=np.int64)

    def keep(self, inputs: LayerInputs, batch: int) -> list[Kept]:
        """Choose what every key head keeps of one text, which was read at once."""
        there = inputs.own_queries(batch).cpu()
        count, layer, keeping = len(there), inputs.layer, self.budgets.keeping
        certain = certain_keys(count, keeping.sinks, keeping.recent)
        budgets = np.maximum(self.tokens(layer, count), int(certain.sum()) + 1)
        if np.all(budgets >= count):
            return [Kept(there, torch.zeros(count))] * len(budgets)
        scores = observe(inputs, batch=batch).score(inputs.v[batch])[:, there]
        kept = []
        for g, budget in enumerate(budgets.tolist()):
            found = select_sample(
                scores[g], certain, budget, self._powers[layer, g], self._start(layer, g, 0)
            )
            kept.append(Kept(there[found.index], found.log_weight))
        return kept

    def keep_again(
        self, layer: int, g: int, scores: Tensor, seen: int, held: int, turn: int
    ) -> Kept:
        """Choose among tokens that were kept before and tokens that came since.

        Parameters
        ----------
        layer, g
            Numbers of the layer and of the key head.
        scores
            Of the tokens, the first ones of the text first.
        seen
            Tokens of the text so far.
        held
            Its latest tokens, which are kept beside these and count against the budget.
        turn
            How often that was done before, plus one.
        """
        certain = certain_keys(len(scores), min(self.budgets.keeping.sinks, len(scores)), 0)
        room = max(int(self.tokens(layer, seen)[g]) - held, int(certain.sum()) + 1)
        return select_sample(
            scores, certain, room, self._powers[layer, g], self._start(layer, g, turn)
        )

    def _start(self, layer: int, g: int, turn: int) -> float:
        names = (layer, g) if turn == 0 else (layer, g, turn)
        return float(random_stream(self.seed, "plan", *names).random())
