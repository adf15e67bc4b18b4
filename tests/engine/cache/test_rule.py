"""What is kept, once and again, stands for all tokens: sums over it are unbiased."""

from __future__ import annotations

import numpy as np
import torch

from esscher.engine.cache.scores import Observation, observe, scores_again
from esscher.engine.cache.selection import PlannedRule
from tests.engine.cache.inputs import layer_inputs
from tests.engine.cache.plans import SHORT, budgets_for
from tests.engine.models.tiny import tiny_model


def test_scores_of_all_keys_are_those_of_the_observation():
    inputs = layer_inputs(queries=6, keys=40, softcap=3.0)
    expected = observe(inputs).score(inputs.v[0])
    visible = inputs.pattern()
    for g in range(2):
        found = scores_again(
            inputs.q[0, 2 * g : 2 * g + 2],
            inputs.k[0, g],
            inputs.v[0, g],
            torch.zeros(40),
            visible,
            inputs.scaling,
            inputs.softcap,
        )
        torch.testing.assert_close(found, expected[g], rtol=1e-4, atol=1e-7)


def test_a_key_that_stands_for_two_has_the_score_of_two():
    """Two equal keys, against one of them with the weight 2."""
    inputs = layer_inputs(queries=6, keys=40)
    keys, values = (torch.cat([x[0, 0], x[0, 0, :1]]) for x in (inputs.k, inputs.v))
    seen = torch.ones(6, 41, dtype=torch.bool)
    options = (inputs.scaling, None)
    query = inputs.q[0, :2]
    twice = scores_again(query, keys, values, torch.zeros(41), seen, *options)
    weight = torch.zeros(40)
    weight[0] = np.log(2.0)
    once = scores_again(query, keys[:40], values[:40], weight, seen[:, :40], *options)
    torch.testing.assert_close(once[1:], twice[1:40], rtol=1e-4, atol=1e-7)
    # its square counts four times where two squares count twice
    torch.testing.assert_close(once[0], 2 * twice[0], rtol=1e-4, atol=1e-7)


def test_weights_stay_unbiased_however_often_tokens_are_judged():
    """E of the weight of a token, 0 where it was dropped, is 1 after one, two and three turns."""
    loaded = tiny_model("llama")
    rng, seeds = np.random.default_rng(0), 1500
    first, later = rng.lognormal(0, 1.5, 60), rng.lognormal(0, 1.5, (2, 30))
    sums, squares = np.zeros(120), np.zeros(120)
    for seed in range(seeds):
        rule = PlannedRule(budgets_for(loaded, 0.3), seed)
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
        found = np.zeros(120)
        found[index] = np.exp(weight)
        assert np.all(found[: SHORT.sinks] == 1.0)
        sums += found
        squares += found**2
    mean = sums / seeds
    error = np.sqrt((squares / seeds - mean**2) / seeds)
    # 4 standard errors for 118 tokens; some are kept for certain
    assert np.all(np.abs(mean - 1) <= 4 * error + 1e-6)
    assert np.sum(error > 0) > 80


def test_a_length_makes_budgets_absolute():
    loaded = tiny_model("llama")
    shares, fixed = (PlannedRule(budgets_for(loaded, 0.25), 0, n) for n in (None, 400))
    assert shares.tokens(0, 4000).tolist() == [1000, 1000]
    assert fixed.tokens(0, 4000).tolist() == [100, 100]
    assert fixed.tokens(0, 200).tolist() == [50, 50]


def test_observed_queries_of_a_layer_are_those_of_each_head():
    """All heads at once, against the logits of one head after the other."""
    for changes in ({}, {"softcap": 2.0}, {"window": 12}, {"causal": False}):
        inputs = layer_inputs(queries=34, keys=34, **changes)
        found = observe(inputs, window=9)
        rows = np.arange(25, 34) if inputs.causal else np.linspace(0, 33, 9).round().astype(int)
        squares, outputs = [], []
        for h in range(4):
            weights = torch.softmax(inputs.logits(0, h, dtype=torch.float64)[rows], dim=-1)
            squares.append(weights.square().mean(0))
            outputs.append((weights @ inputs.v[0, h // 2].double()).mean(0))
        expected = Observation(torch.stack(squares), found.received, torch.stack(outputs))
        torch.testing.assert_close(found.square.double(), expected.square, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(found.output.double(), expected.output, rtol=1e-4, atol=1e-6)
