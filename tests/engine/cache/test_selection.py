"""Selection inside a head, and attention on what is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from esscher.engine.cache.budgets import POWERS
from esscher.engine.cache.selection import (
    Inclusion,
    Kept,
    certain_keys,
    reduced_attention,
    select_largest,
    select_sample,
    spread_starts,
    systematic_sample,
)
from tests.engine.cache.inputs import layer_inputs


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("n", [1, 7, 50, 99])
def test_inclusion_probabilities_sum_to_the_budget(n: int, power: float) -> None:
    scores = np.random.default_rng(n).lognormal(0.0, 2.0, 100)
    found = Inclusion(scores, power).probabilities(n)
    assert found.sum() == pytest.approx(n)
    assert found.min() > 0
    assert found.max() <= 1
    # a larger score never has a smaller probability
    assert np.all(np.diff(found[np.argsort(scores)]) >= -1e-12)


def test_every_key_when_the_budget_allows_and_none_preferred_without_scores() -> None:
    assert Inclusion(np.ones(5), 1.0).probabilities(5).tolist() == [1.0] * 5
    assert Inclusion(np.zeros(4), 1.0).probabilities(2).tolist() == [0.5] * 4


@pytest.mark.parametrize("power", POWERS)
def test_the_excess_of_all_sizes_is_that_of_the_probabilities(power: float) -> None:
    rng = np.random.default_rng(3)
    scores, costs = rng.lognormal(0.0, 3.0, 200), rng.exponential(size=(3, 200))
    costs[1, ::2] = 0.0
    sizes = np.array([1, 2, 10, 77, 150, 199, 200])
    for own in (scores, np.repeat(scores[:50], 4), np.zeros(200), np.ones(200)):
        found = Inclusion(own, power)
        direct = [costs @ (1 / found.probabilities(int(n)) - 1) for n in sizes]
        np.testing.assert_allclose(
            found.excess(costs, sizes), np.stack(direct, -1), rtol=1e-9, atol=1e-11
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


@pytest.mark.parametrize("power", POWERS)
def test_a_budget_is_kept_to(power: float) -> None:
    certain = certain_keys(60, 2, 5)
    scores = torch.from_numpy(np.random.default_rng(1).exponential(size=60))
    for budget in (8, 30, 59):
        for kept in (
            select_sample(scores, certain, budget, power, 0.3),
            select_largest(scores, certain, budget),
        ):
            assert len(kept.index) == budget
            assert set(np.flatnonzero(certain)) <= set(kept.index.tolist())
            assert torch.all(kept.log_weight >= 0)
            assert torch.all(kept.log_weight[torch.from_numpy(certain[kept.index])] == 0)
    assert len(select_sample(scores, certain, 60, power, 0.3).index) == 60
    # what is certain is never dropped
    assert len(select_sample(scores, certain, 3, power, 0.3).index) == 7
    assert len(select_largest(scores, certain, 3).index) == 7


def test_the_largest_scores_are_kept() -> None:
    scores = torch.tensor([0.0, 5.0, 1.0, 4.0, 3.0, 0.0])
    kept = select_largest(scores, certain_keys(6, 1, 1), 4)
    assert kept.index.tolist() == [0, 1, 3, 5]
    assert kept.log_weight.tolist() == [0.0] * 4


def test_all_keys_are_dense_attention() -> None:
    for changes in ({}, {"softcap": 2.0}, {"window": 12}):
        inputs = layer_inputs(**changes)
        everything = Kept(torch.arange(34), torch.zeros(34))
        found = reduced_attention(inputs, [everything] * 2, 34)[None]
        torch.testing.assert_close(found, inputs.attend(torch.float32), rtol=1e-5, atol=1e-6)


def test_kept_keys_are_dense_attention_with_a_bias() -> None:
    """Against the definition: logits over all keys, plus the log-weight, minus infinity."""
    inputs = layer_inputs(bias=torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(3)))
    kept = [
        Kept(torch.tensor([0, 3, 9]), torch.tensor([0.0, 1.0, 0.5])),
        Kept(torch.tensor([1, 30]), torch.tensor([0.2, 0.0])),
    ]
    found = reduced_attention(inputs, kept, 34)[None]
    for h in range(4):
        extra = torch.full((40,), -math.inf)
        extra[34:] = 0.0
        extra[kept[h // 2].index] = kept[h // 2].log_weight
        weights = torch.softmax(inputs.logits(0, h) + extra, dim=-1)
        expected = (weights @ inputs.v[0, h // 2].double()).float()
        torch.testing.assert_close(found[0, h], expected, rtol=1e-5, atol=1e-6)


def test_starts_of_several_samples_are_spread() -> None:
    np.testing.assert_allclose(spread_starts(0.9, 4), [0.9, 0.15, 0.4, 0.65])
    np.testing.assert_allclose(spread_starts(0.3, 1), [0.3])
