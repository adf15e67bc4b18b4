"""Tiny decoders that read random prompts while rules look on."""

from __future__ import annotations

import dataclasses

import torch

from esscher.engine.cache.published import RULES, AdaKV, Looking, SnapKV, prefilled_layer
from esscher.engine.models import attention_override
from tests.engine.cache.plans import room_for
from tests.engine.models.folders import tiny
from tests.engine.models.tiny import transformers

#: Tokens of a prompt, and an observation window that fits it.
PROMPT, WINDOW = 70, 8
SNAPKV = SnapKV(window=WINDOW)
#: The rules, with that window.
SMALL = {
    name: dataclasses.replace(rule, scorer=SNAPKV) if isinstance(rule, AdaKV) else rule
    for name, rule in RULES.items()
} | {"snapkv": SNAPKV}


def decoder(name="llama", **options):
    return tiny(name, strength=4.0, **room_for(name), **options)


def read(loaded, ids, watch, cache=None):
    """Read tokens, a watcher looking on; returns the cache."""
    if cache is None:
        cache = transformers.DynamicCache(config=loaded.model.config)
    with torch.no_grad(), attention_override(loaded, watch):
        loaded.backbone(input_ids=ids[None], past_key_values=cache, use_cache=True)
    return cache


def layers_of(loaded, ids):
    """Every layer after it has read a prompt, those with a sliding window left out."""
    found = []

    def watch(inputs):
        if inputs.window is None:
            found.append(prefilled_layer(loaded, inputs, len(ids)))

    read(loaded, ids, watch)
    return found


def looked(loaded, rules, ids, chunk=2048):
    """What rules find in a prompt."""
    looking = Looking(loaded, rules, len(ids))
    cache = read(loaded, ids, looking.watch)
    looking.repeat(ids, cache, chunk)
    return looking
