"""Prompts that a model repeats before a cache decides what it keeps of them."""

from __future__ import annotations

import copy

import pytest
import torch

from esscher import load_cache
from esscher.core.errors import InputError
from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.layer import SLACK
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.repeating import CHUNK, repeat_read
from esscher.engine.cache.selection import PlannedRule
from esscher.engine.cache.storage import one_list
from esscher.engine.models import wrap_model
from tests.engine.cache.plans import (
    SHORT,
    budgets_for,
    generated,
    logits_of,
    padded,
    prompts,
    room_for,
)
from tests.engine.models.folders import decoder_tokenizer
from tests.engine.models.tiny import tiny_model

REPEAT = {"score": "repeat"}


def model(name="llama"):
    bare = tiny_model(name, strength=4.0, **room_for(name))
    return wrap_model(bare.model, decoder_tokenizer(), name=name)


def read(loaded, cache, ids, **options):
    with torch.no_grad():
        return loaded.model(input_ids=ids, past_key_values=cache, **options).logits


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
            keys, _, weight = one_list(layer.segments, number * key_heads + g)
            out.append((keys, weight))
    return out


def same_lists(found, expected):
    for (keys, weight), (wanted, wanted_weight) in zip(found, expected, strict=True):
        torch.testing.assert_close(keys, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(weight, wanted_weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma2", "gemma3_text", "smollm3"])
def test_what_is_kept_is_what_the_check_of_a_plan_keeps(name):
    loaded, ids = model(name), prompts([70])[0]
    budgets = budgets_for(loaded, 0.3, spread=0.5)
    cache = planned_cache(loaded, budgets, seed=3, **REPEAT)
    read(loaded, cache, ids[None])
    prompt = ObservedPrompt(loaded, ids.numpy(), SHORT, "repeat")
    rule = PlannedRule.of(loaded, budgets, 3)
    kept = {n: rule.choose(n, torch.arange(70), scores) for n, scores in prompt.scores.items()}
    expected = prompt.reduced(kept)
    assert cache.kept.tolist() == expected.kept.tolist()
    same_lists(lists(cache), lists(expected))
    # and something else than without the repetition
    plain = planned_cache(loaded, budgets, seed=3)
    read(loaded, plain, ids[None])
    assert any(
        len(one[1]) != len(two[1]) or not torch.allclose(one[1], two[1])
        for one, two in zip(lists(cache), lists(plain), strict=True)
    )


def test_the_answer_is_that_of_the_first_reading():
    loaded, ids = model(), prompts([70])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    with torch.no_grad():
        expected = loaded.model(input_ids=ids).logits
    assert torch.equal(read(loaded, cache, ids), expected)
    assert cache.get_seq_length() == 70
    assert all(layer.tail.length == 0 for layer in cache.reduced)
    assert not cache.call.unfinished


@pytest.mark.parametrize("options", [{}, {"chunk": 24}, {"decode": "budget", "length": 60}])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_a_text_of_a_batch_is_kept_as_it_is_alone(name, side, options):
    if side == "right" and "chunk" in options:
        pytest.skip("texts end in different pieces")
    loaded, texts = model(name), prompts((70, 41, 3))
    budgets = budgets_for(loaded, 0.4)
    batch = padded(texts, side)
    if "chunk" in options:
        # pieces of a text that is shorter begin elsewhere: a batch of texts of one length
        texts = prompts((70, 70))
        batch = padded(texts, width=72)
        alone = [padded([text], width=72) for text in texts]
    else:
        alone = [padded([text]) for text in texts]
    together = planned_cache(loaded, budgets, **REPEAT, **options)
    read_batch(loaded, together, batch)
    for i, one in enumerate(alone):
        cache = planned_cache(loaded, budgets, **REPEAT, **options)
        read_batch(loaded, cache, one)
        same_lists(lists(together, i), lists(cache))


@pytest.mark.parametrize("options", [{}, {"chunk": 24}, {"decode": "budget", "chunk": 24}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_generation(side, options):
    """All kept: dense. Part kept: beams and inference mode work."""
    loaded, batch = model(), padded(prompts((60, 41, 3)), side)
    full = planned_cache(loaded, budgets_for(loaded, 0.999), **REPEAT, **options)
    dense = logits_of(generated(loaded, batch))
    if side == "left" or "chunk" not in options:
        found = logits_of(generated(loaded, batch, past_key_values=full))
        torch.testing.assert_close(found[:, 0], dense[:, 0], rtol=1e-4, atol=1e-4)
    part = planned_cache(loaded, budgets_for(loaded, 0.4), **REPEAT, **options)
    with torch.inference_mode():
        generated(loaded, batch, past_key_values=part, num_beams=2)
    # six beams of 65 tokens, most of them of the prompt
    assert part.kept.max() < 0.6 * 6 * 65


def test_pieces_are_repeated_as_they_come():
    """Only a piece is held whole, and repeated after an instruction of its own."""
    loaded, ids = model(), prompts([120])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded, 0.25), chunk=40, **REPEAT)
    seen = []
    handle = loaded.backbone.embed_tokens.register_forward_pre_hook(
        lambda module, given: seen.append((given[0][0].clone(), cache.kept.max()))
    )
    read(loaded, cache, ids)
    handle.remove()
    told = cache.instruction
    assert len(seen) == 6
    for piece in range(3):
        own = ids[0, 40 * piece : 40 * piece + 40]
        assert torch.equal(seen[2 * piece][0], own)
        before = None if piece == 0 else ids[0, : 40 * piece]
        assert torch.equal(seen[2 * piece + 1][0], told.reading(own, before))
        # what was kept, and the piece
        assert seen[2 * piece + 1][1] <= 0.25 * 40 * piece + 40 + 4
    assert cache.kept.tolist() == [[30, 30]] * 3
    assert cache.get_seq_length() == 120
    assert all(layer.recent is None and layer.carried is None for layer in cache.reduced)


def test_long_parts_are_repeated_in_chunks():
    """The same sums as the check takes, in chunks of the same length."""
    loaded, ids = model(), prompts([70])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    calls = []

    def forward(**given):
        calls.append(given["input_ids"].shape[1])
        return loaded.backbone(**given)

    layer_decides = [layer.decide for layer in cache.reduced]
    for layer in cache.reduced:
        layer.decide = lambda: None
    read(loaded, cache, ids)
    repeat_read(forward, cache, {"input_ids": ids}, chunk=32)
    for layer, decide in zip(cache.reduced, layer_decides, strict=True):
        del layer.decide
        decide()
    told = cache.instruction
    assert calls == [len(told.first) + 1 * len(told.suffix) + 32] + [
        len(told.later) + 8 + len(told.suffix) + n for n in (32, 6)
    ]
    assert cache.get_seq_length() == 70
    assert CHUNK > 32


def test_later_prompts_share_the_budgets():
    """With decode="budget" a long second turn is repeated too; single tokens are not."""
    loaded, (first, second) = model(), prompts((40, SLACK + 10))
    cache = planned_cache(loaded, budgets_for(loaded, 0.3), decode="budget", **REPEAT)
    calls = []
    handle = loaded.backbone.embed_tokens.register_forward_pre_hook(
        lambda module, given: calls.append(given[0].shape[1])
    )
    places = torch.arange(40, 40 + SLACK + 10)[None] % 150
    read(loaded, cache, first[None])
    read(loaded, cache, second[None, :1])
    assert len(calls) == 3
    with pytest.raises(InputError, match="cannot repeat a prompt of 179 tokens"):
        read(loaded, cache, second[None], position_ids=places)
    handle.remove()
    # that did no harm
    read(loaded, cache, second[None, :1])
    assert cache.get_seq_length() == 42


def test_a_tokenizer_is_needed(tmp_path):
    loaded = model()
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
    loaded, ids = model(), prompts([120])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    with pytest.raises(InputError, match=r"reads 200 tokens.* of 120 tokens .*\(chunk=\.\.\.\)"):
        read(loaded, cache, ids)
    pieces = planned_cache(loaded, budgets_for(loaded), chunk=40, **REPEAT)
    read(loaded, pieces, ids)
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
@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("chunk", [None, 30])
def test_what_was_interrupted_is_not_gone_on_from(error, at, chunk, tmp_path):
    """In the first reading or in the repetition, of any piece."""
    loaded, ids = model(), prompts([60])[0][None]
    if at == 3 and chunk is None:
        pytest.skip("there are two calls")
    cache = planned_cache(loaded, budgets_for(loaded), chunk=chunk, **REPEAT)
    expected = planned_cache(loaded, budgets_for(loaded), chunk=chunk, **REPEAT)
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


def test_copies_hold_no_model():
    loaded, ids = model(), prompts([60])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    read(loaded, cache, ids)
    branch = copy.deepcopy(cache)
    assert branch.instruction == cache.instruction
    assert torch.equal(read(loaded, branch, ids[:, :5]), read(loaded, cache, ids[:, :5]))


def test_short_prompts_are_not_repeated():
    loaded, ids = model(), prompts([6])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded), **REPEAT)
    calls = []
    handle = loaded.backbone.register_forward_hook(lambda *given: calls.append(1))
    read(loaded, cache, ids)
    handle.remove()
    assert calls == [1]
    assert cache.kept.tolist() == [[6, 6]] * 3
