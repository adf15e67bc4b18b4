"""What planned and uniform budgets and published rules keep of a prompt."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.engine.cache.budgets import Keeping
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import RULES
from esscher.studies.plan.check import count_kept, kept_layers
from esscher.studies.plan.predict import Budgets
from tests.engine.cache.plans import prompts
from tests.engine.cache.reading import decoder

COUNT = 90


def budgets(selection, layers=3):
    tokens = np.array([[30, 20], [40, 10], [25, 25]])[:layers]
    bits = np.full((*tokens.shape, 2), 16)
    # of a key and a value in float32, and of weights
    nbytes = tokens * (2 * 32 + 4)
    return Budgets(tokens, np.full(tokens.shape, 0.75), bits, nbytes, selection)


@pytest.mark.parametrize("selection", ["sample", "topk"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_everything_keeps_as_much_in_layers_without_a_window(name, selection):
    loaded, ids = decoder(name), prompts([COUNT])[0].numpy()
    rules = tuple(RULES.values())
    prompt = ObservedPrompt(loaded, ids, Keeping(sinks=2, recent=4), rules=rules)
    planned = budgets(selection)
    reduced = list(prompt.scores)
    assert reduced == ([0, 1, 2] if name == "llama" else [1])
    each = np.full_like(planned.tokens, 25)
    both = {"planned": planned, "uniform": planned._replace(tokens=each)}
    result = kept_layers(prompt, both, rules, ("a prompt", 0), 0)
    assert set(result) == {"planned", "uniform", *(rule.name for rule in rules)}
    for name, layers in result.items():
        assert list(layers) == reduced
        # rules need no weights: one more token fits into the bytes of 25 with weights
        assert count_kept(layers) == (25 if name in both else 26) * 2 * len(reduced)
        # and a cache holds just that
        cache = prompt.reduced(layers)
        assert [list(map(len, (kept.index for kept in layers[i]))) for i in reduced] == cache.kept[
            reduced if len(cache.kept) == 3 else slice(None)
        ].tolist()
    # the samples of another prompt are others
    other = kept_layers(prompt, both, rules, ("a prompt", 1), 0)
    same = all(
        a.index.tolist() == b.index.tolist()
        for layer in reduced
        for a, b in zip(result["planned"][layer], other["planned"][layer], strict=True)
    )
    assert same == (selection == "topk")
