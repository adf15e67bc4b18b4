"""A model that repeats its prompt leaves the cache as it was."""

from __future__ import annotations

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.cache.repeating import FIRST, LATER, OVERLAP, SUFFIX, repeat_prompt
from esscher.engine.models import wrap_model
from tests.engine.cache.plans import prompts
from tests.engine.cache.reading import PROMPT, decoder, read


def state(cache):
    return [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "qwen3"])
def test_the_cache_is_as_it_was(name):
    loaded, ids = decoder(name), prompts([PROMPT])[0]
    cache = read(loaded, ids, lambda inputs: None)
    before, held = state(cache), [(layer.keys, layer.values) for layer in cache.layers]
    repeat_prompt(loaded, ids, cache, lambda inputs, begin, end: None, chunk=32)
    assert cache.get_seq_length() == PROMPT
    for layer, old, own in zip(cache.layers, before, held, strict=True):
        assert torch.equal(layer.keys, old[0])
        assert torch.equal(layer.values, old[1])
        # nothing was copied, and nothing is held on to
        assert layer.keys is own[0]

    class StopHere(Exception):
        pass

    def stop(inputs, begin, end):
        if inputs.layer == 1:
            raise StopHere

    with pytest.raises(StopHere):
        repeat_prompt(loaded, ids, cache, stop)
    assert all(map(torch.equal, sum(state(cache), ()), sum(before, ())))


def test_what_is_read():
    """Chunk by chunk, each after the prompt alone, as one would read it."""
    loaded, ids = decoder(), prompts([PROMPT])[0]
    cache = read(loaded, ids, lambda inputs: None)
    seen = []

    def watch(inputs, begin, end):
        if inputs.layer == 2:
            seen.append((begin, end, inputs))

    repeat_prompt(loaded, ids, cache, watch, chunk=32)
    assert [(begin, end) for begin, end, _ in seen] == [(0, 32), (32, 64), (64, 70)]
    first, later, suffix = (
        torch.tensor(loaded.tokenizer(text, add_special_tokens=False)["input_ids"]).long()
        for text in (FIRST, LATER, SUFFIX)
    )
    for begin, end, inputs in seen:
        told = first if begin == 0 else torch.cat([later, ids[begin - OVERLAP : begin]])
        told = torch.cat([told, suffix, ids[begin:end]])
        assert inputs.q.shape[2] == len(told)
        assert inputs.offset == PROMPT
        expected = []
        whole = torch.cat([ids, told])
        read(loaded, whole, expected.append)
        torch.testing.assert_close(inputs.k, expected[2].k, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(inputs.q, expected[2].q[:, :, PROMPT:], rtol=1e-4, atol=1e-5)


def test_what_cannot_be_repeated():
    loaded, ids = decoder(), prompts([PROMPT])[0]
    cache = read(loaded, ids, lambda inputs: None)
    bare = wrap_model(loaded.model, name="bare")
    with pytest.raises(InputError, match="'bare' was loaded without a tokenizer"):
        repeat_prompt(bare, ids, cache, lambda inputs, begin, end: None)
    ids = prompts([110])[0]
    cache = read(loaded, ids, lambda inputs: None)
    with pytest.raises(InputError, match="reads 200 tokens at most, and cannot repeat a prompt"):
        repeat_prompt(loaded, ids, cache, lambda inputs, begin, end: None)
