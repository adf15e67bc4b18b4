"""A transformers model under a plan: the prompt is read dense, what follows sees a reduced cache.

When a decoder has read a prompt (a call without a cache behind it), every key head keeps its budget
of the prompt's tokens; all later calls attend to these and to every token after the prompt. That is
also what the check of a plan does. The model's own cache still holds all tokens: what is reduced is
what attention sees, not yet the memory of transformers' cache, which cannot hold a different number
of tokens per head. An encoder keeps the budgets in every call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.models import LayerInputs
from esscher.planning.observation import observe
from esscher.planning.reduced import reduced_attention
from esscher.planning.selection import Kept, certain_keys, select_sample
from esscher.streams import random_stream
from esscher.validation import Array


@dataclass(frozen=True, eq=False)
class Prompt:
    """What is kept of a prompt in one layer: its length, and keys by text and key head."""

    length: int
    kept: list[list[Kept]]


class PlannedAttention:
    """Computes a layer's attention under a plan; see the module's text.

    Parameters
    ----------
    ratios, powers
        Share of the tokens that each key head keeps, and its power, [layers, key heads].
    sinks, recent
        First and last tokens of a text that are kept for certain.
    seed
        Seed of the samples.
    """

    def __init__(
        self, ratios: Array, powers: Array, sinks: int, recent: int, seed: int = 0
    ) -> None:
        self._ratios, self._powers = ratios, powers
        self._sinks, self._recent, self._seed = sinks, recent, seed
        self._prompts: dict[int, Prompt] = {}

    def __call__(self, inputs: LayerInputs) -> Tensor | None:
        """Attention output, or None for the model's own."""
        length = inputs.k.shape[2]
        if not inputs.causal:
            return self._attend(inputs, Prompt(length, self._keep(inputs)))
        if inputs.offset == 0:
            self._prompts[inputs.layer] = Prompt(length, self._keep(inputs))
            return None
        prompt = self._prompts.get(inputs.layer)
        # a cache that was filled before the block began, or by another batch, is left alone
        if prompt is None or prompt.length > length or len(prompt.kept) != len(inputs.q):
            return None
        return self._attend(inputs, prompt)

    def _attend(self, inputs: LayerInputs, prompt: Prompt) -> Tensor:
        return torch.stack(
            [
                reduced_attention(inputs, kept, prompt.length, batch)
                for batch, kept in enumerate(prompt.kept)
            ]
        )

    def _keep(self, inputs: LayerInputs) -> list[list[Kept]]:
        out = []
        for batch in range(len(inputs.q)):
            there = np.arange(inputs.k.shape[2])
            if inputs.valid is not None:
                there = np.flatnonzero(inputs.valid[batch].cpu().numpy())
            scores = observe(inputs, batch=batch).score(inputs.v[batch])
            out.append(self._keep_one(inputs.layer, batch, there, scores[:, there]))
        return out

    def _keep_one(
        self, layer: int, batch: int, there: NDArray[np.int64], scores: Tensor
    ) -> list[Kept]:
        certain = certain_keys(len(there), self._sinks, self._recent)
        kept = []
        for g in range(len(scores)):
            budget = int(np.ceil(self._ratios[layer, g] * len(there) - 1e-9))
            budget = max(budget, int(certain.sum()) + 1)
            start = float(random_stream(self._seed, "plan", layer, g, batch).random())
            found = select_sample(scores[g], certain, budget, self._powers[layer, g], start)
            kept.append(Kept(torch.from_numpy(there)[found.index], found.log_weight))
        return kept
