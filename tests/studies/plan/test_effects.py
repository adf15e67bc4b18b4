"""What keeping some keys of a head costs, predicted and measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.attention.bits import ALL_BITS
from esscher.engine.cache.budgets import POWERS
from esscher.engine.cache.scores import prompt_scores
from esscher.engine.cache.selection import (
    Inclusion,
    certain_keys,
    reduced_attention,
    select_keys,
)
from esscher.engine.cache.storage import Kept
from esscher.studies.plan.effects import (
    LARGEST,
    SELECTIONS,
    layer_effects,
)
from tests.engine.cache.inputs import layer_inputs


def effects_of(inputs, prefix, gradients, sizes):
    certain = certain_keys(prefix, 1, 2)
    scores = prompt_scores(inputs, "last", None)[:, :prefix]
    return scores, certain, layer_effects(inputs, gradients, scores, certain, np.array(sizes))


def test_effects_are_those_of_many_samples() -> None:
    """To first order in 1/n, with every key included or not by itself, as the formula has it."""
    inputs, prefix = layer_inputs(keys=3000, queries=4, strength=0.5, seed=2), 2996
    gradients = torch.randn(2, 4, 4, 5, generator=torch.Generator().manual_seed(5))
    scores, certain, (effect, square, _) = effects_of(inputs, prefix, gradients, [600])
    others = np.flatnonzero(~certain)
    dense = inputs.attend(torch.float32)
    rng = np.random.default_rng(0)
    squares, moves = [], []
    for _ in range(300):
        kept = []
        for g in range(2):
            head_scores = scores[g].numpy().astype(np.float64)[others]
            probabilities = Inclusion(head_scores, POWERS[1]).probabilities(597)
            taken = rng.random(len(head_scores)) < probabilities
            index = np.concatenate([np.flatnonzero(certain), others[taken]])
            weight = np.concatenate([np.zeros(3), -np.log(probabilities[taken])])
            kept.append(Kept(torch.from_numpy(index), torch.from_numpy(weight).float()))
        delta = reduced_attention(inputs, kept, prefix) - dense[0]
        squares.append(delta.square().sum(-1).mean(-1).double().numpy())
        per_head = torch.einsum("hqd,rhqd->rh", delta, gradients)
        grouped = per_head.reshape(2, 2, 2).sum(-1).square().mean(0) / 2
        moves.append(grouped.double().numpy())
    for measured, predicted in (
        (np.array(squares), square[:, 1, 0, 0]),
        (np.array(moves), effect[:, 1, 0, 0]),
    ):
        error = measured.std(axis=0, ddof=1) / np.sqrt(len(measured))
        # 5 standard errors, and 5% for the next order in 1/n
        assert np.all(np.abs(measured.mean(axis=0) - predicted) < 5 * error + 0.05 * predicted)


def test_all_keys_cost_nothing() -> None:
    inputs, prefix = layer_inputs(), 34
    gradients = torch.randn(3, 4, 6, 5, generator=torch.Generator().manual_seed(5))
    _, _, (effect, square, _) = effects_of(inputs, prefix, gradients, [4, 34])
    assert np.all(effect[:, :, 0, 1] == 0)
    assert np.all(square[:, :, 0, 1] == 0)
    assert np.all(effect[:, :, 0, 0] > 0)
    # fewer bits cost more, whatever is kept
    assert np.all(np.diff(effect[:, :LARGEST], axis=2) > 0)
    assert np.isnan(effect[:, LARGEST, 1:]).all()


def test_effects_of_the_largest_are_squares_of_what_they_move() -> None:
    inputs, prefix = layer_inputs(keys=120, queries=4, seed=4, softcap=3.0), 116
    gradients = torch.randn(3, 4, 4, 5, generator=torch.Generator().manual_seed(5))
    sizes = [4, 20, 70, 116]
    scores, certain, (effect, square, _) = effects_of(inputs, prefix, gradients, sizes)
    dense = inputs.attend(torch.float32)[0]
    for s, size in enumerate(sizes):
        kept = [select_keys("topk", head_scores, certain, size) for head_scores in scores]
        delta = reduced_attention(inputs, kept, prefix) - dense
        error = delta.square().sum(-1).mean(-1)
        # query heads that share keys are moved together
        moves = torch.einsum("rhqd,hqd->rh", gradients, delta).reshape(3, 2, 2).sum(-1)
        moved = moves.square().mean(0) / 2
        np.testing.assert_allclose(square[:, LARGEST, 0, s], error, rtol=1e-3, atol=1e-9)
        np.testing.assert_allclose(effect[:, LARGEST, 0, s], moved, rtol=1e-3, atol=1e-9)
    assert effect.shape == (2, len(SELECTIONS), 4, 4)
    assert np.all(np.diff(square[:, LARGEST, 0]).sum(-1) < 0)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_effects_of_rounding_are_those_of_codes(bits) -> None:
    """With all keys kept, what is left is rounding: errors of keys are as good as independent."""
    inputs, prefix = layer_inputs(keys=1064, queries=64, strength=1.0, seed=3), 1000
    gradients = torch.randn(4, 4, 64, 5, generator=torch.Generator().manual_seed(5))
    _, certain, (_, square, _) = effects_of(inputs, prefix, gradients, [prefix])
    everything = Kept(torch.arange(prefix), torch.zeros(prefix))
    kept = [everything.in_codes(ALL_BITS[bits], certain)] * 2
    delta = reduced_attention(inputs, kept, prefix) - inputs.attend(torch.float32)[0]
    realised = delta.square().sum(-1).mean()
    # 5 standard errors of a mean square of so many numbers, and 5% for the next order
    error = 5 * np.sqrt(2 / delta.numel()) + 0.05
    assert square[:, 1, bits, 0].mean() == pytest.approx(float(realised), rel=error)
