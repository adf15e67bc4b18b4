"""Least-squares fits of values and weights to the prompt's own attention outputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from esscher.engine.cache.scores import QUERIES, QueryTargets, observe_prompt
from esscher.engine.cache.selection import (
    LARGEST_CHANGE,
    certain_keys,
    fit_kept,
    ridge_solution,
    select_keys,
)
from esscher.engine.cache.storage import Kept
from tests.engine.cache.inputs import layer_inputs


def prompt(keys=200, **options):
    """A layer that reads a prompt at once."""
    return layer_inputs(queries=keys, keys=keys, **options)


def prompt_targets(inputs, most=QUERIES):
    return observe_prompt(inputs, "all", None, most=most)[1]


def sample(inputs, g, budget=40, seed=0):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.exponential(size=inputs.k.shape[2]))
    certain = certain_keys(inputs.k.shape[2], 2, 4)
    return select_keys("sample", scores, certain, budget, 1.0, rng.random())


def answer(targets: QueryTargets, kept: Kept, keys, values):
    """Numerators and denominators of the queries that attend, over those of all keys."""
    logits = targets.query @ keys[kept.index].T
    if targets.softcap is not None:
        logits = torch.tanh(logits / targets.softcap) * targets.softcap
    if targets.bias is not None:
        logits = logits + targets.bias[:, kept.index]
    shares = (logits + kept.log_weight - targets.log_sum[:, None]).exp()
    fitted = values[kept.index] if kept.values is None else kept.values
    return shares @ fitted, shares.sum(-1)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("heads", [2, 4])
def test_what_queries_get_from_all_keys(heads, softcap):
    bias = 0.3 * torch.randn(heads, 200, 200, generator=torch.Generator().manual_seed(1))
    inputs = prompt(heads=heads, softcap=softcap, bias=bias)
    # without an embedding of positions a moved query is the query, and sees all keys
    seen = dataclasses.replace(inputs, causal=False, bias=bias[:, -1:].expand(-1, 200, -1))
    every = seen.attend(torch.float32)[0]
    for g, targets in enumerate(prompt_targets(inputs, most=60)):
        each = 60 // inputs.group
        rows = torch.linspace(0, 199, each).round().long()
        expected = every[g * inputs.group : (g + 1) * inputs.group, rows].flatten(0, 1)
        torch.testing.assert_close(targets.output, expected, rtol=1e-4, atol=1e-5)
        everything = Kept(torch.arange(200), torch.zeros(200))
        output, total = answer(targets, everything, inputs.k[0, g], inputs.v[0, g])
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(total, torch.ones(len(total)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [20, 300])
def test_a_fit_is_closer_to_its_targets(most):
    """Exact without a ridge if there are fewer queries than keys; closer than the sample else."""
    inputs = prompt(strength=2.0)
    for g, targets in enumerate(prompt_targets(inputs, most=most)):
        keys, values, kept = inputs.k[0, g], inputs.v[0, g], sample(inputs, g)

        def error(result, targets=targets, keys=keys, values=values):
            # of the numerators: denominators follow only as far as weights may change
            return float((answer(targets, result, keys, values)[0] - targets.output).square().sum())

        result = fit_kept(kept, targets, keys, values)
        before, after = error(kept), error(result)
        assert after < 0.5 * before
        sums = [answer(targets, each, keys, values)[1] - 1 for each in (kept, result)]
        assert float(sums[1].square().sum()) < 0.7 * float(sums[0].square().sum())
        exact = fit_kept(kept, targets, keys, values, ridge=1e-7)
        if most == 20:
            assert error(exact) < 1e-4 * before
        assert error(exact) <= after * (1 + 1e-6)


def test_what_no_query_sees_stays_as_it_is():
    inputs = prompt()
    (targets, *_), keys, values = prompt_targets(inputs), inputs.k[0, 0], inputs.v[0, 0]
    far = dataclasses.replace(targets, bias=torch.full((len(targets.query), 200), -200.0))
    kept = sample(inputs, 0)
    result = fit_kept(kept, far, keys, values)
    torch.testing.assert_close(result.log_weight, kept.log_weight)
    torch.testing.assert_close(result.values, values[kept.index])
    everything = Kept(torch.arange(200), torch.zeros(200))
    assert fit_kept(everything, targets, keys, values) is everything


def test_weights_stay_positive_and_within_bounds():
    inputs = prompt(strength=6.0)
    for g, targets in enumerate(prompt_targets(inputs)):
        kept = sample(inputs, g, budget=12, seed=g)
        result = fit_kept(kept, targets, inputs.k[0, g], inputs.v[0, g])
        assert torch.equal(result.index, kept.index)
        change = (result.log_weight - kept.log_weight).abs()
        assert bool((change <= np.log(LARGEST_CHANGE) + 1e-5).all())
        assert bool(torch.isfinite(result.values).all())


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (12, 12)])
def test_ridge_regression(shape):
    generator = torch.Generator().manual_seed(0)
    matrix, aim = (torch.randn(*x, generator=generator) for x in (shape, (shape[0], 3)))
    size = 0.2 * matrix.square().sum(0).mean()
    square = matrix.T @ matrix + size * torch.eye(shape[1])
    expected = torch.linalg.solve(square, matrix.T @ aim)
    torch.testing.assert_close(ridge_solution(matrix, aim, 0.2), expected, rtol=1e-4, atol=1e-5)
    assert not ridge_solution(torch.zeros(shape), aim, 0.2).any()


def test_other_keys_are_taken_as_they_are():
    """Without a ridge, and fewer queries than keys, both together answer as all keys do."""
    inputs = prompt()
    (targets, *_), keys, values = (
        prompt_targets(inputs, most=20),
        inputs.k[0, 0],
        inputs.v[0, 0],
    )
    kept, others = sample(inputs, 0), torch.arange(150, 200)
    kept = Kept(kept.index[kept.index < 150], kept.log_weight[kept.index < 150])
    result = fit_kept(kept, targets, keys, values, others, ridge=1e-7)
    output, _ = answer(targets, result, keys, values)
    rest, _ = answer(targets, Kept(others, torch.zeros(50)), keys, values)
    torch.testing.assert_close(output + rest, targets.output, rtol=1e-2, atol=1e-2)
