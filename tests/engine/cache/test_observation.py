"""All queries of a prompt, asked from places behind it, by their definition."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest
import torch

from esscher.engine.cache.scores import (
    AHEAD,
    GOLDEN,
    Observation,
    combined,
    observe_all,
)
from esscher.engine.cache.selection import PlannedRule
from esscher.engine.models import attention_override
from esscher.engine.models.weights import rotate, rotate_back, rotation_of
from tests.engine.cache.inputs import layer_inputs
from tests.engine.cache.plans import budgets_for, padded, prompts, room_for
from tests.engine.models.tiny import tiny_model

YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 40,
    "rope_theta": 10_000.0,
}
#: Rotary positions, the same with a scale, a soft cap, two kinds of rotation, and none in a layer.
MODELS = {
    "llama": {},
    "yarn": {"rope_parameters": YARN},
    "gemma2": {},
    "gemma3_text": {},
    "smollm3": {},
}


def model(name):
    family = "llama" if name == "yarn" else name
    return tiny_model(family, strength=6.0, **room_for(family), **MODELS.get(name, {}))


def read(loaded, batch):
    """Inputs of all layers without a window."""
    found = []
    with torch.no_grad(), attention_override(loaded, lambda i: found.append(i) and None):
        loaded.model(**batch)
    return [inputs for inputs in found if inputs.window is None]


def one_text(loaded, count=60):
    return read(loaded, {"input_ids": prompts([count])[0][None]})


def targets(count):
    """Places to which queries are moved: spread over those behind the prompt."""
    return [count + int((i * GOLDEN) % 1.0 * AHEAD) for i in range(count)]


def moved_by_the_model(loaded, inputs, places):
    """Queries of a layer, turned by the model's own code to some places, [heads, n, d]."""
    attention = loaded.family.attention(loaded.family.blocks(loaded.model)[inputs.layer])
    code = importlib.import_module(type(attention).__module__)
    query = attention.q_proj(inputs.hidden).view(1, inputs.q.shape[2], inputs.q.shape[1], -1)
    if hasattr(attention, "q_norm"):
        query = attention.q_norm(query)
    query = query.transpose(1, 2)
    if not getattr(attention, "use_rope", True):
        return query[0]
    options = {}
    if "gemma3" in type(attention).__module__:
        options["layer_type"] = loaded.model.config.layer_types[inputs.layer]
    cos, sin = loaded.backbone.rotary_emb(query, torch.tensor([places]), **options)
    return code.apply_rotary_pos_emb(query, query, cos, sin)[0][0]


