"""Selection inside a head, and attention on what is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from esscher.engine.cache.budgets import POWERS
from esscher.engine.cache.selection import (
    Inclusion,
    PlannedRule,
    certain_keys,
    reduced_attention,
    select_keys,
    systematic_sample,
)
from esscher.engine.cache.storage import Kept
from tests.engine.cache.inputs import layer_inputs
from tests.engine.cache.plans import SHORT, budgets_for
from tests.engine.models.tiny import tiny_model


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("n", [1, 7, 50, 99])
def test_inclusion_probabilities_sum_to_the_budget(n: int, power: float) -> None:
    scores = np.random.default_rng(n).lognormal(0.0, 2.0, 100)
    result = Inclusion(scores, power).probabilities(n)
    assert result.sum() == pytest.approx(n)
    assert result.min() > 0
    assert result.max() <= 1
    # a larger score never has a smaller probability
    assert np.all(np.diff(result[np.argsort(scores)]) >= -1e-12)


def test_every_key_when_the_budget_allows_and_none_preferred_without_scores() -> None:
    assert Inclusion(np.ones(5), 1.0).probabilities(5).tolist() == [1.0] * 5
    assert Inclusion(np.zeros(4), 1.0).probabilities(2).tolist() == [0.5] * 4


@pytest.mark.parametrize("power", POWERS)
def test_the_excess_of_all_sizes_is_that_of_the_probabilities(power: float) -> None:
    rng = np.random.default_rng(3)
    scores, costs = rng.lognormal(0.0, 3.0, 200), rng.exponential(size=(3, 200))
    costs[1, ::2] = 0.0
    sizes = np.array([1, 2, 10, 77, 150, 199, 200])
    for x in (scores, np.repeat(scores[:50], 4), np.zeros(200), np.ones(200)):
        result = Inclusion(x, power)
        direct = [costs @ (1 / result.probabilities(int(n)) - 1) for n in sizes]
        np.testing.assert_allclose(
            result.excess(costs, sizes), np.stack(direct, -1), rtol=1e-9, atol=1e-11
        )


def test_systematic_samples_have_the_given_probabilities() -> None:
    rng = np.random.default_rng(0)
    probabilities = Inclusion(rng.lognormal(0.0, 1.5, 30), 0.75).probabilities(12)
    draws = 4000
    counts = np.zeros(30)
    for _ in range(draws):
        sample = systematic_sample(probabilities, rng.random())
        assert len(sample) == 12
        counts[sample] += 1
    error = np.sqrt(probabilities * (1 - probabilities) / draws)
    assert np.all(np.abs(counts / draws - probabilities) <= 4.5 * error + 1e-9)


def test_all_keys_are_dense_attention() -> None:
    for changes in ({}, {"softcap": 2.0}, {"window": 12}):
        inputs = layer_inputs(**changes)
        everything = Kept(torch.arange(34), torch.zeros(34))
        result = reduced_attention(inputs, [everything] * 2, 34)[None]
        torch.testing.assert_close(result, inputs.attend(torch.float32), rtol=1e-5, atol=1e-6)


def test_kept_keys_are_dense_attention_with_a_bias() -> None:
    """Against the definition: logits over all keys, plus the log-weight, minus infinity."""
    inputs = layer_inputs(bias=torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(3)))
    kept = [
        Kept(torch.tensor([0, 3, 9]), torch.tensor([0.0, 1.0, 0.5])),
        Kept(torch.tensor([1, 30]), torch.tensor([0.2, 0.0])),
    ]
    result = reduced_attention(inputs, kept, 34)[None]
    for h in range(4):
        extra = torch.full((40,), -math.inf)
        extra[34:] = 0.0
        extra[kept[h // 2].index] = kept[h // 2].log_weight
        weights = torch.softmax(inputs.logits(0, h) + extra, dim=-1)
        expected = (weights @ inputs.v[0, h // 2].double()).float()
        torch.testing.assert_close(result[0, h], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("selection", ["sample", "topk"])
@pytest.mark.parametrize("power", POWERS)
def test_a_budget_is_kept_to(power: float, selection: str) -> None:
    certain = certain_keys(60, 2, 5)
    scores = torch.from_numpy(np.random.default_rng(1).exponential(size=60))
    for budget in (8, 30, 59):
        kept = select_keys(selection, scores, certain, budget, power, 0.3)
        assert len(kept.index) == budget
        assert set(np.flatnonzero(certain)) <= set(kept.index.tolist())
        assert torch.all(kept.log_weight >= 0)
        assert torch.all(kept.log_weight[torch.from_numpy(certain[kept.index])] == 0)
    assert len(select_keys(selection, scores, certain, 60, power, 0.3).index) == 60
    # what is certain is never dropped
    assert len(select_keys(selection, scores, certain, 3, power, 0.3).index) == 7


def test_the_largest_scores_are_kept() -> None:
    scores = torch.tensor([0.0, 5.0, 1.0, 4.0, 3.0, 0.0])
    kept = select_keys("topk", scores, certain_keys(6, 1, 1), 4)
    assert kept.index.tolist() == [0, 1, 3, 5]
    assert kept.log_weight.tolist() == [0.0] * 4


def test_weights_stay_unbiased_however_often_tokens_are_selected() -> None:
    """E of the weight of a token, 0 where it was dropped, is 1 after one, two and three turns."""
    loaded = tiny_model("llama")
    rng, seeds = np.random.default_rng(0), 1500
    first, later = rng.lognormal(0, 1.5, 60), rng.lognormal(0, 1.5, (2, 30))
    sums, squares = np.zeros(120), np.zeros(120)
    for seed in range(seeds):
        rule = PlannedRule(loaded, budgets_for(loaded, 0.3), seed)
        index, weight = np.arange(60), np.zeros(60)
        scores = first
        for turn in range(1, 4):
            seen = 60 + 30 * (turn - 1)
            weights = torch.from_numpy(weight)
            kept = rule.keep_again(1, 0, torch.from_numpy(scores), weights, seen, 0, turn)
            index = index[kept.index]
            weight = weight[kept.index] + kept.log_weight.numpy()
            assert len(index) == np.ceil(0.3 * seen)
            if turn < 3:
                new = np.arange(seen, seen + 30)
                scores = np.concatenate([first, *later])[np.concatenate([index, new])]
                index = np.concatenate([index, new])
                weight = np.concatenate([weight, np.zeros(30)])
        weights_now = np.zeros(120)
        weights_now[index] = np.exp(weight)
        assert np.all(weights_now[: SHORT.sinks] == 1.0)
        sums += weights_now
        squares += weights_now**2
    mean = sums / seeds
    error = np.sqrt((squares / seeds - mean**2) / seeds)
    # 4 standard errors for 118 tokens; some are kept for certain
    assert np.all(np.abs(mean - 1) <= 4 * error + 1e-6)
    assert np.sum(error > 0) > 80


def test_a_length_makes_budgets_absolute() -> None:
    loaded = tiny_model("llama")
    shares, fixed = (PlannedRule(loaded, budgets_for(loaded, 0.25), 0, n) for n in (None, 400))
    assert shares.tokens(0, 4000).tolist() == [1000, 1000]
    assert fixed.tokens(0, 4000).tolist() == [100, 100]
    assert fixed.tokens(0, 200).tolist() == [50, 50]
