"""Selection inside a head, and attention on what is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from esscher.studies.plan.budgets import POWERS
from esscher.studies.plan.effects import SAMPLES, layer_effects, swept_effects
from esscher.studies.plan.observation import observe
from esscher.studies.plan.selection import (
    Kept,
    certain_keys,
    inclusion_probabilities,
    reduced_attention,
    select_largest,
    select_sample,
    spread_starts,
    systematic_sample,
)
from tests.studies.plan.inputs import layer_inputs


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("n", [1, 7, 50, 99])
def test_inclusion_probabilities_sum_to_the_budget(n: int, power: float) -> None:
    scores = np.random.default_rng(n).lognormal(0.0, 2.0, 100)
    found = inclusion_probabilities(scores, n, power)
    assert found.sum() == pytest.approx(n)
    assert found.min() > 0
    assert found.max() <= 1
    # a larger score never has a smaller probability
    assert np.all(np.diff(found[np.argsort(scores)]) >= -1e-12)


def test_every_key_when_the_budget_allows_and_none_preferred_without_scores() -> None:
    assert inclusion_probabilities(np.ones(5), 5, 1.0).tolist() == [1.0] * 5
    assert inclusion_probabilities(np.zeros(4), 2, 1.0).tolist() == [0.5] * 4


def test_systematic_samples_have_the_given_probabilities() -> None:
    rng = np.random.default_rng(0)
    probabilities = inclusion_probabilities(rng.lognormal(0.0, 1.5, 30), 12, 0.75)
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


def effects_of(inputs, prefix, gradients, sizes):
    certain = certain_keys(prefix, 1, 2)
    seen = observe(inputs)
    scores = seen.score(inputs.v[0])[:, :prefix]
    return scores, certain, layer_effects(inputs, gradients, scores, certain, np.array(sizes))


def test_effects_are_those_of_many_samples() -> None:
    """To first order in 1/n, with every key included or not by itself, as the formula has it."""
    inputs, prefix = layer_inputs(keys=3000, queries=4, strength=0.5, seed=2), 2996
    gradients = torch.randn(2, 4, 4, 5, generator=torch.Generator().manual_seed(5))
    scores, certain, found = effects_of(inputs, prefix, gradients, [600])
    others = np.flatnonzero(~certain)
    dense = inputs.attend(torch.float32)
    rng = np.random.default_rng(0)
    squares, moves = [], []
    for _ in range(300):
        kept = []
        for g in range(2):
            own = scores[g].numpy().astype(np.float64)[others]
            probabilities = inclusion_probabilities(own, 597, POWERS[1])
            taken = rng.random(len(own)) < probabilities
            index = np.concatenate([np.flatnonzero(certain), others[taken]])
            weight = np.concatenate([np.zeros(3), -np.log(probabilities[taken])])
            kept.append(Kept(torch.from_numpy(index), torch.from_numpy(weight).float()))
        delta = reduced_attention(inputs, kept, prefix) - dense[0]
        squares.append(delta.square().sum(-1).mean(-1).double().numpy())
        per_head = torch.einsum("hqd,rhqd->rh", delta, gradients)
        grouped = per_head.reshape(2, 2, 2).sum(-1).square().mean(0) / 2
        moves.append(grouped.double().numpy())
    for measured, predicted in (
        (np.array(squares), found.square[:, 1, 0]),
        (np.array(moves), found.effect[:, 1, 0]),
    ):
        error = measured.std(axis=0, ddof=1) / np.sqrt(len(measured))
        # 5 standard errors, and 5% for the next order in 1/n
        assert np.all(np.abs(measured.mean(axis=0) - predicted) < 5 * error + 0.05 * predicted)


def test_all_keys_cost_nothing() -> None:
    inputs, prefix = layer_inputs(), 34
    gradients = torch.randn(3, 4, 6, 5, generator=torch.Generator().manual_seed(5))
    _, _, found = effects_of(inputs, prefix, gradients, [4, 34])
    assert np.all(found.effect[..., 1] == 0)
    assert np.all(found.square[..., 1] == 0)
    assert np.all(found.effect[..., 0] > 0)


def test_swept_effects_are_those_of_the_samples() -> None:
    inputs, prefix = layer_inputs(keys=300, queries=4, seed=3), 296
    gradients = torch.randn(2, 4, 4, 5, generator=torch.Generator().manual_seed(5))
    certain, scores = certain_keys(prefix, 1, 2), observe(inputs).score(inputs.v[0])[:, :prefix]
    starts = [0.3, 0.8]
    found = swept_effects(
        inputs, gradients, scores, certain, np.array([40, 296]), starts.__getitem__
    )
    dense = inputs.attend(torch.float32)[0]
    effects, squares = [], []
    for draw in range(SAMPLES):
        kept = [
            select_sample(scores[g], certain, 40, POWERS[2], (starts[g] + draw / SAMPLES) % 1)
            for g in range(2)
        ]
        delta = reduced_attention(inputs, kept, prefix) - dense
        squares.append(delta.square().sum(-1).mean(-1))
        moves = torch.stack(
            [(gradients[:, h : h + 2] * delta[h : h + 2]).sum((1, 2, 3)) for h in (0, 2)]
        )
        effects.append(moves.square().mean(1) / 2)
    np.testing.assert_allclose(found.effect[:, 2, 0], torch.stack(effects).mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.square[:, 2, 0], torch.stack(squares).mean(0), rtol=1e-5)
    # all keys: nothing but rounding
    assert np.all(found.effect[..., 1] < 1e-9)


def test_starts_of_several_samples_are_spread() -> None:
    np.testing.assert_allclose(spread_starts(0.9, 4), [0.9, 0.15, 0.4, 0.65])
    np.testing.assert_allclose(spread_starts(0.3, 1), [0.3])
