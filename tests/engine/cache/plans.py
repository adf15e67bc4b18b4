"""Budgets of tiny models, batches of prompts, and attention under a plan by its definition."""

from __future__ import annotations

import numpy as np
import torch

from esscher.engine.cache.budgets import RECENT, SINKS, Keeping, TokenBudgets
from esscher.engine.cache.selection import PlannedRule, reduced_attention
from esscher.engine.models.transformers_library import quiet
from tests.engine.models.tiny import tiny_model

NEW = 6
#: Tokens always kept of a long prompt, and of a short one.
LONG, SHORT = Keeping(sinks=SINKS, recent=RECENT), Keeping(sinks=2, recent=4)
#: Of models with rotary positions, and of GPT-2.
ROTARY, LEARNED = {"max_position_embeddings": 200}, {"n_positions": 200}


def room_for(name):
    """Options that let a tiny model read 200 tokens."""
    if name == "gemma3":
        return {}
    return LEARNED if name.startswith("gpt2") else ROTARY


def decoder(name="llama", **options):
    """A tiny decoder without a tokenizer, with uneven attention."""
    return tiny_model(name, strength=4.0, **room_for(name), **options)


def budgets_for(
    loaded, ratio=0.25, keeping=SHORT, power=0.75, spread=0.0, selection="sample", bits=None
):
    """The same share for all key heads, or shares spread around it, and the same bits."""
    shape = (loaded.shape.layers, loaded.shape.key_heads)
    shares = ratio * (1 + spread * np.linspace(-1, 1, shape[0] * shape[1]).reshape(shape))
    return TokenBudgets(
        model=loaded.record,
        prefix=100_000,
        keeping=keeping,
        budgets=tuple(map(tuple, np.round(100_000 * shares).astype(int).tolist())),
        powers=tuple(map(tuple, np.full(shape, power).tolist())),
        selection=selection,
        bits=bits and ((bits,) * shape[1],) * shape[0],
    )


def prompts(lengths, seed=5):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.integers(4, 49, size=n)) for n in lengths]


def padded(texts, side="left", width=None):
    """Ids and mask of a batch; a text of no tokens is a row of padding."""
    width = max(map(len, texts)) if width is None else width
    ids = torch.zeros((len(texts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, text in enumerate(texts):
        at = slice(width - len(text), width) if side == "left" else slice(len(text))
        ids[i, at], mask[i, at] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


def generated(loaded, batch, new=NEW, **options):
    """Output of ``generate``, greedy unless options say otherwise, with all logits."""
    with quiet():
        return loaded.model.generate(
            **batch,
            **{
                "max_new_tokens": new,
                "min_new_tokens": new,
                "do_sample": False,
                "output_logits": True,
                "return_dict_in_generate": True,
                "pad_token_id": 0,
            }
            | options,
        )


def read(loaded, cache, ids, **options):
    """Logits of tokens that a model reads with a cache, without gradients."""
    with torch.no_grad():
        return loaded.model(input_ids=ids, past_key_values=cache, **options).logits


def logits_of(result):
    """Logits of every new token, [rows, new, vocabulary]."""
    return torch.stack(result.logits, dim=1)


class MaskedPlan:
    """A plan by its definition: a dense cache, of which attention sees what is kept.

    A replacement for ``attention_override``; the first call is the prompt.
    """

    def __init__(self, loaded, budgets, seed=0):
        self._rule = PlannedRule(loaded, budgets, seed)
        self._kept, self._length = {}, {}

    def __call__(self, inputs):
        layer = inputs.layer
        if inputs.window is not None:
            return None
        if inputs.offset == 0:
            self._length[layer] = inputs.q.shape[2]
            self._kept[layer] = [self._rule.keep(inputs, b) for b in range(len(inputs.q))]
            return None
        length = self._length[layer]
        kept = self._kept[layer]
        return torch.stack(
            [reduced_attention(inputs, kept[b], length, b) for b in range(len(inputs.q))]
        )
