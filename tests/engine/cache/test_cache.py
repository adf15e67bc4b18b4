"""A reduced cache is dense attention over what it keeps, whatever is done with it."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.attention.bits import coded_bytes
from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.hooks import cache_by_default
from esscher.engine.cache.layer import SLACK
from esscher.engine.models.capture import attention_override
from tests.engine.cache.plans import (
    LONG,
    NEW,
    SHORT,
    MaskedPlan,
    budgets_for,
    decoder,
    generated,
    logits_of,
    padded,
    prompts,
    read,
    room_for,
)
from tests.engine.models.tiny import tiny_model, transformers

ROOT = Path(__file__).parents[3]
#: Every kind of decoder with a layer that sees all tokens.
DECODERS = (
    "gpt2",
    "gpt2 scaled",
    "llama",
    "llama one key head",
    "qwen2",
    "qwen3",
    "smollm3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3",
)
#: Largest difference of logits: rounding of float32 through three layers. Weights are moderate, so
#: that logits are near 1 and attention does not magnify what rounding does.
ROUNDING = 1e-5


def same(result, expected):
    torch.testing.assert_close(result, expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_all_tokens_are_dense_generation(name, side):
    """Alone and in a batch with padding, and in a second turn."""
    loaded = decoder(name)
    for lengths in ((40,), (40, 23, 1)):
        batch = padded(prompts(lengths), side)
        cache = planned_cache(loaded, budgets_for(loaded, 1.0))
        dense = transformers.DynamicCache(config=loaded.model.config)
        before = generated(loaded, batch, past_key_values=dense)
        under = generated(loaded, batch, past_key_values=cache)
        assert torch.equal(under.sequences, before.sequences)
        same(logits_of(under), logits_of(before))
        more = {
            "input_ids": torch.cat([under.sequences, *[batch["input_ids"][:, -3:]] * 2], dim=1),
            "attention_mask": torch.cat(
                [batch["attention_mask"], torch.ones(len(lengths), NEW + 6, dtype=torch.long)], 1
            ),
        }
        before = generated(loaded, more, past_key_values=dense)
        under = generated(loaded, more, past_key_values=cache)
        assert torch.equal(under.sequences, before.sequences)
        same(logits_of(under), logits_of(before))


@pytest.mark.parametrize(
    ("selection", "bits"),
    [("sample", None), ("fitted", None), ("topk", None), ("sample", (8, 8)), ("fitted", (8, 4))],
)
@pytest.mark.parametrize("name", DECODERS)
def test_any_budget_is_the_masked_computation(name, selection, bits):
    loaded = decoder(name)
    batch = padded(prompts((60, 31)))
    budgets = budgets_for(loaded, 0.4, spread=0.5, selection=selection, bits=bits)
    with attention_override(loaded, MaskedPlan(loaded, budgets)):
        masked = generated(loaded, batch)
    cache = planned_cache(loaded, budgets)
    result = generated(loaded, batch, past_key_values=cache)
    assert torch.equal(result.sequences, masked.sequences)
    same(logits_of(result), logits_of(masked))
    dense = logits_of(generated(loaded, batch))
    assert (logits_of(result) - dense)[:, 1:].abs().max() > 100 * ROUNDING


def test_what_is_kept_and_what_it_takes():
    loaded = decoder()
    budgets = budgets_for(loaded, 0.25, spread=0.5)
    cache = planned_cache(loaded, budgets)
    assert repr(cache) == "ReducedCache(empty)"
    assert cache.nbytes == cache.dense_nbytes == 0
    assert cache.kept.tolist() == [[0, 0]] * 3
    ids = prompts([120])[0][None]
    read(loaded, cache, ids)
    wanted = np.ceil(budgets.ratios * 120 - 1e-9).astype(int)
    assert cache.kept.tolist() == wanted.tolist()
    # keys and values of 8 floats, a weight each, and two numbers per list
    assert cache.nbytes == wanted.sum() * (2 * 8 + 1) * 4 + 3 * 2 * 2 * 8
    assert cache.dense_nbytes == 3 * 2 * 120 * 2 * 8 * 4
    coded = planned_cache(loaded, budgets_for(loaded, 0.25, spread=0.5, bits=(8, 4)))
    read(loaded, coded, ids)
    assert coded.kept.tolist() == wanted.tolist()
    # tokens that are kept for certain are as they were, and five numbers more per list
    certain = 6 * SHORT.count * (2 * 8 + 1) * 4 + 3 * 2 * (2 + 5) * 8
    codes = sum(coded_bytes(n - SHORT.count, 8, 8, (8, 4)) for n in wanted.flatten().tolist())
    assert coded.nbytes == certain + codes
    assert "1 text of 120 tokens" in repr(cache)
    read(loaded, cache, ids[:, :3])
    assert cache.kept.tolist() == (wanted + 3).tolist()
    assert cache.get_seq_length() == 123


def test_a_model_used_with_another_cache_is_what_it_was():
    loaded, batch = decoder(), padded(prompts((40, 23)))
    before = logits_of(generated(loaded, batch))
    names = [loaded.model.config._attn_implementation, loaded.backbone.config._attn_implementation]
    cache = planned_cache(loaded, budgets_for(loaded))
    forward = loaded.backbone.forward
    planned_cache(loaded, budgets_for(loaded))
    generated(loaded, batch, past_key_values=cache)
    assert torch.equal(logits_of(generated(loaded, batch)), before)
    after = [loaded.model.config._attn_implementation, loaded.backbone.config._attn_implementation]
    assert after == names
    # one forward, however many caches
    assert loaded.backbone.forward == forward


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("options", [{}, {"chunk": 16, "decode": "budget"}])
def test_a_call_that_fails_leaves_the_model_as_it_was(options, error):
    """The cache of which only some layers know the call refuses to go on."""
    loaded, text = decoder(), prompts([40])[0][None]
    names = loaded.backbone.config._attn_implementation
    cache = planned_cache(loaded, budgets_for(loaded), **options)

    def stop(*given):
        raise error

    handle = loaded.backbone.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(error), torch.no_grad():
        loaded.model(input_ids=text, past_key_values=cache)
    handle.remove()
    assert loaded.backbone.config._attn_implementation == names
    assert not cache.call.reading
    with torch.no_grad(), pytest.raises(InputError, match="the cache is unfinished"):
        loaded.model(input_ids=text, past_key_values=cache)
    cache.reset()
    read(loaded, cache, text)
    assert cache.get_seq_length() == 40


def test_copies_of_a_model_know_the_cache_too():
    loaded, batch = decoder(), padded(prompts((40,)))
    cache = planned_cache(loaded, budgets_for(loaded))
    expected = logits_of(generated(loaded, batch, past_key_values=cache))
    other = copy.deepcopy(loaded.model)
    loaded.model.set_attn_implementation("eager")
    again = planned_cache(loaded, budgets_for(loaded))
    copied = SimpleNamespace(model=other)
    same(logits_of(generated(copied, batch, past_key_values=again)), expected)


@pytest.mark.parametrize("selection", ["sample", "fitted"])
def test_eight_bits_are_as_close_to_dense_as_sixteen(selection):
    loaded, kl = decoder(), {}
    for bits in (None, (8, 8)):
        budgets = budgets_for(loaded, 0.4, selection=selection, bits=bits)
        for text in prompts([120] * 6):
            cache = planned_cache(loaded, budgets)
            read(loaded, cache, text[None, :100])
            dense, reduced = (
                torch.log_softmax(x[0, -20:].double(), -1)
                for x in (read(loaded, None, text[None]), read(loaded, cache, text[None, 100:]))
            )
            each = (dense.exp() * (dense - reduced)).sum(-1).mean()
            kl[bits] = kl.get(bits, 0.0) + float(each)
    assert 0 < kl[8, 8] < 1.05 * kl[None]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_generated_tokens_get_fewer_bits_when_they_leave_the_window(name):
    """In batches too; what is told apart from full precision is rounding."""
    loaded = tiny_model(name, strength=4.0, max_position_embeddings=400)
    texts, more = prompts([70, 50]), prompts([SLACK + 60, SLACK + 60], seed=9)
    plain, coded = (
        planned_cache(loaded, budgets_for(loaded, 0.4, bits=bits)) for bits in (None, (8, 8))
    )
    batch = padded(texts)
    logits = []
    for cache in (plain, coded):
        read(loaded, cache, ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        mask = torch.cat([batch["attention_mask"], torch.ones(2, SLACK + 60, dtype=torch.long)], 1)
        for start in range(0, SLACK + 60, 10):
            ids = torch.stack(more)[:, start : start + 10]
            seen = mask[:, : batch["input_ids"].shape[1] + start + 10]
            out = read(loaded, cache, ids, attention_mask=seen)
        logits.append(out)
    torch.testing.assert_close(*logits, rtol=0.02, atol=0.02)
    assert coded.kept.tolist() == plain.kept.tolist()
    layer = coded.reduced[0]
    assert layer.tail.length <= layer.rule.keeping.recent + 60
    assert coded.nbytes < 0.6 * plain.nbytes
    if name == "gemma2":  # transformers' layers with a sliding window give nothing back
        return
    # the latest can be taken back, what was rounded cannot
    before = coded.get_seq_length()
    coded.crop(-10)
    assert coded.get_seq_length() == before - 10
    with pytest.raises(InputError, match="the others were reduced already"):
        coded.crop(-60)


@pytest.mark.parametrize("bits", [None, (8, 8)])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_beams_share_what_was_read(name, bits):
    loaded, batch = decoder(name), padded(prompts((40, 31)))
    options = {"num_beams": 3, "num_return_sequences": 2}
    full = planned_cache(loaded, budgets_for(loaded, 1.0))
    result = generated(loaded, batch, past_key_values=full, **options).sequences
    assert torch.equal(result, generated(loaded, batch, **options).sequences)
    budgets = budgets_for(loaded, 0.4, bits=bits)
    # beams of one prompt keep the same, and change places only among themselves
    with attention_override(loaded, MaskedPlan(loaded, budgets)):
        masked = generated(loaded, batch, **options)
    under = generated(loaded, batch, past_key_values=planned_cache(loaded, budgets), **options)
    assert torch.equal(under.sequences, masked.sequences)
    same(under.sequences_scores, masked.sequences_scores)


@pytest.mark.parametrize("decode", ["keep", "budget"])
def test_assisted_decoding_takes_tokens_back(decode):
    """Candidates are looked up in the prompt; those that are wrong go."""
    loaded = decoder()
    text = torch.cat([prompts([20])[0]] * 2)[None]
    batch = {"input_ids": text, "attention_mask": torch.ones_like(text)}
    lookup = {"prompt_lookup_num_tokens": 3}
    everything = planned_cache(loaded, budgets_for(loaded, 1.0), decode=decode)
    result = generated(loaded, batch, new=20, past_key_values=everything, **lookup)
    assert torch.equal(result.sequences, generated(loaded, batch, new=20).sequences)
    plain, assisted = (
        planned_cache(loaded, budgets_for(loaded, 0.5), decode=decode) for _ in range(2)
    )
    generated(loaded, batch, new=20, past_key_values=plain)
    generated(loaded, batch, new=20, past_key_values=assisted, **lookup)
    assert assisted.get_seq_length() == plain.get_seq_length()
    # candidates that were read with the prompt count as its tokens when it is reduced
    assert np.abs(assisted.kept - plain.kept).max() <= 2
    with pytest.raises(InputError, match="the others were reduced already"):
        assisted.crop(-30)


def test_tokens_of_a_prompt_that_are_taken_back():
    """The latest are in every list, at its end; not those of several texts."""
    loaded, text = decoder(), prompts([60])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded, 0.5, bits=(8, 8)))
    read(loaded, cache, text)
    before = cache.layers[0].segments
    cache.crop(-3)
    after = cache.layers[0].segments
    assert cache.get_seq_length() == 57
    assert torch.equal(after.stop, before.stop - 3)
    assert torch.equal(after.codes.table, before.codes.table)
    assert torch.all(before.log_weight[(before.stop - 1)[:, None] - torch.arange(3)] == 0)
    cache.crop(-1)
    with pytest.raises(InputError, match="and the cache can give back 0"):
        cache.crop(-1)
    # what a positive number means has changed in transformers, which refuses it
    for count in (1, 25, 56):
        with pytest.raises(InputError, match=rf"crop\(-{count}\) takes back {count}$"):
            cache.crop(count)
    assert cache.get_seq_length() == 56
    two = planned_cache(loaded, budgets_for(loaded, 0.5))
    with torch.no_grad():
        loaded.model(**padded(prompts((40, 31))), past_key_values=two)
    with pytest.raises(InputError, match="can give back 0"):
        two.crop(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """All tokens: as near to dense as dense computed in two ways is to itself."""
    loaded = decoder()
    loaded.model.to(dtype)
    batch = padded(prompts((40, 23)))
    cache = planned_cache(loaded, budgets_for(loaded, 1.0))
    ids = batch["input_ids"]
    with torch.no_grad():
        loaded.model(**batch, past_key_values=cache)
        assert cache.layers[0].segments.keys.dtype == dtype
        dense = transformers.DynamicCache(config=loaded.model.config)
        loaded.model(**batch, past_key_values=dense)
        mask = torch.cat([batch["attention_mask"], torch.ones(2, 1, dtype=torch.long)], 1)
        result, expected = (
            loaded.model(input_ids=ids[:, :1], attention_mask=mask, past_key_values=c).logits
            for c in (cache, dense)
        )
    rounding = torch.finfo(dtype).eps
    assert (result - expected).abs().max() < 8 * rounding * expected.abs().max()
    assert cache.dense_nbytes == 3 * 2 * 2 * 41 * 16 * 2


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen3"])
@pytest.mark.parametrize("lengths", [(50,), (50, 13, 37)])
def test_a_prompt_in_pieces_is_the_prompt(name, lengths):
    """When all is kept. The last piece answers; a text may be padding only in the first ones."""
    loaded, batch = decoder(name), padded(prompts(lengths))
    cache = planned_cache(loaded, budgets_for(loaded, 1.0), chunk=16)
    result = generated(loaded, batch, past_key_values=cache)
    dense = generated(loaded, batch)
    assert torch.equal(result.sequences, dense.sequences)
    same(logits_of(result), logits_of(dense))


@pytest.mark.parametrize("selection", ["sample", "fitted"])
def test_pieces_are_reduced_as_they_come(selection):
    loaded, text = decoder(), prompts([180])[0][None]
    budgets = budgets_for(loaded, 0.25, selection=selection)
    whole, pieces = planned_cache(loaded, budgets), planned_cache(loaded, budgets, chunk=40)
    sizes = []
    handle = loaded.backbone.register_forward_hook(lambda *given: sizes.append(pieces.nbytes))
    read(loaded, pieces, text)
    handle.remove()
    read(loaded, whole, text)
    assert len(sizes) == 5
    assert pieces.kept.tolist() == whole.kept.tolist() == [[45, 45]] * 3
    assert pieces.get_seq_length() == 180
    # beside what is kept there are 64 queries of 4 heads in each layer
    assert max(sizes) < 1.1 * whole.nbytes + 3 * 64 * 4 * 8 * 4
    # what judges tokens is given back when the prompt is read
    assert all(layer.recent is None for layer in pieces.reduced)


def test_generation_of_any_length_in_bounded_memory():
    loaded, text = decoder(), prompts([60])[0][None]
    budgets = budgets_for(loaded, 0.25)
    cache = planned_cache(loaded, budgets, decode="budget", length=60)
    grows = planned_cache(loaded, budgets, decode="budget")
    sizes: dict[int, list[int]] = {}
    with torch.no_grad():
        for each in (cache, grows):
            loaded.model(input_ids=text, past_key_values=each)
            for _ in range(4 * SLACK + 10):
                token = torch.tensor([[7]])
                place = torch.tensor([[each.get_seq_length() % 190]])
                loaded.model(input_ids=token, past_key_values=each, position_ids=place)
                sizes.setdefault(id(each), []).append(int(each.kept.max()))
    bound = (
        15 + 4 + SLACK
    )  # the budget, what is always recent, and what comes before it is selected
    assert max(sizes[id(cache)]) <= bound
    assert max(sizes[id(grows)]) <= 0.25 * (60 + 4 * SLACK + 10) + 4 + SLACK
    assert max(sizes[id(grows)]) > bound
    assert cache.get_seq_length() == 60 + 4 * SLACK + 10


@pytest.mark.parametrize(
    ("selection", "bits"), [("sample", None), ("fitted", None), ("fitted", (8, 8))]
)
def test_a_text_of_a_batch_is_selected_as_it_is_alone(selection, bits):
    """Also when it is selected again and again: padding and other texts change nothing."""
    loaded, texts = decoder(), prompts((30, 44))
    batch, budgets = padded(texts), budgets_for(loaded, 0.4, selection=selection, bits=bits)
    options = {"decode": "budget", "length": 44}
    new = SLACK + 40
    with torch.no_grad():
        together = planned_cache(loaded, budgets, **options)
        mask = batch["attention_mask"]
        places = (mask.cumsum(1) - 1).clamp(min=0)
        loaded.model(**batch, position_ids=places, past_key_values=together)
        rows = []
        for step in range(new):
            mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)
            rows.append(
                loaded.model(
                    input_ids=torch.full((2, 1), 5 + step % 40),
                    attention_mask=mask,
                    position_ids=(mask.sum(1, keepdim=True) - 1) % 190,
                    past_key_values=together,
                ).logits[:, -1]
            )
        for i, text in enumerate(texts):
            alone = planned_cache(loaded, budgets, **options)
            loaded.model(input_ids=text[None], past_key_values=alone)
            for step, row in enumerate(rows):
                place = torch.tensor([[(len(text) + step) % 190]])
                result = loaded.model(
                    input_ids=torch.tensor([[5 + step % 40]]),
                    position_ids=place,
                    past_key_values=alone,
                ).logits[:, -1]
                # rounding may move a code by one
                near = 1e-4 if bits is None else 2e-3
                torch.testing.assert_close(result, row[i : i + 1], rtol=near, atol=near)


def test_inference_mode_and_no_gradients():
    loaded, text = decoder(), prompts([60])[0][None]
    loaded.model.requires_grad_(True)
    caches = [planned_cache(loaded, budgets_for(loaded)) for _ in range(3)]
    with torch.inference_mode():
        loaded.model(input_ids=text, past_key_values=caches[0])
        loaded.model(input_ids=text[:, :1], past_key_values=caches[0])
    with torch.no_grad():
        loaded.model(input_ids=text, past_key_values=caches[1])
        loaded.model(input_ids=text[:, :1], past_key_values=caches[1])
        result = [
            loaded.model(input_ids=text[:, :12], past_key_values=c).logits for c in caches[:2]
        ]
    same(result[1], result[0])
    # queries, keys and values would get none: refused before anything is read
    with pytest.raises(InputError, match=r"no gradients flow .* torch.no_grad"):
        loaded.model(input_ids=text, past_key_values=caches[2])
    with pytest.raises(InputError, match="no gradients flow"):
        loaded.model(input_ids=text[:, :1], past_key_values=caches[1])
    with torch.no_grad():
        loaded.model(input_ids=text, past_key_values=caches[2])
        loaded.model(input_ids=text[:, :1], past_key_values=caches[2])
        same(loaded.model(input_ids=text[:, :12], past_key_values=caches[2]).logits, result[0])
        loaded.model(input_ids=text[:, :1], past_key_values=caches[1])
    # of a layer behind, or of queries alone, or of inputs: refused too, and the cache is as it was
    loaded.model.requires_grad_(False)
    loaded.backbone.layers[1].self_attn.q_proj.requires_grad_(True)
    seen = caches[0].get_seq_length()
    with pytest.raises(InputError, match="no gradients flow"):
        loaded.model(input_ids=text[:, :1], past_key_values=caches[0])
    loaded.model.requires_grad_(False)
    given = torch.zeros(1, 1, loaded.shape.hidden, requires_grad=True)
    with pytest.raises(InputError, match="no gradients flow"):
        loaded.model(inputs_embeds=given, past_key_values=caches[0])
    assert [layer.seen for layer in caches[0].layers] == [seen] * len(caches[0].layers)
    loaded.model(input_ids=text[:, :1], past_key_values=caches[0])
    # those of the head flow
    loaded.model.requires_grad_(False).lm_head.requires_grad_(True)
    caches[0].reset()
    loaded.model(input_ids=text, past_key_values=caches[0]).logits.sum().backward()
    assert loaded.model.lm_head.weight.grad.abs().sum() > 0


def test_autocast_is_refused_before_anything_is_read():
    loaded, text = decoder(), prompts([60])[0][None]
    cache = planned_cache(loaded, budgets_for(loaded))
    for given in (text, text[:, :1]):
        refused = pytest.raises(InputError, match=r"outside of torch\.autocast")
        with refused, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            loaded.model(input_ids=given, past_key_values=cache)
        read(loaded, cache, given)
    assert cache.get_seq_length() == 61


def test_prompts_shorter_than_what_is_certain_are_kept_whole():
    loaded = decoder()
    for length in (1, 3, 35, 36, 37):
        batch = padded(prompts([length]))
        cache = planned_cache(loaded, budgets_for(loaded, keeping=LONG))
        same(
            logits_of(generated(loaded, batch, past_key_values=cache)),
            logits_of(generated(loaded, batch)),
        )
        assert cache.kept.tolist() == [[length + NEW - 1] * 2] * 3


def test_refusals():
    loaded, text = decoder(), prompts([40])[0][None]
    budgets = budgets_for(loaded)
    with pytest.raises(InputError, match="decode is 'all'; choose 'keep' or 'budget'"):
        planned_cache(loaded, budgets, decode="all")
    with pytest.raises(InputError, match="chunk is 0; it must be a whole number of at least 1"):
        planned_cache(loaded, budgets, chunk=0)
    with pytest.raises(InputError, match="length is -3"):
        planned_cache(loaded, budgets, length=-3)
    cache = planned_cache(loaded, budgets)
    with torch.no_grad():
        loaded.model(input_ids=text, past_key_values=cache)
        with pytest.raises(InputError, match="holds 1 text, and 2 came"):
            loaded.model(input_ids=text[:, :1].expand(2, 1), past_key_values=cache)
        # that did no harm
        loaded.model(input_ids=text[:, :1], past_key_values=cache)
        mask = torch.full((1, 1, 1, 42), 0.5)
        with pytest.raises(InputError, match="it can only hide tokens"):
            loaded.model(input_ids=text[:, :1], attention_mask=mask, past_key_values=cache)
    with pytest.raises(InputError, match=r"'bert' is an encoder .* plans are for decoders"):
        planned_cache(tiny_model("bert"), budgets)
    with pytest.raises(InputError, match="all layers of 'mistral' have a sliding window of 5"):
        planned_cache(tiny_model("mistral"), budgets)


@pytest.mark.parametrize("layer", [0, 2])
def test_attention_that_passes_the_cache_by_is_noticed(layer):
    """As when somebody switches the attention of the model in the middle of a call."""
    loaded, text = decoder(), prompts([40])[0][None]
    cache, config = planned_cache(loaded, budgets_for(loaded)), loaded.backbone.config

    def switch(*given):
        config._attn_implementation_internal = "eager"

    handle = loaded.backbone.layers[layer].register_forward_pre_hook(switch)
    passed_by = rf"attention of layer {layer} was not computed"
    with torch.no_grad(), pytest.raises(InputError, match=passed_by):
        loaded.model(input_ids=text, past_key_values=cache)
    handle.remove()
    with torch.no_grad(), pytest.raises(InputError, match="the cache is unfinished"):
        loaded.model(input_ids=text, past_key_values=cache)
    cache.reset()
    read(loaded, cache, text)
    assert cache.kept.max() == 10


def test_threads_take_turns():
    """A call that begins while another is in its last layer waits for its end."""
    loaded, (text, other) = decoder(), prompts([40, 33])
    budgets = budgets_for(loaded)

    def answer(ids, cache):
        with torch.no_grad():
            return loaded.model(input_ids=ids[None], past_key_values=cache).logits

    expected = []
    for ids in (text, other):
        cache = planned_cache(loaded, budgets)
        expected.append((answer(ids, cache), answer(ids[:5], cache)))
    first, second = planned_cache(loaded, budgets), planned_cache(loaded, budgets)
    ended, threads = [], []

    def begin(*given):
        if not threads:
            work = [lambda: ended.append(answer(other, second))]
            threads.append(threading.Thread(target=work[0]))
            threads[0].start()
            threads[0].join(timeout=0.5)  # long enough to run in
            assert not ended

    handle = loaded.backbone.layers[-1].register_forward_pre_hook(begin)
    result = answer(text, first)
    handle.remove()
    threads[0].join()
    assert torch.equal(result, expected[0][0])
    assert torch.equal(ended[0], expected[1][0])
    assert torch.equal(answer(text[:5], first), expected[0][1])
    assert torch.equal(answer(other[:5], second), expected[1][1])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_masks_that_hide_tokens_of_the_prompt_are_refused(implementation):
    """Also those that show its padding; new tokens can be hidden."""
    loaded, batch = decoder(), padded(prompts((40, 31)))
    loaded.model.set_attn_implementation(implementation)
    cache = planned_cache(loaded, budgets_for(loaded, 0.5))

    def follow(mask, new=2, branch=True):
        with torch.no_grad():
            loaded.model(
                input_ids=batch["input_ids"][:, -new:],
                attention_mask=mask,
                past_key_values=copy.deepcopy(cache) if branch else cache,
            )

    with torch.no_grad():
        loaded.model(**batch, past_key_values=cache)
    right = torch.cat([batch["attention_mask"], torch.ones(2, 2, dtype=torch.long)], 1)
    hides, shows, behind = right.clone(), right.clone(), right.clone()
    hides[0, 20], shows[1, 3], behind[0, 41] = 0, 1, 0
    follow(right)
    follow(behind)
    with pytest.raises(InputError, match="it hides token 20 of text 0"):
        follow(hides)
    with pytest.raises(InputError, match="it shows padding at token 3 of text 1"):
        follow(shows)
    shows[1, 20] = 0  # as many as before, but others
    with pytest.raises(InputError, match="it shows padding at token 3 of text 1"):
        follow(shows)
    follow(behind, branch=False)
    later = torch.cat([behind, torch.ones(2, 2, dtype=torch.long)], 1)
    follow(later)
    later[1, 30] = 0
    with pytest.raises(InputError, match="does not show the tokens that the cache was filled with"):
        follow(later)


COMPILED = """
import sys
import torch
from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.cache import ObservedPrompt
from tests.engine.cache.plans import ROTARY, SHORT, budgets_for, generated, padded, prompts
from tests.engine.models.tiny import tiny_model

