"""Every scorer against its formula, written out."""

from __future__ import annotations

import pytest
import torch

from esscher.engine.cache.published import RULES, Expected, KVzip, Looking
from esscher.engine.cache.repeating import repeat_prompt
from esscher.engine.models.weights import rotate, rotate_back
from tests.engine.cache.plans import prompts
from tests.engine.cache.reading import (
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
        weight, bias = loaded.family.maps(block)[0]
        made = layer.inputs.hidden[0] @ weight.T
        made = made if bias is None else made + bias
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


@pytest.mark.parametrize("name", ["llama", "smollm3", "gpt2"])
def test_expected(name):
    """The formula, with rotation matrices written out."""
    loaded, future = decoder(name), 30
    for layer in layers_of(loaded, prompts([PROMPT])[0]):
        d, rule = layer.inputs.q.shape[-1], Expected(future=future)
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
        expected = grouped(layer, torch.stack(weights)).mean(1)
        expected *= layer.inputs.v[0, :, 4:].double().norm(dim=-1)
        found = rule.look(layer).scores
        same(found[:, 4:], expected)
        assert bool((found[:, :4] > found[:, 4:].max()).all())


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


def test_layers_with_a_window_are_left_out():
    loaded, ids = decoder("gemma3_text"), prompts([PROMPT])[0]
    looking = looked(loaded, [RULES["snapkv"], RULES["kvzip"]], ids)
    assert looking.layers == [1]
    assert len(looking.found(RULES["kvzip"])) == 1
    assert Looking(loaded, [], 3).layers == []
