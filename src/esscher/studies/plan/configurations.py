"""What is compared: planned and uniform budgets, and published rules, on one prompt.

All of them keep the same number of tokens in all. ``planned`` and ``uniform`` choose tokens inside
a head in the same way and differ in the budgets alone; published rules have scores and budgets of
their own, and forget what they do not keep. Layers with a sliding window are left alone by all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.engine.cache.budgets import POWERS, SelectionKind
from esscher.engine.cache.fitting import Fit
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import Rule
from esscher.engine.cache.selection import Kept, select_largest, select_sample, spread_starts

#: What is kept of a prompt, by layer and key head.
KeptLayers: TypeAlias = dict[int, list[Kept]]


@dataclass(frozen=True, eq=False)
class Budgets:
    """Budgets of every key head and how its tokens are selected.

    Attributes
    ----------
    tokens, powers
        [layers, key heads]; ``powers`` are indices into ``POWERS``.
    selection
        A weighted sample, or the largest scores.
    """

    tokens: NDArray[np.int64]
    powers: NDArray[np.int64]
    selection: SelectionKind = "sample"

    def select(
        self, layer: int, g: int, scores: Tensor, certain: NDArray[np.bool_], start: float
    ) -> Kept:
        """Choose the keys of one key head, not fitted; ``start`` is the randomness of a sample."""
        tokens = int(self.tokens[layer, g])
        if self.selection == "topk":
            return select_largest(scores, certain, tokens)
        return select_sample(scores, certain, tokens, POWERS[self.powers[layer, g]], start)

    def select_layer(
        self,
        layer: int,
        scores: Tensor,
        certain: NDArray[np.bool_],
        starts: Sequence[float],
        fit: Fit | None,
    ) -> list[Kept]:
        """Choose the keys of all key heads of a layer, and fit them if that is the selection."""
        kept = [
            self.select(layer, g, own, certain, start)
            for g, (own, start) in enumerate(zip(scores, starts, strict=True))
        ]
        if self.selection != "fitted" or fit is None:
            return kept
        return [fit.of(g, own) for g, own in enumerate(kept)]


@dataclass(frozen=True, eq=False)
class Chosen:
    """What is compared, and all that it takes.

    Attributes
    ----------
    planned, uniform
        Budgets of the plan, and equal ones.
    rules
        Published rules.
    """

    planned: Budgets
    uniform: Budgets
    rules: tuple[Rule, ...] = ()

    @property
    def without_rules(self) -> Chosen:
        """Budgets of the plan and equal ones alone."""
        return Chosen(self.planned, self.uniform)


#: Name of a text, and its number: the samples of another one are others.
Named: TypeAlias = tuple[str, int]


def starts(name: Named, seed: int, layer: int, g: int, draws: int) -> list[float]:
    """Starts of the samples of a key head."""
    purpose, number = name
    first = float(random_stream(seed, purpose, number, layer, g).random())
    return [float(start) for start in spread_starts(first, draws)]


def kept_layers(
    prompt: ObservedPrompt, chosen: Chosen, named: Named, seed: int
) -> dict[str, KeptLayers]:
    """Return what every configuration keeps of a decoder's prompt.

    Parameters
    ----------
    prompt
        The prompt, which the rules have looked at.
    chosen
        What is compared.
    named
        Name and number of the prompt.
    seed
        Seed of the samples.
    """
    out: dict[str, KeptLayers] = {}
    for name, budgets in (("planned", chosen.planned), ("uniform", chosen.uniform)):
        out[name] = {
            layer: budgets.select_layer(
                layer,
                scores,
                prompt.certain,
                [starts(named, seed, layer, g, 1)[0] for g in range(len(scores))],
                prompt.fit(layer),
            )
            for layer, scores in prompt.scores.items()
        }
    layers = prompt.looking.layers
    each = int(chosen.uniform.tokens[list(prompt.scores)].mean())
    for rule in chosen.rules:
        found = rule.keep(prompt.looking.found(rule), each)
        out[rule.name] = {
            layer: [Kept(index, torch.zeros(len(index))) for index in own]
            for layer, own in zip(layers, found, strict=True)
        }
    return out


def count_kept(kept: KeptLayers) -> int:
    """Tokens that are kept in all layers and key heads together."""
    return sum(len(one.index) for own in kept.values() for one in own)