def by_definition(inputs, queries, own, batch=0, bias=0.0):
    """Mean squares, means, largest weights and mean outputs of queries that see all keys."""
    keys, values = (x[batch].double().numpy()[:, own] for x in (inputs.k, inputs.v))
    found = []
    for h, query in enumerate(queries.double().numpy()):
        logits = inputs.scaling * query @ keys[h // inputs.group].T
        if inputs.softcap is not None:
            logits = inputs.softcap * np.tanh(logits / inputs.softcap)
        logits = logits + (bias if np.isscalar(bias) else bias[h])
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        output = (weights @ values[h // inputs.group]).mean(axis=0)
        found.append([(weights**2).mean(axis=0), weights.mean(axis=0), weights.max(axis=0), output])
    return [np.stack(part) for part in zip(*found, strict=True)]


def assert_same(seen, expected, own):
    for part, wanted in zip((seen.square, seen.received, seen.largest), expected, strict=False):
        np.testing.assert_allclose(part[:, own], wanted, rtol=2e-3, atol=2e-6)
        rest = np.setdiff1d(np.arange(part.shape[1]), own)
        assert np.all(part.numpy()[:, rest] == 0)
    np.testing.assert_allclose(seen.output, expected[3], rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_all_queries_of_a_prompt_ask_from_places_behind_it(name):
    loaded = model(name)
    layers = one_text(loaded)
    assert layers
    for inputs in layers:
        queries = moved_by_the_model(loaded, inputs, targets(60))
        seen = observe_all(inputs, rotation_of(loaded, inputs.layer))
        assert_same(seen, by_definition(inputs, queries, np.arange(60)), np.arange(60))


@pytest.mark.parametrize("name", MODELS)
def test_queries_at_their_own_places_are_those_of_the_model(name):
    loaded = model(name)
    for inputs in one_text(loaded, 50):
        rotation, own = rotation_of(loaded, inputs.layer), torch.arange(50)
        if rotation is None:
            assert name == "smollm3"
            continue
        again = moved_by_the_model(loaded, inputs, own.tolist())
        torch.testing.assert_close(again, inputs.q[0], rtol=1e-4, atol=1e-5)
        # back and there again, and so the same logits
        there = rotate(rotate_back(inputs.q[0], *rotation(own)), *rotation(own))
        logits = there[1] @ inputs.k[0, 1 // inputs.group].T * inputs.scaling
        expected = dataclasses.replace(inputs, softcap=None).logits(0, 1, dtype=torch.float32)
        seen = torch.isfinite(expected)
        torch.testing.assert_close(logits[seen], expected[seen], rtol=1e-3, atol=1e-4)


def test_learned_positions_stay_in_the_queries():
    loaded = model("gpt2")
    for inputs in one_text(loaded):
        assert rotation_of(loaded, inputs.layer) is None
        expected = by_definition(inputs, inputs.q[0], np.arange(60))
        assert_same(observe_all(inputs, None), expected, np.arange(60))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_neither_asks_nor_is_asked(side):
    loaded, texts = model("llama"), prompts([60, 41])
    rotation = rotation_of(loaded, 0)
    alone = [read(loaded, {"input_ids": text[None]})[0] for text in texts]
    both = read(loaded, padded(texts, side))[0]
    for b, inputs in enumerate(alone):
        count = inputs.q.shape[2]
        own = np.arange(60 - count, 60) if side == "left" else np.arange(count)
        seen, wanted = observe_all(both, rotation, b), observe_all(inputs, rotation)
        expected = (wanted.square, wanted.received, wanted.largest, wanted.output)
        assert_same(seen, [part.numpy() for part in expected], own)


def test_biases_are_those_of_the_last_query():
    """As with ALiBi, whose biases depend on the distance: those from the end of the prompt."""
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
    distance = torch.arange(40)[:, None] - torch.arange(40)
    bias = -slopes * distance.clamp(min=0)
    expected_bias = (-slopes[:, 0] * (39 - torch.arange(40))).numpy()
    for changes in ({"bias": bias}, {"bias": bias[None]}, {"bias": bias, "softcap": 2.0}):
        inputs = layer_inputs(queries=40, keys=40, **changes)
        expected = by_definition(inputs, inputs.q[0], np.arange(40), bias=expected_bias)
        assert_same(observe_all(inputs, None), expected, np.arange(40))
    alike = layer_inputs(queries=40, keys=40, bias=bias[:1])
    expected = by_definition(alike, alike.q[0], np.arange(40), bias=expected_bias[[0, 0, 0, 0]])
    assert_same(observe_all(alike, None), expected, np.arange(40))


def test_many_queries_are_taken_in_blocks():
    inputs = layer_inputs(heads=2, key_heads=1, queries=700, keys=700, strength=2.0)
    expected = by_definition(inputs, inputs.q[0], np.arange(700))
    assert_same(observe_all(inputs, None), expected, np.arange(700))


def test_two_scores_are_combined_by_their_shares():
    rng = np.random.default_rng(0)
    first, second = rng.lognormal(0, 1, (2, 3, 50))
    shares = [x**2 / (x**2).mean(axis=-1, keepdims=True) for x in (first, second)]
    found = combined(torch.from_numpy(first), torch.from_numpy(second))
    np.testing.assert_allclose(found, np.sqrt(shares[0] + shares[1]))
    # units do not matter, and scores of nothing add nothing
    again = combined(torch.from_numpy(1e6 * first), torch.from_numpy(1e-6 * second))
    np.testing.assert_allclose(again, found)
    alone = combined(torch.from_numpy(first), torch.zeros(3, 50))
    np.testing.assert_allclose(alone, np.sqrt(shares[0]))


def test_scores_by_all_queries_take_the_largest_weights_into_account():
    inputs = layer_inputs(queries=40, keys=40)
    seen = observe_all(inputs, None)
    mean = Observation(seen.square, seen.received, seen.output).score(inputs.v[0])
    most = Observation(seen.largest.square(), seen.received, seen.output).score(inputs.v[0])
    torch.testing.assert_close(seen.score(inputs.v[0]), combined(mean, most))


@pytest.mark.parametrize("score", ["all", "last"])
def test_a_rule_scores_as_it_is_told(score):
    loaded = model("llama")
    inputs = one_text(loaded, 120)[1]
    told = PlannedRule.of(loaded, budgets_for(loaded), score=score)
    assert PlannedRule.of(loaded, budgets_for(loaded)).score == "all"
    found = told.scores(inputs, 0)
    seen = observe_all(inputs, rotation_of(loaded, inputs.layer))
    same = torch.allclose(found, seen.score(inputs.v[0]))
    assert same == (score == "all")
