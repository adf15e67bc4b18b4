"""A decoder's prompt, read once by dense attention, and what was seen on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.engine.cache.budgets import Keeping, Score
from esscher.engine.cache.cache import ReducedCache, reduced_copies
from esscher.engine.cache.fitting import Asked, Fit, ask_prompt
from esscher.engine.cache.published import Looking, Rule
from esscher.engine.cache.repeating import repeat_prompt
from esscher.engine.cache.scores import Repetition, combined, prompt_scores
from esscher.engine.cache.selection import Kept, certain_keys
from esscher.engine.models import LayerInputs, LoadedModel
from esscher.engine.models.weights import rotation_of
from esscher.engine.reading import read_prompt


class ObservedPrompt:
    """A prompt that was read once; caches of any part of it can be made.

    Parameters
    ----------
    loaded
        A decoder.
    ids
        Tokens of the prompt, [n].
    keeping
        What is kept for certain.
    score
        By which queries tokens are scored.
    rules
        Published rules that look on.
    asks
        Whether queries ask all tokens, so that what is kept can be fitted.

    Attributes
    ----------
    cache
        Transformers' own, which has read the prompt.
    scores
        Scores of the tokens by layer, [key heads, n]; layers with a sliding window have none.
    certain
        True at tokens that are kept for certain, [n].
    """

    def __init__(
        self,
        loaded: LoadedModel,
        ids: NDArray[np.int64],
        keeping: Keeping,
        score: Score = "all",
        rules: Sequence[Rule] = (),
        asks: bool = True,
    ) -> None:
        self.loaded = loaded
        self.scores: dict[int, Tensor] = {}
        self._asked: dict[int, list[Asked]] = {}
        self.certain = certain_keys(len(ids), keeping.sinks, keeping.recent)
        self.looking = Looking(loaded, rules, len(ids))

        def watch(inputs: LayerInputs) -> None:
            self.looking.watch(inputs)
            if inputs.window is None:
                rotation = rotation_of(loaded, inputs.layer)
                self.scores[inputs.layer] = prompt_scores(inputs, score, rotation)
                if asks:
                    self._asked[inputs.layer] = ask_prompt(inputs, rotation)

        tokens = torch.from_numpy(ids)
        self.cache = read_prompt(loaded, tokens, watch)
        self.looking.repeat(tokens, self.cache)
        if score == "repeat":
            self._repeat(tokens)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.certain)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, which are most of what it holds."""
        held = (x for layer in self.cache.layers for x in (layer.keys, layer.values))
        return sum(x.nbytes for x in held)

    def _repeat(self, tokens: Tensor) -> None:
        """Score the tokens by the queries that repeat them, too."""
        found: dict[int, list[Repetition]] = {}

        def watch(inputs: LayerInputs, begin: int, end: int) -> None:
            if inputs.window is not None:
                return
            count, group = end - begin, inputs.group
            own = found.setdefault(
                inputs.layer, [Repetition(group, len(tokens)) for _ in inputs.k[0]]
            )
            ends = inputs.offset + inputs.q.shape[2] - count + torch.arange(1, count + 1)
            query = inputs.q[0, :, -count:].to(torch.float32) * inputs.scaling
            for g, keys in enumerate(inputs.k[0].to(torch.float32)):
                heads = query[g * group : (g + 1) * group]
                own[g].add(heads, keys, ends.to(keys.device), inputs.softcap)

        repeat_prompt(self.loaded, tokens, self.cache, watch)
        for layer, repetitions in found.items():
            values = self.cache.layers[layer].values[0]
            repeated = [one.score(own) for one, own in zip(repetitions, values, strict=True)]
            self.scores[layer] = combined(self.scores[layer], torch.stack(repeated))

    def fit(self, layer: int) -> Fit:
        """All that it takes to fit what a layer keeps."""
        own = self.cache.layers[layer]
        return Fit(self._asked[layer], own.keys[0], own.values[0])

    def reduced(self, *kept: Mapping[int, Sequence[Kept]]) -> ReducedCache:
        """Make a cache that holds part of the prompt, by layer and key head.

        Several parts are held as if they were of several texts.
        """
        keeps = [lambda layer, values, own=own: own[layer] for own in kept]
        return reduced_copies(self.loaded, self.cache, keeps)
