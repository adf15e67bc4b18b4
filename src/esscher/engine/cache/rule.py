"""Which tokens each key head keeps: those of a prompt, and again when others have come.

A prompt is judged by its queries (``observation.py``), and what is kept is a weighted sample
(``selection.py``), fitted to what the queries get from all of it (``fitting.py``). When later
tokens have to share the budget, what was kept and the new tokens are judged together, in the same
way. A token that was kept with probability p and is kept again with
probability q then counts 1/(p q) times before it is fitted: sums over all tokens stay unbiased,
however often that is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.engine.cache.budgets import Score, TokenBudgets
from esscher.engine.cache.fitting import Asked, Fit, ask_prompt
from esscher.engine.cache.observation import prompt_scores
from esscher.engine.cache.selection import Kept, certain_keys, select_largest, select_sample
from esscher.engine.models.rotary import Rotation, rotation_of

if TYPE_CHECKING:
    from esscher.engine.models import LayerInputs, LoadedModel


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
    score
        By which queries tokens are scored; by default those that the budgets were planned for.
    rotations
        Rotary embedding of every layer, for scores by all queries.
    """

    def __init__(
        self,
        budgets: TokenBudgets,
        seed: int = 0,
        length: int | None = None,
        score: Score | None = None,
        rotations: Sequence[Rotation | None] = (),
    ) -> None:
        self.budgets, self.seed, self.length = budgets, seed, length
        self.score = score or budgets.score
        self._rotations = rotations
        self._ratios, self._powers = budgets.ratios, np.array(budgets.powers)

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        budgets: TokenBudgets,
        seed: int = 0,
        length: int | None = None,
        score: Score | None = None,
    ) -> PlannedRule:
        """Make the rule for a model, whose rotary embeddings it takes."""
        layers = range(loaded.shape.layers)
        rotations = [rotation_of(loaded, layer) for layer in layers] if loaded.causal else []
        return cls(budgets, seed, length, score, rotations)

    @property
    def recent(self) -> int:
        """Latest tokens that are kept for certain."""
        return self.budgets.keeping.recent

    @property
    def fits(self) -> bool:
        """Whether what is kept is fitted to what queries get from all tokens."""
        return self.budgets.selection == "fitted"

    def tokens(self, layer: int, seen: int) -> NDArray[np.int64]:
        """Tokens that each key head of a layer may keep of so many."""
        share = seen if self.length is None else min(seen, self.length)
        return np.asarray(np.ceil(self._ratios[layer] * share - 1e-9), dtype=np.int64)

    def keep(self, inputs: LayerInputs, batch: int) -> list[Kept]:
        """Choose what every key head keeps of one text, which was read at once."""
        there = inputs.own_queries(batch).cpu()
        if self.keeps_all(len(there), inputs.layer):
            return [Kept(there, torch.zeros(len(there)))] * inputs.k.shape[1]
        fit = self.fit(self.ask(inputs, batch), inputs.k[batch], inputs.v[batch], there)
        return self.choose(inputs.layer, there, self.scores(inputs, batch)[:, there], fit)

    def keeps_all(self, count: int, layer: int | None = None) -> bool:
        """Whether all tokens of a text are kept, by a layer or by all of them."""
        layers = range(len(self._ratios)) if layer is None else [layer]
        return all(bool(np.all(self._room(one, count) >= count)) for one in layers)

    def _room(self, layer: int, count: int) -> NDArray[np.int64]:
        keeping = self.budgets.keeping
        certain = int(certain_keys(count, keeping.sinks, keeping.recent).sum())
        return np.maximum(self.tokens(layer, count), certain + 1)

    def ask(self, inputs: LayerInputs, batch: int) -> Sequence[Asked | None]:
        """Let queries of one text ask the keys of every key head; None if nothing is fitted."""
        if not self.fits:
            return [None] * inputs.k.shape[1]
        return ask_prompt(inputs, self._rotations[inputs.layer], batch)

    def fit(
        self, asked: Sequence[Asked | None], keys: Tensor, values: Tensor, there: Tensor
    ) -> Fit | None:
        """All that it takes to fit what is kept of a text; None if nothing was asked.

        Parameters
        ----------
        asked
            From :meth:`ask`.
        keys, values
            Of the text and its padding, [key heads, n_k, d].
        there
            Numbers of its tokens without padding.
        """
        answers = [one for one in asked if one is not None]
        if not answers:
            return None
        if len(there) < keys.shape[1]:
            keys, values = (x[:, there.to(x.device)] for x in (keys, values))
        return Fit(answers, keys, values)

    def choose(
        self, layer: int, there: Tensor, scores: Tensor, fit: Fit | None = None
    ) -> list[Kept]:
        """Choose what every key head keeps of a text by its scores.

        Parameters
        ----------
        layer
            Number of the layer.
        there
            Numbers of its tokens, [n], without padding.
        scores
            Of these, [key heads, n].
        fit
            Fits what is kept; None leaves it as it is.
        """
        count, keeping = len(there), self.budgets.keeping
        if self.keeps_all(count, layer):
            return [Kept(there, torch.zeros(count))] * len(scores)
        certain = certain_keys(count, keeping.sinks, keeping.recent)
        kept = []
        for g, budget in enumerate(self._room(layer, count).tolist()):
            found = self._select(scores[g], certain, budget, layer, g, 0)
            found = found if fit is None else fit.of(g, found)
            kept.append(Kept(there[found.index], found.log_weight, found.values))
        return kept

    def scores(self, inputs: LayerInputs, batch: int) -> Tensor:
        """Scores of the keys of one text, [key heads, n_k], by the queries that read it."""
        rotation = self._rotations[inputs.layer] if inputs.causal else None
        return prompt_scores(inputs, self.score, rotation, batch)

    def _select(
        self, scores: Tensor, certain: NDArray[np.bool_], budget: int, layer: int, g: int, turn: int
    ) -> Kept:
        if self.budgets.selection == "topk":
            return select_largest(scores, certain, budget)
        start = self._start(layer, g, turn)
        return select_sample(scores, certain, budget, self._powers[layer, g], start)

    def rotation(self, layer: int) -> Rotation | None:
        """Rotary embedding of a layer."""
        return self._rotations[layer]

    def keep_again(
        self,
        layer: int,
        g: int,
        scores: Tensor,
        log_weight: Tensor,
        seen: int,
        held: int,
        turn: int,
    ) -> Kept:
        """Choose among tokens that were kept before and tokens that came since.

        Parameters
        ----------
        layer, g
            Numbers of the layer and of the key head.
        scores, log_weight
            Of the tokens, the first ones of the text first; one with a weight stands for several.
        seen
            Tokens of the text so far.
        held
            Its latest tokens, which are kept beside these and count against the budget.
        turn
            How often that was done before, plus one.
        """
        certain = certain_keys(len(scores), min(self.budgets.keeping.sinks, len(scores)), 0)
        room = max(int(self.tokens(layer, seen)[g]) - held, int(certain.sum()) + 1)
        return self._select(scores * torch.exp(log_weight), certain, room, layer, g, turn)

    def _start(self, layer: int, g: int, turn: int) -> float:
        names = (layer, g) if turn == 0 else (layer, g, turn)
        return float(random_stream(self.seed, "plan", *names).random())
