"""Tiny decoders that read random prompts, observed."""

from __future__ import annotations

import dataclasses

import torch

from esscher.engine.cache.budgets import Keeping
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import RULES, AdaKV, PromptLayer, SnapKV
from esscher.engine.models.capture import attention_override
from esscher.engine.models.weights import rotation_of
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


def read(loaded, ids, watch):
    """Read tokens, a watcher looking on; returns the cache."""
    cache = transformers.DynamicCache(config=loaded.model.config)
    with torch.no_grad(), attention_override(loaded, watch):
        loaded.backbone(input_ids=ids[None], past_key_values=cache, use_cache=True)
    return cache


def layers_of(loaded, ids):
    """Every layer after it has read a prompt, those with a sliding window left out."""
    layers = []

    def watch(inputs):
        if inputs.window is None:
            layers.append(PromptLayer(inputs, len(ids), rotation_of(loaded, inputs.layer)))

    read(loaded, ids, watch)
    return layers


def rule_scores(loaded, rules, ids, **options):
    """Scores of a prompt by rules, layer by layer."""
    keeping = Keeping(sinks=2, recent=4)
    prompt = ObservedPrompt(loaded, ids.numpy(), keeping, rules=rules, fits=False, **options)
    return {name: list(layers.values()) for name, layers in prompt.rule_scores.items()}
