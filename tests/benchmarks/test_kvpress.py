"""What is handed to kvpress' presses: ratios that keep as many tokens as our rules."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.kvpress import Comparison, lukv_divergence, press_for
from benchmarks.kvpress_environment import hand_over

import esscher
from esscher.engine.cache.published import RULES, Profile, rule_named
from tests.engine.models.folders import tiny

LAYERS, KEY_HEADS = 3, 2


@pytest.mark.parametrize(("prefix", "each"), [(2048, 512), (1000, 333), (700, 7), (37, 36)])
def test_ratios_are_rounded_to_the_same_number(prefix, each):
    sizes = np.array([5, prefix])
    lost = np.stack([np.arange(1.0, 7.0), np.zeros(6)], axis=-1).reshape(LAYERS, KEY_HEADS, 2)
    profile = Profile(prefix, sizes, lost, lost[..., 0])
    for name in (*RULES, "adakv:expected", "criticalkv:tova"):
        arrays = {}
        spec = press_for(rule_named(name), prefix, each, profile, arrays)
        ratio, heads = spec["ratio"], LAYERS * KEY_HEADS
        if name == "kvzip":
            assert int(heads * prefix * ratio) == heads * (prefix - each)
        elif name == "lukv":
            curves = arrays["lukv.npy"]
            assert curves.shape == (99, LAYERS, KEY_HEADS)
            kept = (1 - curves[0].astype(np.float32)) * prefix
            assert kept.sum() == pytest.approx(heads * each, abs=0.01)
        elif name == "duo":
            streaming = arrays["duo.npy"]
            kept = (~streaming * prefix + streaming * (spec["sinks"] + spec["recent"])).sum()
            assert 0 <= heads * each - kept < heads
        elif name == "pyramid":
            assert prefix * (1 - ratio) == pytest.approx(each)
        else:
            assert int(prefix * (1 - ratio)) == each
        assert spec.get("scorer", "snapkv") == (name.split(":")[1:] or ["snapkv"])[0]


def test_a_model_is_handed_over_as_it_is(tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = tiny("llama")
    loaded.tokenizer.chat_template = "{{ messages }}"
    loaded.model.config.quantization_config = {"quant_method": "gguf"}
    hand_over(loaded, tmp_path)
    del loaded.model.config.quantization_config
    assert loaded.tokenizer.chat_template == "{{ messages }}"
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template is None
    weights = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(weights[k], v) for k, v in loaded.model.state_dict().items())
    ids = torch.arange(4, 20)[None]
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, loaded.model(ids).logits)


def test_budgets_of_another_model(tmp_path):
    with pytest.raises(esscher.InputError, match=r"have shape \(99, 3, 2\), not \(99, 2, 2\)"):
        lukv_divergence(tmp_path, tiny("llama"), [], 8, np.zeros((99, 2, 2)), 0.25)


def test_ratio():
    assert Comparison(ours=[1.0, 2.0], theirs=[1.0, 1.0]).ratio == 1.5
