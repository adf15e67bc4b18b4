"""Rules look on while a decoder reads a prompt, and while it repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from esscher.engine.cache.instruction import CHUNK
from esscher.engine.cache.published.prefilled import prefilled_layer
from esscher.engine.cache.published.repeat import repeat_prompt
from esscher.engine.cache.published.rule import Rule, Scores
from esscher.engine.models import LayerInputs, LoadedModel


class Looking:
    """What some rules find in a prompt, layer by layer; layers with a sliding window are left out.

    Parameters
    ----------
    loaded
        The decoder.
    rules
        The rules, each with a name of its own.
    prompt
        Number of tokens of the prompt.

    Attributes
    ----------
    rules
        The rules.
    layers
        Numbers of the layers that were looked at.
    """

    def __init__(self, loaded: LoadedModel, rules: Sequence[Rule], prompt: int) -> None:
        self._loaded, self.rules, self._prompt = loaded, tuple(rules), prompt
        self._found: dict[str, dict[int, Scores]] = {rule.name: {} for rule in rules}
        self.layers: list[int] = []

    def watch(self, inputs: LayerInputs) -> None:
        """Look at a layer that reads the prompt, all of it at once."""
        if inputs.window is not None:
            return
        self.layers.append(inputs.layer)
        layer = prefilled_layer(self._loaded, inputs, self._prompt)
        for rule in self.rules:
            if rule.reads == "prompt":
                self._found[rule.name][inputs.layer] = rule.look(layer)

    def repeat(self, ids: Tensor, cache: Any, chunk: int = CHUNK) -> None:
        """Let the model repeat the prompt, if a rule wants to see that; see ``repeat.py``."""
        rules = [rule for rule in self.rules if rule.reads == "repeat"]

        def watch(inputs: LayerInputs, begin: int, end: int) -> None:
            if inputs.window is not None:
                return
            layer = prefilled_layer(self._loaded, inputs, self._prompt, (begin, end))
            for rule in rules:
                own, found = self._found[rule.name], rule.look(layer)
                before = own.get(inputs.layer)
                own[inputs.layer] = found if before is None else before.joined(found)

        if rules:
            repeat_prompt(self._loaded, ids, cache, watch, chunk)

    def found(self, rule: Rule) -> list[Scores]:
        """What a rule found, one per layer."""
        own = self._found[rule.name]
        return [own[layer] for layer in self.layers]
