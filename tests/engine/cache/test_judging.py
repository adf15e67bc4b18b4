"""Tokens of lists and tail are judged by all queries of a piece, and by what was found before."""

from __future__ import annotations

import copy

import pytest
import torch

from esscher import load_cache
from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.layer import SLACK
from esscher.engine.cache.scores import observe_all
from esscher.engine.cache.selection import Kept, PlannedRule, held_tokens, look_at_held
from esscher.engine.cache.storage import Carried, RecentQueries, Tail, packed
from esscher.engine.models.weights import rotation_of
from tests.engine.cache.inputs import layer_inputs
from tests.engine.cache.plans import budgets_for, padded, prompts, room_for
from tests.engine.models.tiny import tiny_model

TOKENS = 90


def model(name="llama"):
    return tiny_model(name, strength=4.0, **room_for(name))


def held(inputs, weight=None, listed=30):
    """The first keys in lists, the others in a tail."""
    index = torch.arange(listed)
    weight = torch.zeros(listed) if weight is None else weight
    lists = packed([(inputs.k[0, g], inputs.v[0, g], Kept(index, weight)) for g in range(2)])
    tail = Tail()
    tail.start(inputs.k, inputs.v)
    tail.append(inputs.k[:, :, listed:], inputs.v[:, :, listed:])
    return lists, tail


def scored(loaded, inputs, lists, tail, score="all"):
    recent = RecentQueries(inputs.q)
    recent.add(inputs.q, TOKENS)
    rule = PlannedRule.of(loaded, budgets_for(loaded), score=score)
    looked = look_at_held(
        rule,
        0,
        lists,
        tail,
        inputs.q[:, :, -tail.length :],
        recent,
        TOKENS,
        inputs.scaling,
        inputs.softcap,
    )
    return looked.scores


def test_scores_of_a_piece_are_those_of_a_prompt():
    """When all tokens are in the tail, and none is padding."""
    loaded = model()
    inputs = layer_inputs(queries=TOKENS, keys=TOKENS, d=8, offset=0, strength=2.0)
    lists, tail = held(inputs, listed=0)
    expected = observe_all(inputs, rotation_of(loaded, 0)).score(inputs.v[0])
    for found, wanted in zip(scored(loaded, inputs, lists, tail), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", ["all", "last"])
def test_scores_are_of_one_of_the_tokens_that_a_token_stands_for(score):
    """Twice the same key, against one of weight 2: the same for all other tokens."""
    loaded = model()
    inputs = layer_inputs(queries=TOKENS, keys=TOKENS, d=8, offset=0, strength=2.0)
    for x in (inputs.k, inputs.v):
        x[:, :, 1] = x[:, :, 0]
    twice = scored(loaded, inputs, *held(inputs), score)
    weight = torch.zeros(30)
    weight[0] = torch.tensor(2.0).log()
    lists, tail = held(inputs, weight)
    index = torch.tensor([0, *range(2, 30)])
    lists = packed([(inputs.k[0, g], inputs.v[0, g], Kept(index, weight[:29])) for g in range(2)])
    once = scored(loaded, inputs, lists, tail, score)
    for one, two in zip(once, twice, strict=True):
        torch.testing.assert_close(one[1:], two[2:], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(one[0], two[0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(two[1], two[0], rtol=1e-3, atol=1e-5)


def test_what_is_held_comes_list_by_list():
    inputs = layer_inputs(queries=TOKENS, keys=TOKENS, d=8, offset=0)
    lists, tail = held(inputs)
    tail.hide(torch.arange(60)[None] == 4)
    for g, one in enumerate(held_tokens(lists, tail)):
        assert (one.text, one.key_head, one.listed) == (0, g, 30)
        assert torch.equal(one.keys, inputs.k[0, g])
        assert one.bias[34] == -torch.inf
        assert one.log_weight[34] == 0
        assert one.fresh.sum() == 59


def test_carried_scores_follow_their_tokens():
    inputs = layer_inputs(queries=TOKENS, keys=TOKENS, d=8, offset=0)
    lists, _ = held(inputs)
    carried = Carried(torch.arange(60.0), torch.ones(1, 2, 5))
    found = carried.of(lists, 1, 7)
    assert torch.equal(found, torch.cat([torch.arange(30.0, 60), torch.ones(5), torch.zeros(2)]))
    carried.select(torch.tensor([0, 0]))
    assert carried.held.shape == (2, 2, 5)
    carried.crop(3)
    assert carried.of(lists, 0, 7)[30:].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert carried.nbytes == 4 * (60 + 12)


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
    """Saved and loaded, copied, repeated and chosen: judged again as it would have been."""
    loaded, text = model(name), prompts([60])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded, 0.4), decode="budget", length=60)
    with torch.no_grad():
        loaded.model(input_ids=text, past_key_values=cache)
    steps(loaded, cache, SLACK + 6)
    carried = cache.layers[0].carried
    assert carried.held.shape == (1, loaded.shape.key_heads, 4)
    assert len(carried.listed) == len(cache.layers[0].segments.keys)
    # scores count as bytes
    size = cache.nbytes
    held_scores, cache.layers[0].carried = carried, None
    assert size - cache.nbytes == held_scores.nbytes
    cache.layers[0].carried = held_scores
    cache.save(tmp_path / "c")
    others = [load_cache(tmp_path / "c", loaded), copy.deepcopy(cache), copy.deepcopy(cache)]
    for layer in others[2].reduced:
        layer.batch_select_indices(torch.tensor([0, 0]))
        layer.batch_select_indices(torch.tensor([1]))
    expected = steps(loaded, cache, SLACK + 6)
    for other in others:
        assert torch.equal(steps(loaded, other, SLACK + 6), expected)


def test_scores_of_before_count():
    """Without them other tokens are kept of a prompt in pieces."""
    loaded, text = model(), prompts([160])[0][None]
    found = []
    for forget in (False, True):
        cache = planned_cache(loaded, budgets_for(loaded, 0.25), chunk=40)

        def forget_scores(module, given, cache=cache, forget=forget):
            for layer in cache.reduced:
                layer.carried = None if forget else layer.carried

        handle = loaded.backbone.embed_tokens.register_forward_pre_hook(forget_scores)
        with torch.no_grad():
            loaded.model(input_ids=text, past_key_values=cache)
        handle.remove()
        found.append(cache)
        assert all(layer.carried is None for layer in cache.reduced)
    one, two = (cache.layers[1].segments for cache in found)
    assert one.keys.shape != two.keys.shape or not torch.allclose(one.log_weight, two.log_weight)


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_of_a_batch_in_pieces(side):
    """A text that ends, or begins, in another piece than the longest one."""
    loaded, texts = model(), prompts((120, 50))
    budgets = budgets_for(loaded, 0.4)
    together = planned_cache(loaded, budgets, chunk=40)
    batch = padded(texts, side)
    places = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        loaded.model(**batch, position_ids=places, past_key_values=together)
        alone = planned_cache(loaded, budgets, chunk=40)
        loaded.model(input_ids=texts[0][None], past_key_values=alone)
    for layer, own in zip(together.reduced, alone.reduced, strict=True):
        for g in range(2):
            mine = slice(int(layer.segments.start[g]), int(layer.segments.stop[g]))
            found = layer.segments.log_weight[mine]
            theirs = slice(int(own.segments.start[g]), int(own.segments.stop[g]))
            torch.testing.assert_close(found, own.segments.log_weight[theirs], rtol=1e-3, atol=1e-3)
        assert layer.lengths.tolist() == [120, 50]
