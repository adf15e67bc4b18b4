"""Scores of keys by the queries of a prompt, by their definition."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from esscher.engine.attention.compiled import build, kernel
from esscher.engine.cache.scores import (
    AHEAD,
    GOLDEN,
    WINDOW,
    Repetition,
    column_sums,
    combined,
    key_scores,
    prompt_scores,
)
from esscher.engine.models.capture import attention_override
from esscher.engine.models.weights import rotation_of
from tests.engine.cache.inputs import layer_inputs
from tests.engine.cache.plans import padded, prompts, room_for
from tests.engine.models.tiny import tiny_model

RUNS = list(build.TARGETS)
CAPABILITY = torch.backends.cpu.get_cpu_capability()
COMPILED = RUNS[: RUNS.index(CAPABILITY) + 1] if CAPABILITY in RUNS else []
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
    layers = []
    with torch.no_grad(), attention_override(loaded, lambda i: layers.append(i) and None):
        loaded.model(**batch)
    return [inputs for inputs in layers if inputs.window is None]


def one_text(loaded, count=60):
    return read(loaded, {"input_ids": prompts([count])[0][None]})


@pytest.fixture(params=["torch", *RUNS])
def chosen(request, monkeypatch):
    """PyTorch, and every compiled kernel that this processor runs."""
    name = request.param
    if name != "torch" and (name not in COMPILED or not build.library(name).is_file()):
        pytest.skip(f"{name} is not compiled, or does not run here")
    monkeypatch.setenv(kernel.VARIABLE, name)


def drawn(queries, keys):
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.randn(n, 5, generator=generator) for n in (queries, keys))


@pytest.mark.parametrize("block", [1, 70, 2**18])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("queries", [17, 70])
def test_sums_are_those_of_the_weights(chosen, block, softcap, queries):
    query, keys = drawn(queries, 40)
    bias = torch.linspace(0, 2, 40)
    bias[3] = -torch.inf
    ends = torch.linspace(-9, 40, queries).long()  # some see nothing
    logits = query.double() @ keys.double().T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = (logits + bias).masked_fill(torch.arange(40) >= ends[:, None], -torch.inf)
    weights = torch.softmax(logits, dim=-1).nan_to_num()[:, :30]
    sums = column_sums(query, keys, softcap=softcap, bias=bias, ends=ends, columns=30, block=block)
    expected = torch.stack([weights.square().sum(0), weights.sum(0), weights.amax(0)])
    torch.testing.assert_close(sums.double(), expected, rtol=1e-4, atol=1e-6)
    assert not sums[:, 3].any()


def test_large_logits_do_not_overflow(chosen):
    """The largest of a row is taken off before anything is raised to it."""
    query, keys = drawn(33, 70)
    logits = 300.0 * (query.double() @ keys.double().T)
    weights = torch.softmax(logits, dim=-1)
    expected = torch.stack([weights.square().sum(0), weights.sum(0), weights.amax(0)])
    # float32 rounds a logit by 6e-8 of itself, and its exponential by as much in all
    rounding = 4 * float(logits.abs().max()) * 2**-24
    sums = column_sums(300.0 * query, keys)
    torch.testing.assert_close(sums.double(), expected, rtol=rounding, atol=rounding)


def by_definition(inputs, queries, columns, batch=0, bias=0.0):
    """Scores of the keys ``columns`` by queries [heads, w, d] that see all of them."""
    keys, values = (x[batch].double().numpy()[:, columns] for x in (inputs.k, inputs.v))
    mean, most = np.zeros((2, len(keys), len(columns)))
    for h, query in enumerate(queries.double().numpy()):
        g = h // inputs.group
        logits = inputs.scaling * query @ keys[g].T
        if inputs.softcap is not None:
            logits = inputs.softcap * np.tanh(logits / inputs.softcap)
        logits = logits + (bias if np.isscalar(bias) else bias[h])
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        distance = np.square(values[g] - (weights @ values[g]).mean(axis=0)).sum(axis=1)
        mean[g] += (weights**2).mean(axis=0) * distance
        most[g] += weights.max(axis=0) ** 2 * distance
    return np.sqrt(sum(x / x.mean(axis=1, keepdims=True) for x in (mean, most)))


def assert_same(scores, expected, columns):
    np.testing.assert_allclose(scores[:, columns], expected, rtol=5e-3, atol=1e-4)
    rest = np.setdiff1d(np.arange(scores.shape[1]), columns)
    assert not scores.numpy()[:, rest].any()


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


@pytest.mark.parametrize("name", MODELS)
def test_all_queries_of_a_prompt_attend_from_places_after_it(name):
    loaded = model(name)
    layers = one_text(loaded)
    assert layers
    places = [60 + int((i * GOLDEN) % 1.0 * AHEAD) for i in range(60)]
    for inputs in layers:
        queries = moved_by_the_model(loaded, inputs, places)
        scores = prompt_scores(inputs, "all", rotation_of(loaded, inputs.layer))
        assert_same(scores, by_definition(inputs, queries, np.arange(60)), np.arange(60))


def test_learned_positions_stay_in_the_queries():
    loaded = model("gpt2")
    for inputs in one_text(loaded):
        assert rotation_of(loaded, inputs.layer) is None
        expected = by_definition(inputs, inputs.q[0], np.arange(60))
        assert_same(prompt_scores(inputs, "all", None), expected, np.arange(60))


@pytest.mark.parametrize("score", ["all", "last"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_neither_scores_nor_is_scored(side, score):
    loaded, texts = model("llama"), prompts([60, 41])
    rotation = rotation_of(loaded, 0)
    both = read(loaded, padded(texts, side))[0]
    for b, text in enumerate(texts):
        alone = prompt_scores(read(loaded, {"input_ids": text[None]})[0], score, rotation)
        columns = np.arange(60 - len(text), 60) if side == "left" else np.arange(len(text))
        assert_same(prompt_scores(both, score, rotation, b), alone, columns)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_biases_are_those_of_the_last_query(softcap):
    """As with ALiBi, whose biases depend on the distance: those from the end of the prompt."""
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
    bias = -slopes * (torch.arange(40)[:, None] - torch.arange(40)).clamp(min=0)
    last = bias[:, -1].numpy()
    for given, of_heads in ((bias, last), (bias[None], last), (bias[:1], last[[0, 0, 0, 0]])):
        inputs = layer_inputs(queries=40, keys=40, bias=given, softcap=softcap)
        expected = by_definition(inputs, inputs.q[0], np.arange(40), bias=of_heads)
        assert_same(prompt_scores(inputs, "all", None), expected, np.arange(40))


@pytest.mark.parametrize("changes", [{}, {"softcap": 2.0}, {"window": 12}])
def test_last_queries_score_where_they_stand(changes):
    inputs = layer_inputs(queries=90, keys=90, **changes)
    expected = torch.zeros(2, 90, dtype=torch.float64)
    for h in range(4):
        weights = torch.softmax(inputs.logits(0, h, dtype=torch.float64)[-WINDOW:], dim=-1)
        values = inputs.v[0, h // 2].double()
        distance = (values - (weights @ values).mean(0)).square().sum(-1)
        expected[h // 2] += weights.square().mean(0) * distance
    scores = prompt_scores(inputs, "last", None)
    torch.testing.assert_close(scores.double(), expected.sqrt(), rtol=1e-4, atol=1e-6)


def test_two_scores_are_combined_by_their_shares():
    rng = np.random.default_rng(0)
    first, second = rng.lognormal(0, 1, (2, 3, 50))
    shares = [x**2 / (x**2).mean(axis=-1, keepdims=True) for x in (first, second)]
    scores = combined(torch.from_numpy(first), torch.from_numpy(second))
    np.testing.assert_allclose(scores, np.sqrt(shares[0] + shares[1]))
    # units do not matter, and scores of nothing add nothing
    again = combined(torch.from_numpy(1e6 * first), torch.from_numpy(1e-6 * second))
    np.testing.assert_allclose(again, scores)
    alone = combined(torch.from_numpy(first), torch.zeros(3, 50))
    np.testing.assert_allclose(alone, np.sqrt(shares[0]))


def test_a_repetition_has_the_weights_of_its_queries():
    """In parts or at once, against plain softmax; queries see the prompt, and those before them."""
    rng = torch.Generator().manual_seed(3)
    query, keys = torch.randn(2, 9, 5, generator=rng), torch.randn(20, 5, generator=rng)
    values = torch.randn(12, 4, generator=rng)
    ends = torch.arange(12, 21)
    whole, parts = Repetition(2, 12), Repetition(2, 12)
    whole.add(query, keys, ends, softcap=3.0)
    parts.add(query[:, :4], keys[:15], ends[:4], softcap=3.0)
    parts.add(query[:, 4:], keys, ends[4:], softcap=3.0)
    logits = 3.0 * torch.tanh(query @ keys.T / 3.0)
    logits = logits.masked_fill(torch.arange(20) >= ends[:, None], -torch.inf)
    weights = torch.softmax(logits, dim=-1)[..., :12]
    expected = key_scores(weights.square().mean(1), weights.mean(1) @ values, values[None])[0]
    for repetition in (whole, parts):
        torch.testing.assert_close(repetition.score(values), expected, rtol=1e-4, atol=1e-6)
