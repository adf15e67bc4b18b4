"""Every scorer against its formula, written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.cache.published import RULES, Looking, Scores
from esscher.engine.cache.published.criticalkv import CriticalKV
from esscher.engine.cache.published.expected import Expected
from esscher.engine.cache.published.kvzip import KVzip
from esscher.engine.cache.published.lukv import LUKV
from esscher.engine.cache.published.prefilled import prefilled_layer
from esscher.engine.cache.published.profile import STREAMED, measure_profile, streamed
from esscher.engine.cache.published.repeat import repeat_prompt
from esscher.engine.cache.published.streaming import sinks_and_recent
from esscher.engine.models.rotary import rotate, rotate_back
from tests.engine.cache.inputs import layer_inputs
from tests.engine.cache.plans import prompts
from tests.engine.cache.published.reading import (
    PROMPT,
    SNAPKV,
    WINDOW,
    decoder,
    layers_of,
    looked,
    read,
)

#: Rounding of float32 in sums of a few hundred terms.
ROUNDING = 1e-5


def same(found, expected, tolerance=ROUNDING):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def dense_weights(layer):
    """Attention weights of all queries, [heads, n_q, n_k], float64."""
    heads = layer.inputs.q.shape[1]
    return torch.stack([torch.softmax(layer.inputs.logits(0, h), dim=-1) for h in range(heads)])


def grouped(layer, per_head):
    """[heads, ...] as [key heads, group, ...]."""
    return per_head.view(layer.key_heads, -1, *per_head.shape[1:])


@pytest.mark.parametrize(
    "name", ["llama", "smollm3", "qwen3", "gemma3_text", "gemma3", "gemma2", "gpt2"]
)
def test_queries_before_rotation(name):
    """Rotating back and forth is nothing; queries are what the projection made of the tokens."""
    loaded = decoder(name)
    for layer in layers_of(loaded, prompts([PROMPT])[0]):
        number, query = layer.inputs.layer, layer.inputs.q[0]
        block = loaded.family.blocks(loaded.model)[number]
        attention = loaded.family.attention(block)
        maps = loaded.family.maps(block)
        made = layer.inputs.hidden[0] @ maps.query.T
        made = made if maps.query_bias is None else made + maps.query_bias
        made = made.view(PROMPT, query.shape[0], -1)
        if hasattr(attention, "q_norm"):
            made = attention.q_norm(made)
        for h in range(len(query)):
            same(layer.unrotated(h), made[:, h])
        if layer.rotation is None:
            assert name == "gpt2" or not attention.use_rope
            continue
        cos, sin = layer.rotation(torch.arange(PROMPT))
        same(rotate(layer.unrotated(0), cos, sin), query[0])
        same(rotate_back(rotate(made[:, 0], cos, sin), cos, sin), made[:, 0])


def test_rotation_of_some_dimensions_that_also_scales():
    generator = torch.Generator().manual_seed(0)
    states, angle = torch.randn(7, 6, generator=generator), torch.randn(7, 2, generator=generator)
    angle = torch.cat([angle, angle], dim=1)
    cos, sin = 1.3 * angle.cos(), 1.3 * angle.sin()
    turned = rotate(states, cos, sin)
    assert torch.equal(turned[:, 4:], states[:, 4:])
    same(rotate_back(turned, cos, sin), states)
    same(turned[:, :4].norm(dim=1), 1.3 * states[:, :4].norm(dim=1))


def test_streaming():
    layer = layers_of(decoder(), prompts([PROMPT])[0])[0]
    kept = RULES["streaming"].keep([RULES["streaming"].look(layer)], 20)[0]
    assert all(i.tolist() == [*range(4), *range(PROMPT - 16, PROMPT)] for i in kept)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_snapkv(name):
    for layer in layers_of(decoder(name), prompts([PROMPT])[0]):
        before = PROMPT - WINDOW
        mean = grouped(layer, dense_weights(layer)[:, -WINDOW:, :before]).mean((1, 2))
        expected = torch.zeros_like(mean)
        for shift in (-2, -1, 0, 1, 2):
            for j in range(before):
                if 0 <= j + shift < before:
                    expected[:, j] += mean[:, j + shift] / 5
        found = SNAPKV.look(layer).scores
        same(found[:, :before], expected)
        same(found[:, before:], (expected.max() + 1).expand(layer.key_heads, WINDOW))


def test_tova():
    for layer in layers_of(decoder(), prompts([PROMPT])[0]):
        expected = dense_weights(layer)[:, -1].mean(0)
        found = RULES["tova"].look(layer).scores
        assert torch.equal(found[0], found[1])
        same(found[0, :-1], expected[:-1])
        assert found[0, -1] > 1


@pytest.mark.parametrize("name", ["llama", "smollm3", "gpt2"])
def test_expected(name):
    """The formula, with rotation matrices written out."""
    loaded, future = decoder(name), 30
    for layer in layers_of(loaded, prompts([PROMPT])[0]):
        d, rule = layer.inputs.q.shape[-1], Expected(future=future, epsilon=0.1)
        mean_turn = torch.eye(d, dtype=torch.float64)
        if layer.rotation is not None:
            cos, sin = layer.rotation(torch.arange(PROMPT, PROMPT + future))
            quarter = torch.zeros(d, d, dtype=torch.float64)
            for i in range(d // 2):
                quarter[i, i + d // 2], quarter[i + d // 2, i] = -1, 1
            mean_turn = (
                sum(
                    torch.diag(c.double()) + torch.diag(s.double()) @ quarter
                    for c, s in zip(cos, sin, strict=True)
                )
                / future
            )
        weights = []
        for h in range(layer.inputs.q.shape[1]):
            query = layer.unrotated(h)[4:].double()
            mean, covariance = mean_turn @ query.mean(0), torch.cov(query.T, correction=0)
            covariance = mean_turn @ covariance @ mean_turn.T
            keys = layer.inputs.k[0, h // layer.inputs.group, 4:].double()
            scaling = layer.inputs.scaling
            logits = [scaling * k @ mean + scaling**2 * k @ covariance @ k / 2 for k in keys]
            weights.append(torch.softmax(torch.stack(logits), dim=0))
        expected = grouped(layer, torch.stack(weights)).mean(1) + 0.1
        expected *= layer.inputs.v[0, :, 4:].double().norm(dim=-1)
        found = rule.look(layer).scores
        same(found[:, 4:], expected)
        assert bool((found[:, :4] > found[:, 4:].max()).all())
        plain = Expected(future=future, norms=False).look(layer).scores[:, 4:]
        same(plain.sum(1), torch.ones(layer.key_heads))


def test_lukv_ranks_by_expected_attention():
    layer = layers_of(decoder(), prompts([PROMPT])[0])[0]
    found, plain = LUKV().look(layer).scores, Expected(epsilon=0.02).look(layer).scores
    assert torch.equal(found[:, 4:-1], plain[:, 4:-1])
    top = found.max()
    assert bool((found[:, [0, 1, 2, 3, -1]] == top).all())
    assert bool((found[:, 4:-1] < top).all())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_norms_of_criticalkv(name):
    loaded = decoder(name)
    for layer in layers_of(loaded, prompts([PROMPT])[0]):
        found = CriticalKV(SNAPKV).look(layer)
        assert torch.equal(found.scores, SNAPKV.look(layer).scores)
        block = loaded.family.blocks(loaded.model)[layer.inputs.layer]
        weight = loaded.family.maps(block).output.double()
        heads, d = layer.inputs.q.shape[1], layer.inputs.v.shape[-1]
        norms = []
        for h in range(heads):
            values = layer.inputs.v[0, h // layer.inputs.group].double()
            norms.append((values @ weight[:, h * d : (h + 1) * d].T).abs().sum(-1))
        same(found.norms, grouped(layer, torch.stack(norms)).mean(1))


@pytest.mark.parametrize("chunk", [2048, 30])
def test_kvzip(chunk):
    """Weights over sinks, chunk and repetition."""
    loaded, ids = decoder(), prompts([PROMPT])[0]
    rule, expected = KVzip(), {}

    def watch(inputs, begin, end):
        sinks = min(4, begin)
        index = [*range(sinks), *range(begin, end), *range(PROMPT, inputs.k.shape[2])]
        heads = inputs.q.shape[1]
        weights = torch.stack(
            [torch.softmax(inputs.logits(0, h)[:, index], dim=-1) for h in range(heads)]
        )[..., sinks : sinks + end - begin]
        weights = weights.view(inputs.k.shape[1], -1, end - begin).amax(1)
        expected.setdefault(inputs.layer, []).append(weights)

    repeat_prompt(loaded, ids, read(loaded, ids, lambda inputs: None), watch, chunk)
    found = looked(loaded, [rule], ids, chunk).found(rule)
    assert len(found) == len(expected) == 3
    for layer, scores in enumerate(found):
        same(scores.scores, torch.cat(expected[layer], dim=1))


def after_prompt(heads=4, queries=300, prompt=400, **options):
    """A layer that reads on, with more queries than are taken at a time."""
    inputs = layer_inputs(
        heads=heads, queries=queries, keys=prompt + queries, d=8, strength=3.0, **options
    )
    return prefilled_layer(decoder(), inputs, prompt)


def test_profile():
    layer = after_prompt()
    prompt, sizes = layer.prompt, np.array([5, 40, 100, 399, 400])
    scores = torch.randn(2, prompt, generator=torch.Generator().manual_seed(1))
    found = measure_profile(layer, Scores(scores), sizes)
    weights, values = dense_weights(layer), layer.inputs.v[0].double()
    sinks, recent = streamed(int(STREAMED * prompt))
    assert (sinks, recent) == (10, 40)
    kept = torch.cat([sinks_and_recent(prompt, sinks, recent), torch.arange(prompt, 700)])
    for g in range(2):
        utility, error = torch.zeros(prompt, dtype=torch.float64), 0.0
        for h in (2 * g, 2 * g + 1):
            norm = (values[g, :prompt] @ layer.output[h].double()).norm(dim=-1)
            utility += weights[h, :, :prompt].amax(0) * norm
            output = weights[h] @ values[g]
            other = weights[h][:, kept] / weights[h][:, kept].sum(1, keepdim=True)
            other = other @ values[g, kept]
            error += float((other - output).square().sum() / output.square().sum()) / 2
        order = torch.argsort(scores[g], descending=True)
        for size, lost in zip(sizes, found.lost[g], strict=True):
            assert lost == pytest.approx(float(utility[order[size:]].sum()), rel=1e-5, abs=1e-12)
        assert found.lost[g, -1] == 0
        assert found.retrieval[g] == pytest.approx(error, rel=1e-4)


def test_layers_with_a_window_are_left_out():
    loaded, ids = decoder("gemma3_text"), prompts([PROMPT])[0]
    looking = looked(loaded, [RULES["tova"], RULES["kvzip"]], ids)
    assert looking.layers == [1]
    assert len(looking.found(RULES["kvzip"])) == 1
    assert Looking(loaded, [], 3).layers == []
