"""Replaced attention inside ``generate``: key caches, offsets, sliding windows."""

from __future__ import annotations

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.models.capture import attention_override
from esscher.engine.models.transformers_library import quiet
from tests.engine.models.tiny import (
    DECODERS,
    HOOKED,
    captured,
    footprint,
    tiny_batch,
    tiny_model,
    transformers,
)

CAUSAL = [name for name in DECODERS if "bidirectional" not in name]
NEW = 6


def generate(loaded, batch, **options):
    with quiet():
        return loaded.model.generate(
            **batch, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **options
        )


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("name", CAUSAL)
def test_generate_with_recomputed_attention(name, padding):
    loaded = tiny_model(name)
    batch = tiny_batch(loaded, padding=padding, n=9)
    before = footprint(loaded)
    plain = generate(loaded, batch)
    lengths = []

    def recompute(inputs):
        lengths.append((inputs.q.shape[2], inputs.k.shape[2], inputs.offset))
        expected = inputs.original()
        again = inputs.attend()
        gap = torch.stack(
            [(again - expected)[i][:, inputs.text_queries(i)].abs().max() for i in (0, 1)]
        )
        assert gap.abs().max() < 1e-5 * expected.abs().max()
        return again

    with attention_override(loaded, recompute):
        replaced = generate(loaded, batch)
    assert torch.equal(plain, replaced)
    assert footprint(loaded) == before
    layers = loaded.shape.layers
    assert lengths[:layers] == [(9, 9, 0)] * layers
    assert {q for q, _, _ in lengths[layers:]} == {1}
    assert all(k == offset + 1 for _, k, offset in lengths[layers:])
    full = [i for i in range(layers) if name in ("llama", "qwen2", "gemma", "gpt2")]
    assert all(lengths[-layers:][i] == (1, 9 + NEW - 1, 9 + NEW - 2) for i in full)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "qwen3"])
def test_a_chunk_of_queries_on_a_cache(name):
    """Prefix first, then several tokens at once: the same as everything in one go."""
    loaded = tiny_model(name)
    ids = tiny_batch(loaded, n=20)["input_ids"]
    whole, _ = captured(loaded, {"input_ids": ids, "use_cache": False})
    cache = transformers.DynamicCache(config=loaded.model.config)
    onto = {"past_key_values": cache, "use_cache": True}
    with torch.no_grad():
        loaded.model(input_ids=ids[:, :12], **onto)
    parts, _ = captured(loaded, {"input_ids": ids[:, 12:], **onto})
    for all_at_once, part in zip(whole, parts, strict=True):
        assert part.q.shape[2] == 8
        assert part.offset == part.k.shape[2] - 8
        assert torch.allclose(part.attend(), all_at_once.attend()[:, :, 12:], atol=1e-4)
        assert torch.allclose(part.output, part.attend().float(), atol=1e-4)
        assert part.pattern().equal(part.visible()[0, 0])


def test_a_cache_of_fixed_size():
    loaded = tiny_model("llama")
    batch = tiny_batch(loaded, n=9)
    plain = generate(loaded, batch)
    seen = []

    def recompute(inputs):
        seen.append((inputs.k.shape[2], inputs.offset))
        return inputs.attend()

    cache = transformers.StaticCache(config=loaded.model.config, max_cache_len=20)
    with attention_override(loaded, recompute):
        replaced = generate(loaded, batch, past_key_values=cache, disable_compile=True)
    assert torch.equal(plain, replaced)
    assert seen[-1] == (20, 9 + NEW - 2)


def test_kernels_without_masks_are_refused():
    loaded = tiny_model("llama")
    loaded.model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(InputError, match=r"'flash_attention_2'.*eager, sdpa"):
        attention_override(loaded, lambda _: None).__enter__()


@pytest.mark.parametrize("layers", [[3], [], [0, 0], [0.5], "01"])
def test_layers_that_do_not_exist(layers):
    loaded = tiny_model("bert")
    with pytest.raises(InputError, match="layers"):
        attention_override(loaded, print, layers=layers).__enter__()


def test_hooked_models_know_no_cache():
    assert not set(HOOKED) & set(DECODERS)
    loaded = tiny_model("big_bird", is_decoder=True)
    batch = tiny_batch(loaded)
    seen, _ = captured(loaded, batch | {"use_cache": False})
    assert loaded.causal
    assert seen[0].causal
    with pytest.raises(InputError, match="use_cache=False"):
        captured(loaded, batch | {"use_cache": True})
