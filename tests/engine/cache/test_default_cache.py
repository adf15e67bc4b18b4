"""A model under a plan without being handed a cache."""

from __future__ import annotations

import pytest
import torch

from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.hooks import cache_by_default
from tests.engine.cache.plans import (
    ROTARY,
    budgets_for,
    generated,
    logits_of,
    padded,
    prompts,
    room_for,
)
from tests.engine.models.tiny import tiny_model, transformers


def default_cache(loaded, **options):
    cache = planned_cache(loaded, budgets_for(loaded, **options))
    return cache, cache_by_default(loaded, cache)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_generate_uses_it_for_every_prompt(name):
    loaded = tiny_model(name, **room_for(name))
    first, second = padded(prompts((60, 45))), padded(prompts([50], seed=9))
    before = logits_of(generated(loaded, first))
    cache, block = default_cache(loaded)
    with block:
        found = [logits_of(generated(loaded, batch)) for batch in (first, second)]
        assert cache.get_seq_length() == 55
    assert torch.equal(logits_of(generated(loaded, first)), before)
    assert cache.get_seq_length() == 55
    for batch, one in zip((first, second), found, strict=True):
        own = planned_cache(loaded, budgets_for(loaded))
        assert torch.equal(one, logits_of(generated(loaded, batch, past_key_values=own)))


def test_what_has_another_cache_is_left_alone():
    """A cache that was filled before the block, or no cache at all."""
    loaded, text = tiny_model("llama", **ROTARY), prompts([60])[0][None]
    dense = transformers.DynamicCache(config=loaded.model.config)
    cache, block = default_cache(loaded)
    with torch.no_grad():
        loaded.model(input_ids=text, past_key_values=dense)
        with block:
            again = loaded.model(input_ids=text[:, :3], past_key_values=dense)
            assert again.past_key_values is dense
            assert loaded.model(input_ids=text, use_cache=False).past_key_values is None
            assert cache.get_seq_length() == 0
            assert loaded.model(input_ids=text).past_key_values is cache
    assert dense.get_seq_length() == 63


def test_a_cache_of_fixed_size_is_not_used():
    loaded, batch = tiny_model("llama", **ROTARY), padded(prompts([60, 60]))
    static = transformers.StaticCache(config=loaded.model.config, max_cache_len=80)
    cache, block = default_cache(loaded)
    with block:
        fixed = generated(loaded, batch, past_key_values=static, disable_compile=True)
        assert cache.get_seq_length() == 65
        grows = generated(loaded, batch)
    assert torch.equal(logits_of(fixed), logits_of(grows))
