"""Scaled tilts: the heads of a model whose queries are scaled."""

from __future__ import annotations

import copy

import pytest
import torch

from esscher.engine.models.loaded import wrap_model
from esscher.studies.probe import probe
from tests.engine.models.folders import decoder_tokenizer, encoder_tokenizer, words
from tests.engine.models.tiny import tiny_model
from tests.studies.probe.sizes import SEQUENCES, SMALL


@pytest.mark.parametrize(
    ("family", "query"),
    [
        ("bert", "encoder.layer.0.attention.self.query"),
        ("llama", "layers.0.self_attn.q_proj"),
    ],
)
def test_scaled_tilts_are_those_of_scaled_weights(family, query):
    decoder = family == "llama"
    tokenizer = decoder_tokenizer() if decoder else encoder_tokenizer()
    options = {"layers": [0], **(SEQUENCES if decoder else SMALL)}
    whole = tiny_model(family).model
    halved = copy.deepcopy(whole)
    name = next(one for one, _ in halved.named_modules() if one.endswith(query))
    with torch.no_grad():
        for parameter in halved.get_submodule(name).parameters():
            parameter *= 0.5
    by_option = probe(wrap_model(whole, tokenizer), [words(1000)], alpha=0.5, **options)
    by_weights = probe(wrap_model(halved, tokenizer), [words(1000)], **options)
    assert by_option.to_dict()["heads"] == by_weights.to_dict()["heads"]
    assert by_option.to_dict()["layers"] == by_weights.to_dict()["layers"]
