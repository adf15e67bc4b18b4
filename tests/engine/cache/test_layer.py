"""One layer of a cache: its lists and tail, and selecting again among both."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch

from esscher import load_cache
from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.hooks import Call
from esscher.engine.cache.layer import SLACK, ReducedLayer
from esscher.engine.cache.selection import PlannedRule
from esscher.engine.cache.storage import (
    SMALLEST,
    Kept,
    RecentQueries,
    packed,
)
from tests.engine.cache.inputs import layer_inputs
from tests.engine.cache.plans import budgets_for, decoder, prompts

TOKENS = 90


def random_lists(lengths, width=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    out = []
    for length in lengths:
        keys, values = (torch.randn(3 * length + 1, width, generator=generator) for _ in range(2))
        index = torch.randperm(3 * length + 1, generator=generator)[:length].sort().values
        weight = torch.rand(length, generator=generator)
        out.append((keys.to(dtype), values.to(dtype), Kept(index, weight)))
    return out


# the second: arrays with memory of their own
@pytest.mark.parametrize("lengths", [(3, 0, 5), (0, 2000, 1500)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists_are_what_was_chosen(lengths, dtype):
    lists = random_lists(lengths, dtype=dtype)
    result = packed(lists)
    assert (result.keys.nbytes >= SMALLEST) == (max(lengths) == 2000 and dtype == torch.float32)
    for copied in (result, copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        for number, (keys, values, kept) in enumerate(lists):
            stored = copied.one(number)
            expected = (keys[kept.index], values[kept.index], kept.log_weight)
            assert all(map(torch.equal, stored, expected))
    # it can be written to: attention does not, and nobody else should be surprised
    result.keys[:1] = 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists_with_other_values(dtype):
    first, (keys, values, kept) = random_lists((3, 5), dtype=dtype)
    other = torch.randn(5, 8)
    result = packed([first, (keys, values, replace(kept, values=other))])
    assert torch.equal(result.one(1)[1], other.to(dtype))
    assert torch.equal(result.one(0)[1], first[1][first[2].index])


def filled(inputs, weight=None, listed=30, index=None):
    """The first keys in lists, the others in a tail."""
    index = torch.arange(listed) if index is None else index
    weight = torch.zeros(len(index)) if weight is None else weight
    lists = packed([(inputs.k[0, g], inputs.v[0, g], Kept(index, weight)) for g in range(2)])
    layer = ReducedLayer(0, None, Call())
    layer.restore(lists, torch.tensor([TOKENS]).numpy(), TOKENS)
    layer.tail.start(inputs.k, inputs.v)
    layer.tail.append(inputs.k[:, :, listed:], inputs.v[:, :, listed:])
    return layer


def scored(loaded, inputs, layer, score="all"):
    layer.recent = RecentQueries(inputs.q)
    layer.recent.add(inputs.q, TOKENS)
    layer.rule = PlannedRule(loaded, budgets_for(loaded), score=score)
    query = inputs.q[:, :, -layer.tail.length :]
    return layer._score_again(query, inputs.scaling, inputs.softcap)[0]


@pytest.mark.parametrize("score", ["all", "last"])
def test_scores_are_of_one_of_the_tokens_that_a_token_stands_for(score):
    """Twice the same key, against one of weight 2: the same for all other tokens."""
    loaded = decoder()
    inputs = layer_inputs(queries=TOKENS, keys=TOKENS, d=8, offset=0, strength=2.0)
    for x in (inputs.k, inputs.v):
        x[:, :, 1] = x[:, :, 0]
    twice = scored(loaded, inputs, filled(inputs), score)
    weight = torch.zeros(30)
    weight[0] = torch.tensor(2.0).log()
    index = torch.tensor([0, *range(2, 30)])
    once = scored(loaded, inputs, filled(inputs, weight[:29], index=index), score)
    for merged, double in zip(once, twice, strict=True):
        torch.testing.assert_close(merged[1:], double[2:], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(merged[0], double[0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(double[1], double[0], rtol=1e-3, atol=1e-5)


def steps(loaded, cache, count, batch=1):
    out = []
    with torch.no_grad():
        for i in range(count):
            place = torch.full((batch, 1), cache.get_seq_length() % 190)
            ids = torch.full((batch, 1), 5 + i % 40)
            out.append(
                loaded.model(input_ids=ids, past_key_values=cache, position_ids=place).logits
            )
    return torch.cat(out, 1)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_scores_survive_whatever_is_done_with_a_cache(name, tmp_path):
    """Saved and loaded, copied, repeated and chosen: selected again as it would have been."""
    loaded, text = decoder(name), prompts([60])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded, 0.4), decode="budget", length=60)
    with torch.no_grad():
        loaded.model(input_ids=text, past_key_values=cache)
    steps(loaded, cache, SLACK + 6)
    running = cache.layers[0].running
    assert running.tail.shape == (1, loaded.shape.key_heads, 4)
    assert len(running.listed) == len(cache.layers[0].segments.keys)
    # scores count as bytes
    size = cache.nbytes
    cache.layers[0].running = None
    assert size - cache.nbytes == running.listed.nbytes + running.tail.nbytes
    cache.layers[0].running = running
    cache.save(tmp_path / "c")
    others = [load_cache(tmp_path / "c", loaded), copy.deepcopy(cache), copy.deepcopy(cache)]
    for layer in others[2].reduced:
        layer.batch_select_indices(torch.tensor([0, 0]))
        layer.batch_select_indices(torch.tensor([1]))
    expected = steps(loaded, cache, SLACK + 6)
    for other in others:
        assert torch.equal(steps(loaded, other, SLACK + 6), expected)
