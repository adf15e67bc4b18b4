"""A transformers model under a plan: the prompt is read dense, what follows sees a reduced cache.

When a decoder has read a prompt (a call without a cache behind it), every key head keeps its budget
of the prompt's tokens; all later calls attend to these and to every token after the prompt. That is
also what the check of a plan does. The model's own cache still holds all tokens: what is reduced is
what attention sees, not yet the memory of transformers' cache, which cannot hold a different number
of tokens per head. An encoder keeps the budgets in every call.

What is kept of a text depends on its own tokens and the seed alone, not on its row in the batch and
not on padding, on whichever side it is. A text that is no longer than its budget is kept whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.engine.cache.budgets import TokenBudgets
from esscher.engine.cache.observation import observe
from esscher.engine.cache.selection import Kept, certain_keys, reduced_attention, select_sample
from esscher.engine.models import LayerInputs


@dataclass(frozen=True, eq=False)
class Prompt:
    """What is kept of a prompt in one layer: its length with padding, and keys by text and head."""

    length: int
    kept: list[list[Kept]]

    def without(self, lost: int) -> Prompt:
        """The same in a cache that has dropped this many of its first keys."""
        if lost == 0:
            return self
        kept = [[_shifted(head, lost) for head in text] for text in self.kept]
        return Prompt(max(0, self.length - lost), kept)


class PlannedAttention:
    """Computes a layer's attention under a plan; see the module's text.

    Parameters
    ----------
    budgets
        What each key head keeps.
    seed
        Seed of the samples.
    """

    def __init__(self, budgets: TokenBudgets, seed: int = 0) -> None:
        self._ratios, self._powers = budgets.ratios, np.array(budgets.powers)
        self._keeping, self._seed = budgets.keeping, seed
        self._prompts: dict[int, Prompt] = {}
        self._read: dict[int, int] = {}

    def __call__(self, inputs: LayerInputs) -> Tensor | None:
        """Attention output, or None for the model's own."""
        queries = inputs.q.shape[2]
        if not inputs.causal:
            return self._attend(inputs, Prompt(queries, self._keep(inputs)))
        if inputs.offset == 0:
            self._prompts[inputs.layer] = Prompt(queries, self._keep(inputs))
            self._read[inputs.layer] = queries
            return None
        prompt = self._prompts.get(inputs.layer)
        # a cache that was filled before the block began, or by another batch, is left alone
        if prompt is None or len(prompt.kept) != len(inputs.q):
            return None
        lost = 0
        if inputs.window is not None:  # the cache of such a layer drops what no query sees again
            lost = max(0, self._read[inputs.layer] - inputs.offset)
            self._read[inputs.layer] += queries
        if prompt.length - lost > inputs.offset:
            return None
        return self._attend(inputs, prompt.without(lost))

    def _attend(self, inputs: LayerInputs, prompt: Prompt) -> Tensor:
        return torch.stack(
            [
                reduced_attention(inputs, kept, prompt.length, batch)
                for batch, kept in enumerate(prompt.kept)
            ]
        )

    def _keep(self, inputs: LayerInputs) -> list[list[Kept]]:
        return [self._keep_one(inputs, batch) for batch in range(len(inputs.q))]

    def _keep_one(self, inputs: LayerInputs, batch: int) -> list[Kept]:
        """What every key head keeps of one text."""
        there = inputs.own_queries(batch).cpu()
        count, layer = len(there), inputs.layer
        certain = certain_keys(count, self._keeping.sinks, self._keeping.recent)
        budgets = np.ceil(self._ratios[layer] * count - 1e-9).astype(np.int64)
        budgets = np.maximum(budgets, int(certain.sum()) + 1)
        # a window shorter than the text keeps few enough by itself
        if np.all(budgets >= count) or (inputs.window is not None and count > inputs.window):
            return [Kept(there, torch.zeros(count))] * len(budgets)
        scores = observe(inputs, batch=batch).score(inputs.v[batch])[:, there]
        kept = []
        for g, budget in enumerate(budgets.tolist()):
            start = float(random_stream(self._seed, "plan", layer, g).random())
            found = select_sample(scores[g], certain, budget, self._powers[layer, g], start)
            kept.append(Kept(there[found.index], found.log_weight))
        return kept


def _shifted(kept: Kept, lost: int) -> Kept:
    left = kept.index >= lost
    return Kept(kept.index[left] - lost, kept.log_weight[left])