way, backend = sys.argv[1:]
loaded, batch = tiny_model("llama", strength=4.0, **ROTARY), padded(prompts((30, 17)))
budgets, model = budgets_for(loaded, 0.4), loaded.model

def sequences(cache=None):
    return generated(loaded, batch, new=3, past_key_values=cache).sequences

def watched():
    return ObservedPrompt(loaded, prompts([30])[0].numpy(), SHORT).scores[2]

expected, dense, scores = sequences(planned_cache(loaded, budgets)), sequences(), watched()
if way == "model":
    model.compile(backend=backend)
elif way == "forward":
    model.forward = torch.compile(model.forward, backend=backend)
else:
    for layer in loaded.backbone.layers:
        layer.compile(backend=backend)
assert torch.equal(sequences(planned_cache(loaded, budgets)), expected)
assert torch.equal(sequences(), dense)
assert torch.allclose(watched(), scores, rtol=1e-4)
assert loaded.backbone.config._attn_implementation == "sdpa"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "backend"),
    [("model", "eager"), ("forward", "eager"), ("layers", "eager"), ("model", "inductor")],
)
def test_compiled_models_keep_the_cache_out_of_their_graphs(way, backend):
    """In a process of its own: a graph that holds addresses of a cache corrupts memory."""
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("there is no compiler")
    command = [sys.executable, "-c", COMPILED, way, backend]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_generate_uses_a_default_cache_for_every_prompt(name):
    loaded = tiny_model(name, **room_for(name))
    first, second = padded(prompts((60, 45))), padded(prompts([50], seed=9))
    before = logits_of(generated(loaded, first))
    cache = planned_cache(loaded, budgets_for(loaded))
    with cache_by_default(loaded, cache):
        result = [logits_of(generated(loaded, batch)) for batch in (first, second)]
        assert cache.get_seq_length() == 55
    assert torch.equal(logits_of(generated(loaded, first)), before)
    assert cache.get_seq_length() == 55
    for batch, logits in zip((first, second), result, strict=True):
        fresh = planned_cache(loaded, budgets_for(loaded))
        assert torch.equal(logits, logits_of(generated(loaded, batch, past_key_values=fresh)))
