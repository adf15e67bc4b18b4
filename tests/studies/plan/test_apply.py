"""A plan applied to prompts of all lengths: alone, in batches, with padding on either side."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.cache.budgets import RECENT, SINKS, Keeping, TokenBudgets, keeping_for
from esscher.engine.cache.selection import Kept, reduced_attention
from esscher.engine.models import attention_override
from esscher.engine.models.transformers_library import quiet
from esscher.studies.plan.apply import PlannedAttention
from tests.engine.models.tiny import tiny_model, transformers

NEW = 5
#: Shorter than what is kept for certain, as long, one and two longer, and long.
LENGTHS = (1, 3, 20, 35, 36, 37, 38, 60, 110)
ROTARY = {"max_position_embeddings": 160}


#: What is kept for certain of a long prompt, and by an encoder.
DECODER, ENCODER = Keeping(sinks=SINKS, recent=RECENT), keeping_for(64, causal=False)


def planned(loaded, ratio=0.25, keeping=DECODER, power=0.75):
    shape = (loaded.shape.layers, loaded.shape.key_heads)
    budgets = TokenBudgets(
        model=loaded.record, prefix=100_000, keeping=keeping,
        budgets=tuple(map(tuple, np.full(shape, round(100_000 * ratio)).tolist())),
        powers=tuple(map(tuple, np.full(shape, power).tolist())),
    )  # fmt: skip
    return PlannedAttention(budgets, seed=0)


def prompts(lengths, seed=5):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.integers(4, 49, size=n)) for n in lengths]


def padded(texts, side, width=None):
    """Ids and mask of a batch; a text of no tokens is a row of padding."""
    width = max(map(len, texts)) if width is None else width
    ids = torch.zeros((len(texts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, text in enumerate(texts):
        at = slice(width - len(text), width) if side == "left" else slice(len(text))
        ids[i, at], mask[i, at] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


def generated(loaded, attention, batch, **options):
    """Logits of every new token, [rows, new, vocabulary]."""
    with attention_override(loaded, attention), quiet():
        found = loaded.model.generate(
            **batch, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, output_logits=True,
            return_dict_in_generate=True, **options,
        )  # fmt: skip
    return torch.stack(found.logits, dim=1)


def own(inputs):
    return None


@pytest.mark.parametrize("length", [n for n in LENGTHS if n <= 37])
def test_a_short_prompt_is_kept_whole(length):
    """37: everything that is certain, and one more."""
    loaded = tiny_model("llama", **ROTARY)
    batch = padded(prompts([length]), "left")
    under = generated(loaded, planned(loaded), batch)
    torch.testing.assert_close(under, generated(loaded, own, batch), rtol=1e-4, atol=1e-4)


def test_a_long_prompt_is_not():
    loaded = tiny_model("llama", **ROTARY)
    batch = padded(prompts([60]), "left")
    under, dense = generated(loaded, planned(loaded), batch), generated(loaded, own, batch)
    assert (under - dense)[:, 1].abs().max() > 0.01 * dense.abs().max()


def test_a_row_of_a_batch_is_the_prompt_alone():
    loaded, texts = tiny_model("llama", **ROTARY), prompts(LENGTHS)
    together = generated(loaded, planned(loaded), padded(texts, "left"))
    for text, found in zip(texts, together, strict=True):
        alone = generated(loaded, planned(loaded), padded([text], "left"))[0]
        torch.testing.assert_close(found, alone, rtol=1e-3, atol=1e-3)


def test_equal_prompts_are_reduced_alike():
    """Also what a beam search needs: it reorders the rows of the cache."""
    loaded, (text,) = tiny_model("llama", **ROTARY), prompts([60])
    found = generated(loaded, planned(loaded), padded([text] * 3, "left"))
    torch.testing.assert_close(found, found[:1].expand_as(found), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "side", "options"),
    [
        ("llama", "left", ROTARY),
        ("llama", "right", ROTARY),
        ("gpt2", "right", {"n_positions": 160}),
        # on the left only: padding behind a text takes places of a window, also without a plan
        ("mistral", "left", ROTARY | {"sliding_window": 50}),
        ("gemma2", "left", ROTARY | {"sliding_window": 50}),
    ],
)
def test_padding_on_either_side_changes_nothing(name, side, options):
    """Prompts read into a cache, then two tokens that follow them; one row is padding only."""
    loaded = tiny_model(name, **options)
    texts, later = [*prompts((2, 36, 45, 49, 60)), torch.zeros(0, dtype=torch.long)], [7, 9]
    together = followed(loaded, texts, later, side, 70)
    for text, found in zip(texts[:-1], together, strict=False):
        alone = followed(loaded, [text], later, side, len(text))[0]
        torch.testing.assert_close(found, alone, rtol=1e-3, atol=2e-3)
    assert torch.isfinite(together).all()


def followed(loaded, texts, later, side, width):
    """Logits [rows, later, vocabulary] of tokens that follow padded prompts, under a plan."""
    batch = padded(texts, side, width)
    mask, cache = batch["attention_mask"], transformers.DynamicCache(config=loaded.model.config)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    out = []
    with attention_override(loaded, planned(loaded)), torch.no_grad():
        loaded.model(**batch, position_ids=places, past_key_values=cache, use_cache=True)
        for token in later:
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            output = loaded.model(
                input_ids=torch.full_like(mask[:, :1], token), attention_mask=mask,
                position_ids=mask.sum(1, keepdim=True) - 1, past_key_values=cache, use_cache=True,
            )  # fmt: skip
            out.append(output.logits[:, -1])
    return torch.stack(out, dim=1)


# an MPNet counts positions from its own padding token, so its padding is on the right
@pytest.mark.parametrize(
    ("name", "side"), [("bert", "left"), ("bert", "right"), ("mpnet", "right")]
)
def test_texts_of_an_encoder_do_not_depend_on_their_batch(name, side):
    loaded, texts = tiny_model(name), prompts((1, 2, 3, 4, 30))
    rows = [*texts, torch.zeros(0, dtype=torch.long)]
    batch = padded(rows, side)
    mask = batch["attention_mask"].bool()
    if name == "mpnet":
        batch["input_ids"][~mask] = 1
    else:
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with (
        attention_override(loaded, planned(loaded, keeping=ENCODER)),
        torch.no_grad(),
    ):
        together = loaded.model(**batch)[0]
        for i, text in enumerate(texts):
            alone = loaded.model(input_ids=text[None])[0][0]
            torch.testing.assert_close(together[i, mask[i]], alone, rtol=1e-3, atol=1e-3)
    assert torch.isfinite(together).all()


def test_a_cache_of_fixed_size_is_not_taken_for_the_prompt():
    loaded, texts = tiny_model("llama", **ROTARY), prompts([60, 60])
    cache = transformers.StaticCache(config=loaded.model.config, max_cache_len=80)
    batch = padded(texts, "left")
    fixed = generated(loaded, planned(loaded), batch, past_key_values=cache, disable_compile=True)
    grows = generated(loaded, planned(loaded), batch)
    torch.testing.assert_close(fixed, grows, rtol=1e-4, atol=1e-4)


def test_kept_keys_follow_a_cache_that_has_dropped_some():
    loaded = tiny_model("mistral", sliding_window=50, **ROTARY)
    attention, seen = planned(loaded), []

    def watch(inputs):
        output = attention(inputs)
        seen.append((inputs, output))
        return output

    generated(loaded, watch, padded(prompts([48]), "left"))
    layers = loaded.shape.layers
    prompt = attention._prompts[0]
    assert all(len(kept.index) < 48 for kept in prompt.kept[0])
    for step, (inputs, output) in enumerate(seen[layers::layers]):
        assert inputs.layer == 0
        lost = max(0, 48 + step + 1 - 50)
        kept = [
            Kept(head.index[head.index >= lost] - lost, head.log_weight[head.index >= lost])
            for head in prompt.kept[0]
        ]
        expected = reduced_attention(inputs, kept, 48 - lost)[None]
        torch.testing.assert_close(output, expected)
    assert lost == NEW - 3
