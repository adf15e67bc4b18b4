"""What planned and uniform budgets and published rules keep of a prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.cache.budgets import Keeping
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import RULES, rule_named
from esscher.engine.cache.selection import certain_keys
from esscher.studies.plan.check import Budgets, Chosen, count_kept, kept_layers
from tests.engine.cache.plans import prompts
from tests.engine.cache.reading import decoder

COUNT = 90
CERTAIN = certain_keys(COUNT, 2, 4)


def budgets(selection, layers=3):
    tokens = np.array([[30, 20], [40, 10], [25, 25]])[:layers]
    return Budgets(tokens, np.full_like(tokens, 1), selection)


@pytest.mark.parametrize("start", [0.0, 0.7])
def test_topk_keeps_the_largest_scores(start):
    scores = torch.from_numpy(np.random.default_rng(0).lognormal(0, 1, COUNT))
    kept = budgets("topk").select(1, 0, scores, CERTAIN, start)
    assert kept.index.tolist() == sorted(kept.index.tolist())
    assert bool((kept.log_weight == 0).all())
    certain, others = np.flatnonzero(CERTAIN), np.flatnonzero(~CERTAIN)
    best = others[np.argsort(-scores.numpy()[others])[: 40 - len(certain)]]
    assert set(kept.index.tolist()) == {*certain.tolist(), *best.tolist()}


def test_a_sample_has_weights_and_as_many_tokens():
    scores = torch.from_numpy(np.random.default_rng(0).lognormal(0, 1, COUNT))
    found = [budgets("sample").select(1, 0, scores, CERTAIN, start) for start in (0.0, 0.7)]
    assert [len(kept.index) for kept in found] == [40, 40]
    assert all(bool((kept.log_weight > 0).any()) for kept in found)
    assert found[0].index.tolist() != found[1].index.tolist()


@pytest.mark.parametrize("selection", ["sample", "topk"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_everything_keeps_as_much_in_layers_without_a_window(name, selection):
    loaded, ids = decoder(name), prompts([COUNT])[0].numpy()
    rules = (*RULES.values(), rule_named("adakv:expected"))
    prompt = ObservedPrompt(loaded, ids, Keeping(sinks=2, recent=4), rules=rules)
    planned = budgets(selection)
    reduced = list(prompt.scores)
    assert reduced == ([0, 1, 2] if name == "llama" else [1])
    each = np.full_like(planned.tokens, 25)
    uniform = Budgets(each, planned.powers, selection)
    chosen = Chosen(planned, uniform, rules)
    found = kept_layers(prompt, chosen, ("a prompt", 0), 0)
    assert set(found) == {"planned", "uniform", *(rule.name for rule in rules)}
    for own in found.values():
        assert list(own) == reduced
        assert count_kept(own) == 25 * 2 * len(reduced)
        # and a cache holds just that
        cache = prompt.reduced(own)
        assert [list(map(len, (kept.index for kept in own[i]))) for i in reduced] == cache.kept[
            reduced if len(cache.kept) == 3 else slice(None)
        ].tolist()
    # the samples of another prompt are others
    other = kept_layers(prompt, chosen, ("a prompt", 1), 0)
    same = all(
        a.index.tolist() == b.index.tolist()
        for layer in reduced
        for a, b in zip(found["planned"][layer], other["planned"][layer], strict=True)
    )
    assert same == (selection == "topk")
