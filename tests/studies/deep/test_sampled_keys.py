"""Attention to sampled keys: consistent, exact when all are drawn, an error as theory says."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import wrap_model
from esscher.engine.text.documents import read_text
from esscher.engine.text.packing import passages
from esscher.studies.deep.sampling import (
    SampledPassage,
    draw_keys,
    log_weights,
    sampled_attention,
)
from tests.engine.models.folders import decoder_tokenizer, encoder_tokenizer, words
from tests.engine.models.tiny import HOOKED, tiny_model, transformers

NAMES = (
    "bert",
    "roberta",
    "mpnet",
    "gpt2",
    "llama",
    "mistral",
    "gemma2",
    "qwen3",
    "gemma3_text bidirectional",
)


def layer_of(q, k, v, *, causal=False, window=None, offset=0):
    """A layer from arrays [heads, n, d]."""
    inputs = LayerInputs(
        layer=0,
        q=q[None],
        k=k[None],
        v=v[None],
        scaling=1.0,
        softcap=None,
        window=window,
        bias=None,
        causal=causal,
        valid=None,
        visible_mask=None,
        offset=offset,
        hidden=None,
        original=lambda: inputs.attend(torch.float32),
    )
    return inputs


def random_layer(queries, keys, dim=4, seed=0, strength=0.5, **options):
    rng = random_stream(seed, "test layer")
    q, k, v = (
        torch.from_numpy(rng.standard_normal((2, n, dim))).float() for n in (queries, keys, keys)
    )
    return layer_of(strength * q, k, v, **options)


@pytest.mark.parametrize("name", NAMES)
def test_all_keys_drawn_is_the_dense_model(name, reader_of):
    reader = reader_of(name)
    certain, dense = torch.from_numpy(reader.certain), reader.dense

    def sampled(n):
        def attend(inputs):
            drawn = draw_keys(reader.certain, 0, 0, "independent", 0, inputs.layer, n)
            return sampled_attention(inputs, certain, drawn)

        return reader.read(attend)

    everything = int((~reader.certain).sum())
    again, half = sampled(everything), sampled(everything // 2)
    for a, b, c in zip(dense.residual, again.residual, half.residual, strict=True):
        assert (a - b).norm() < 1e-5 * a.norm()
        assert (a - c).norm() > 1e-3 * a.norm()
    assert torch.allclose(dense.end, again.end, atol=1e-3 * float(dense.end.abs().max()))


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "offset": 5}, {"causal": True, "offset": 5, "window": 4}]
)
def test_weights_are_unbiased_over_all_samples(options):
    """Numerator and denominator of the softmax, averaged over every sample of 3 keys, are dense."""
    queries = 3 if options else 8
    inputs = random_layer(queries, 8, **options)
    seen = inputs.visible()[0, 0]
    # in a decoder the queries' own chunk is kept, in an encoder two delimiters
    certain = torch.zeros(8, dtype=torch.bool)
    certain[[0, *range(5, 8)] if options else [0, 7]] = True
    eligible = torch.nonzero(~certain)[:, 0].tolist()
    logits = inputs.logits(0, 0, dtype=torch.float64)
    value = inputs.v[0, 0].double()
    totals, outputs, used = [], [], []
    for chosen in combinations(eligible, 3):
        drawn = torch.zeros(8, dtype=torch.bool)
        drawn[list(chosen)] = True
        weights = log_weights(inputs, seen, certain, drawn, slice(None))
        mass = torch.exp(logits + weights)
        totals.append(mass.sum(-1))
        outputs.append(mass @ value)
        own = torch.arange(queries) + inputs.offset
        used.append(mass[torch.arange(queries), own])
    dense = torch.exp(logits)
    window = options.get("window")
    if window is None:
        assert torch.allclose(torch.stack(totals).mean(0), dense.sum(-1), rtol=1e-5)
        assert torch.allclose(torch.stack(outputs).mean(0), dense @ value, rtol=1e-5, atol=1e-6)
    else:
        # a query whose window holds no drawn key loses the class in that sample; the others do not
        kept = [
            torch.stack(
                [
                    t[i]
                    for t, c in zip(totals, combinations(eligible, 3), strict=True)
                    if any(seen[i, j] for j in c)
                ]
            ).mean()
            for i in range(queries)
            if any(seen[i, j] for j in eligible)
        ]
        exact = [dense[i].sum() for i in range(queries) if any(seen[i, j] for j in eligible)]
        assert torch.allclose(torch.stack(kept), torch.stack(exact), rtol=1e-5)
    # a query's own token is there in every sample, with weight 1
    own_mass = dense[torch.arange(queries), torch.arange(queries) + inputs.offset]
    assert all(torch.allclose(u, own_mass, rtol=1e-5) for u in used)


def test_the_error_is_that_of_the_formula():
    """E|y_n - y|^2 = (E/n - 1) E/(E - 1) sum_j p_j^2 |v_j - y|^2, up to higher orders in 1/n."""
    prefix, queries, n = 600, 4, 300
    inputs = random_layer(queries, prefix + queries, causal=True, offset=prefix)
    certain = np.zeros(prefix + queries, bool)
    certain[[0, *range(prefix, prefix + queries)]] = True
    dense = inputs.attend()
    total = prefix - 1
    squares = []
    for draw in range(400):
        drawn = draw_keys(certain, 0, 0, "shared", draw, 0, n)
        result = sampled_attention(inputs, torch.from_numpy(certain), drawn).double()
        squares.append((result - dense).square().sum(-1)[0].numpy())
    squares = np.array(squares)
    for head in range(2):
        weights = torch.softmax(inputs.logits(0, head), dim=-1)
        away = inputs.v[0, head].double()[None] - dense[0, head][:, None]
        drawn = torch.from_numpy(~certain)
        spread = (weights.square() * away.square().sum(-1))[:, drawn].sum(-1).numpy()
        # the mean of p_j (v_j - y) over the drawn class is taken off: finite-population variance
        mean = (weights[:, :, None] * away)[:, drawn].mean(1).square().sum(-1).numpy()
        formula = (total / n - 1) * total / (total - 1) * (spread - total * mean)
        measured = squares[:, head].mean(0)
        noise = squares[:, head].std(0, ddof=1) / np.sqrt(len(squares))
        # 8 comparisons, Bonferroni at 1%: 3.2 standard errors; the next order is about 1/n
        assert np.all(np.abs(measured - formula) < 4 * noise + 3 / n * formula)


def test_samples_are_nested_and_modes_differ():
    certain = np.zeros(50, bool)
    certain[[0, 49]] = True
    for way in ("independent", "shared"):

        def drawn(n, layer=2, passage=1, draw=0, way=way):
            return draw_keys(certain, 3, passage, way, draw, layer, n)

        small, large = drawn(5), drawn(20)
        assert (small.sum(), large.sum()) == (5, 20)
        assert torch.all(large[small])
        assert not large[torch.from_numpy(certain)].any()
        assert drawn(20).equal(large)
        assert drawn(20, layer=3).equal(large) == (way == "shared")
        assert not drawn(20, draw=1).equal(large)
        assert not drawn(20, passage=2).equal(large)


def test_heads_that_are_not_sampled_stay_dense():
    inputs, certain = random_layer(10, 10), torch.zeros(10, dtype=torch.bool)
    drawn = draw_keys(certain.numpy(), 0, 0, "shared", 0, 0, 3)
    result = sampled_attention(inputs, certain, drawn, heads=[1])
    assert torch.equal(result[0, 0], inputs.original()[0, 0])
    assert not torch.allclose(result[0, 1], inputs.original()[0, 1], atol=1e-3)
    assert torch.equal(result[0, 1], sampled_attention(inputs, certain, drawn)[0, 1])


def test_models_that_cannot_be_measured():
    bird = tiny_model("big_bird", is_decoder=True).model
    assert "big_bird" in HOOKED
    bare = transformers.LlamaModel(tiny_model("llama").model.config)
    for model, tokenizer, message in (
        (bird, encoder_tokenizer(), "key cache cannot be read"),
        (bare, decoder_tokenizer(), "without its next-token head"),
    ):
        loaded = wrap_model(model, tokenizer, name="tiny")
        passage = next(passages(loaded, read_text([words(99)]), context=40))
        with pytest.raises(InputError, match=message):
            SampledPassage(loaded, passage)
