"""Published rules: scores by their formulas, written out, and exactly as many tokens as others."""

from __future__ import annotations

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.cache.published import RULES, KVzip
from esscher.engine.cache.repeating import repeat_prompt
from esscher.engine.models.weights import rotate
from tests.engine.cache.plans import prompts
from tests.engine.cache.reading import (
    PROMPT,
    SMALL,
    SNAPKV,
    WINDOW,
    decoder,
    layers_of,
    read,
    rule_scores,
)

#: Rounding of float32 in sums of a few hundred terms.
ROUNDING = 1e-5
#: Decoders with rotary positions, with none in some layers, with learned ones, and with windows.
DECODERS = ("llama", "llama one key head", "smollm3", "gpt2", "gemma2", "gemma3_text")


def same(result, expected, tolerance=ROUNDING):
    torch.testing.assert_close(result.double(), expected.double(), rtol=tolerance, atol=tolerance)


def grouped(layer, per_head):
    """[heads, ...] as [key heads, group, ...]."""
    return per_head.view(layer.key_heads, -1, *per_head.shape[1:])


def test_rotation_of_some_dimensions_that_also_scales():
    generator = torch.Generator().manual_seed(0)
    states, angle = torch.randn(7, 6, generator=generator), torch.randn(7, 2, generator=generator)
    angle = torch.cat([angle, angle], dim=1)
    cos, sin = 1.3 * angle.cos(), 1.3 * angle.sin()
    turned = rotate(states, cos, sin)
    assert torch.equal(turned[:, 4:], states[:, 4:])
    same(turned[:, :4].norm(dim=1), 1.3 * states[:, :4].norm(dim=1))


def test_streaming():
    layer = layers_of(decoder(), prompts([PROMPT])[0])[0]
    kept = RULES["streaming"].keep([RULES["streaming"].score(layer)], 20)[0]
    assert all(i.tolist() == [*range(4), *range(PROMPT - 16, PROMPT)] for i in kept)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_snapkv(name):
    for layer in layers_of(decoder(name), prompts([PROMPT])[0]):
        before, inputs = PROMPT - WINDOW, layer.inputs
        logits = torch.stack([inputs.logits(0, h) for h in range(inputs.q.shape[1])])
        weights = torch.softmax(logits, dim=-1)
        mean = grouped(layer, weights[:, -WINDOW:, :before]).mean((1, 2))
        expected = torch.zeros_like(mean)
        for shift in (-2, -1, 0, 1, 2):
            for j in range(before):
                if 0 <= j + shift < before:
                    expected[:, j] += mean[:, j + shift] / 5
        scores = SNAPKV.score(layer)
        same(scores[:, :before], expected)
        same(scores[:, before:], (expected.max() + 1).expand(layer.key_heads, WINDOW))


@pytest.mark.parametrize("chunk", [2048, 30])
def test_kvzip(chunk):
    """Weights over sinks, chunk and repetition."""
    loaded, ids = decoder(), prompts([PROMPT])[0]
    expected = {}

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
    scores = rule_scores(loaded, [KVzip()], ids, chunk=chunk)["kvzip"]
    assert len(scores) == len(expected) == 3
    for layer, values in enumerate(scores):
        same(values, torch.cat(expected[layer], dim=1))


def indices(kept):
    return [[index.tolist() for index in layer] for layer in kept]


@pytest.mark.parametrize("name", DECODERS)
def test_totals_are_exact(name):
    loaded, ids = decoder(name), prompts([PROMPT])[0]
    scores = rule_scores(loaded, list(SMALL.values()), ids)
    layers = len(layers_of(loaded, ids))  # those with a window are left out
    for rule in SMALL.values():
        for each in (6, 17, 33, PROMPT):
            kept = rule.keep(scores[rule.name], each)
            assert len(kept) == layers
            assert all(len(layer) == loaded.shape.key_heads for layer in kept)
            assert sum(len(i) for layer in kept for i in layer) == each * len(kept) * len(kept[0])
            for index in (i for layer in kept for i in layer):
                assert bool((index.diff() > 0).all())
                assert len(index) == 0 or 0 <= index[0] <= index[-1] < PROMPT
            assert indices(rule.keep(scores[rule.name], each)) == indices(kept)


def test_what_is_kept_for_certain():
    scores = rule_scores(decoder(), list(SMALL.values()), prompts([PROMPT])[0])
    sinks = set(range(4))
    certain = {
        "streaming": {*sinks, *range(PROMPT - 16, PROMPT)},
        "snapkv": set(range(PROMPT - WINDOW, PROMPT)),
        "adakv": {PROMPT - WINDOW},
        "kvzip": sinks,
    }
    assert set(certain) == set(SMALL)
    for name, rule in SMALL.items():
        for layer in rule.keep(scores[name], 20):
            assert all(certain[name] <= set(index.tolist()) for index in layer), name


def test_heads_of_adakv_and_layers_of_kvzip_compete():
    scores = [torch.tensor([[9.0, 8, 7, 6, 5], [4, 3, 2, 1, 0]])]
    # a fifth of 3, at least one token, is safe in the second head
    assert indices(SMALL["adakv"].keep(scores, 3)) == [[[0, 1, 2, 3, 4], [0]]]
    assert indices(SMALL["adakv"].keep(scores, 1)) == [[[0], [0]]]
    layers = torch.zeros(2, 1, 10)
    layers[0, 0, 4:] = 1.0
    assert indices(RULES["kvzip"].keep(list(layers), 6)) == [[[*range(8)]], [[0, 1, 2, 3]]]


def test_bad_requests():
    with pytest.raises(InputError, match="each is 4; the prompt has 3 tokens"):
        SMALL["adakv"].keep([torch.ones(2, 3)], 4)
    with pytest.raises(InputError, match="has 60 tokens; the rule 'snapkv' needs more than 64"):
        rule_scores(decoder(), [RULES["snapkv"]], prompts([60])[0])
