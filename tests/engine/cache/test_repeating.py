"""Prompts that a model repeats before a cache decides what it keeps of them."""

from __future__ import annotations

import copy

import pytest
import torch

from esscher import load_cache
from esscher.core.errors import InputError
from esscher.engine.cache.cache import ObservedPrompt, planned_cache
from esscher.engine.cache.repeating import (
    FIRST,
    LATER,
    OVERLAP,
    SUFFIX,
    repeat_prompt,
)
from esscher.engine.cache.selection import PlannedRule
from esscher.engine.models.loaded import wrap_model
from esscher.engine.reading import read_prompt
from tests.engine.cache.plans import (
    SHORT,
    budgets_for,
    generated,
    logits_of,
    padded,
    prompts,
    read,
)
from tests.engine.cache.reading import decoder

REPEAT = {"score": "repeat"}


def read_batch(loaded, cache, batch):
    """Texts with padding, each at its own positions."""
    mask = batch["attention_mask"]
    places = (mask.cumsum(1) - 1).clamp(min=0)
    return read(loaded, cache, batch["input_ids"], attention_mask=mask, position_ids=places)


def lists(cache, number=0):
    """Keys and log-weights of every list of the reduced layers; of one text of a batch."""
    out = []
    for layer in cache.reduced:
        key_heads = layer.tail.keys.shape[1]
        for g in range(key_heads):
            keys, _, weight = layer.segments.one(number * key_heads + g)
            out.append((keys, weight))
    return out


