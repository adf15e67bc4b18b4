"""A decoder's prompt, read once by dense attention, and what was observed on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.engine.cache.budgets import Keeping, Score
from esscher.engine.cache.cache import ReducedCache, reduced_copy
from esscher.engine.cache.fitting import QueryTargets, fit_kept, prompt_targets
from esscher.engine.cache.published import PromptLayer, Rule
from esscher.engine.cache.repeating import CHUNK, repeat_prompt
from esscher.engine.cache.scores import Repetition, combined, prompt_scores
from esscher.engine.cache.selection import certain_keys
from esscher.engine.cache.storage import Kept
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.weights import rotation_of
from esscher.engine.reading import read_prompt


class ObservedPrompt:
    """A prompt that was read once; caches of any part of it can be made.

    Layers with a sliding window are left out: they are not reduced.

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
        Published rules that score tokens too, each with a name of its own.
    fits
        Whether what is kept can be fitted to what queries get from all tokens.
    chunk
        Tokens that the model repeats at a time, if a score or a rule wants that.

    Attributes
    ----------
    rules
        The rules.
    cache
        Transformers' own, which has read the prompt.
    scores
        Scores of the tokens by layer, [key heads, n].
    rule_scores
        The same for every rule, by its name.
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
        fits: bool = True,
        chunk: int = CHUNK,
    ) -> None:
        self.loaded, self.rules, tokens = loaded, tuple(rules), torch.from_numpy(ids)
        self.certain = certain_keys(len(ids), keeping.sinks, keeping.recent)
        self.scores: dict[int, Tensor] = {}
        self.rule_scores: dict[str, dict[int, Tensor]] = {rule.name: {} for rule in rules}
        self._targets: dict[int, list[QueryTargets]] = {}
        repetitions: dict[int, list[Repetition]] = {}

        def add_scores(inputs: LayerInputs, repeated: tuple[int, int] | None) -> None:
            rotation = rotation_of(loaded, inputs.layer)
            layer = PromptLayer(inputs, len(ids), rotation, repeated)
            for rule in rules:
                if rule.reads == ("prompt" if repeated is None else "repeat"):
                    known, scores = self.rule_scores[rule.name], rule.score(layer)
                    before = known.get(inputs.layer, scores)
                    known[inputs.layer] = torch.maximum(before, scores)

        def read(inputs: LayerInputs) -> None:
            if inputs.window is not None:
                return
            add_scores(inputs, None)
            rotation = rotation_of(loaded, inputs.layer)
            self.scores[inputs.layer] = prompt_scores(inputs, score, rotation)
            if fits:
                self._targets[inputs.layer] = prompt_targets(inputs, rotation)

        def repeat(inputs: LayerInputs, begin: int, end: int) -> None:
            if inputs.window is not None:
                return
            add_scores(inputs, (begin, end))
            if score != "repeat":
                return
            count, group = end - begin, inputs.group
            known = repetitions.setdefault(
                inputs.layer, [Repetition(group, len(ids)) for _ in inputs.k[0]]
            )
            ends = inputs.offset + inputs.q.shape[2] - count + torch.arange(1, count + 1)
            query = inputs.q[0, :, -count:].to(torch.float32) * inputs.scaling
            for g, keys in enumerate(inputs.k[0].to(torch.float32)):
                heads = query[g * group : (g + 1) * group]
                known[g].add(heads, keys, ends.to(keys.device), inputs.softcap)

        self.cache = read_prompt(loaded, tokens, read)
        if score == "repeat" or any(rule.reads == "repeat" for rule in rules):
            repeat_prompt(loaded, tokens, self.cache, repeat, chunk)
        for layer, heads in repetitions.items():
            values = self.cache.layers[layer].values[0]
            repeated = [head.score(v) for head, v in zip(heads, values, strict=True)]
            self.scores[layer] = combined(self.scores[layer], torch.stack(repeated))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, which are most of what it takes."""
        return sum(x.nbytes for layer in self.cache.layers for x in (layer.keys, layer.values))

    def fit(self, layer: int, kept: Sequence[Kept]) -> list[Kept]:
        """Fit what the key heads of a layer keep to what queries get from all tokens."""
        source = self.cache.layers[layer]
        heads = zip(kept, self._targets[layer], source.keys[0], source.values[0], strict=True)
        return [fit_kept(*head) for head in heads]

    def reduced(self, *kept: Mapping[int, Sequence[Kept]]) -> ReducedCache:
        """Make a cache that holds part of the prompt, by layer and key head.

        Several parts are stored as if they were of several texts.
        """
        return reduced_copy(self.loaded, self.cache, *kept)
