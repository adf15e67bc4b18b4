"""What keeping some keys of a head costs, predicted and measured."""

from __future__ import annotations

import numpy as np
import torch

from esscher.engine.cache.budgets import POWERS
from esscher.engine.cache.observation import observe
from esscher.engine.cache.selection import (
    Kept,
    certain_keys,
    inclusion_probabilities,
    reduced_attention,
    select_sample,
)
from esscher.studies.plan.effects import SAMPLES, layer_effects, swept_effects
from tests.engine.cache.inputs import layer_inputs


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