def same_lists(result, expected):
    for (keys, weight), (wanted, wanted_weight) in zip(result, expected, strict=True):
        torch.testing.assert_close(keys, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(weight, wanted_weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma2", "gemma3_text", "smollm3"])
def test_what_is_kept_is_what_the_check_of_a_plan_keeps(name):
    loaded, ids = decoder(name), prompts([70])[0]
    budgets = budgets_for(loaded, 0.3, spread=0.5)
    cache = planned_cache(loaded, budgets, seed=3, **REPEAT)
    read(loaded, cache, ids[None])
    prompt = ObservedPrompt(loaded, ids.numpy(), SHORT, "repeat")
    rule = PlannedRule(loaded, budgets, 3)
    kept = {}
    for n, scores in prompt.scores.items():
        source = prompt.cache.layers[n]
        kept[n] = rule.choose(n, torch.arange(70), scores, [], source.keys[0], source.values[0])
    expected = prompt.reduced(kept)
    assert cache.kept.tolist() == expected.kept.tolist()
    same_lists(lists(cache), lists(expected))
    # and something else than without the repetition
    plain = planned_cache(loaded, budgets, seed=3)
    read(loaded, plain, ids[None])
    assert any(
        len(a[1]) != len(b[1]) or not torch.allclose(a[1], b[1])
        for a, b in zip(lists(cache), lists(plain), strict=True)
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_a_text_of_a_batch_is_kept_as_it_is_alone(name, side):
    loaded, texts = decoder(name), prompts((70, 41, 3))
    budgets = budgets_for(loaded, 0.4)
    together = planned_cache(loaded, budgets, **REPEAT)
    read_batch(loaded, together, padded(texts, side))
    for i, text in enumerate(texts):
        cache = planned_cache(loaded, budgets, **REPEAT)
        read_batch(loaded, cache, padded([text]))
        same_lists(lists(together, i), lists(cache))


@pytest.mark.parametrize("side", ["left", "right"])
def test_generation(side):
    """All kept: dense. Part kept: beams and inference mode work."""
    loaded, batch = decoder(), padded(prompts((60, 41, 3)), side)
    full = planned_cache(loaded, budgets_for(loaded, 0.999), **REPEAT)
    dense = logits_of(generated(loaded, batch))
    result = logits_of(generated(loaded, batch, past_key_values=full))
    torch.testing.assert_close(result[:, 0], dense[:, 0], rtol=1e-4, atol=1e-4)
    part = planned_cache(loaded, budgets_for(loaded, 0.4), **REPEAT)
    with torch.inference_mode():
        generated(loaded, batch, past_key_values=part, num_beams=2)
    # six beams of 65 tokens, most of them of the prompt
    assert part.kept.max() < 0.6 * 6 * 65


def test_a_tokenizer_is_needed(tmp_path):
    loaded = decoder()
    bare = wrap_model(loaded.model, name="bare")
    with pytest.raises(InputError, match=r"'bare' was loaded without a tokenizer.*score='all'"):
        planned_cache(bare, budgets_for(bare), **REPEAT)
    # going on from a cache that was saved needs none, reading another prompt does
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    ids = prompts([60])[0][None]
    read(loaded, cache, ids)
    cache.save(tmp_path / "c")
    again = load_cache(tmp_path / "c", loaded.model)
    assert torch.equal(read(loaded, again, ids[:, :3]), read(loaded, cache, ids[:, :3]))
    again.reset()
    with pytest.raises(InputError, match="without its tokenizer"):
        read(loaded, again, ids)


def test_refusals():
    loaded, ids = decoder(), prompts([120])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    with pytest.raises(InputError, match=r"reads 200 tokens.* of 120 tokens .*choose score='all'"):
        read(loaded, cache, ids)
    for options in ({"chunk": 40}, {"decode": "budget"}):
        with pytest.raises(InputError, match="a prompt is read and repeated as a whole"):
            planned_cache(loaded, budgets_for(loaded), **options, **REPEAT)
    embedded = loaded.backbone.embed_tokens(ids[:, :60]).detach()
    with pytest.raises(InputError, match="inputs_embeds cannot be repeated"):
        loaded.model(inputs_embeds=embedded, past_key_values=cache)
    mask = torch.zeros(1, 1, 60, 60)
    with pytest.raises(InputError, match=r"repeated with an attention mask \[batch, tokens\]"):
        read(loaded, cache, ids[:, :60], attention_mask=mask)
    # that did no harm
    read(loaded, cache, ids[:, :60])
    assert cache.get_seq_length() == 60


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("at", [0, 1])
def test_what_was_interrupted_is_not_gone_on_from(error, at, tmp_path):
    """In the first reading or in the repetition."""
    loaded, ids = decoder(), prompts([60])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    expected = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    read(loaded, expected, ids)
    calls = []

    def stop(*given):
        calls.append(1)
        if len(calls) == at + 1:
            raise error

    handle = loaded.backbone.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(error):
        read(loaded, cache, ids)
    handle.remove()
    for broken in (cache, copy.deepcopy(cache)):
        with pytest.raises(InputError, match=r"the cache is unfinished: .* cache.reset\(\)"):
            read(loaded, broken, ids[:, :1])
        with pytest.raises(InputError, match="the cache is unfinished"):
            broken.save(tmp_path / "c")
    cache.reset()
    read(loaded, cache, ids)
    same_lists(lists(cache), lists(expected))


def state(cache):
    return [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "qwen3"])
def test_the_cache_is_as_it_was(name):
    loaded, ids = decoder(name), prompts([70])[0]
    cache = read_prompt(loaded, ids, lambda inputs: None)
    before, tensors = state(cache), [layer.keys for layer in cache.layers]
    repeat_prompt(loaded, ids, cache, lambda inputs, begin, end: None, chunk=32)
    assert cache.get_seq_length() == 70
    for layer, old, keys in zip(cache.layers, before, tensors, strict=True):
        assert torch.equal(layer.keys, old[0])
        assert torch.equal(layer.values, old[1])
        assert layer.keys is keys  # nothing was copied

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
    loaded, ids = decoder(), prompts([70])[0]
    cache = read_prompt(loaded, ids, lambda inputs: None)
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
        instruction = first if begin == 0 else torch.cat([later, ids[begin - OVERLAP : begin]])
        instruction = torch.cat([instruction, suffix, ids[begin:end]])
        assert inputs.q.shape[2] == len(instruction)
        assert inputs.offset == 70
        expected = []
        whole = torch.cat([ids, instruction])
        read_prompt(loaded, whole, expected.append)
        torch.testing.assert_close(inputs.k, expected[2].k, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(inputs.q, expected[2].q[:, :, 70:], rtol=1e-4, atol=1e-5)
