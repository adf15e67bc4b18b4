"""Presses of kvpress: they keep as many tokens as our rules and plans, of the same model."""

from __future__ import annotations

import json

import pytest
from benchmarks.cache import Cell
from benchmarks.kvpress import press_for
from benchmarks.kvpress_environment import hand_over

from benchmarks import kvpress_rivals as rivals
from esscher.engine.cache.published import RULES
from esscher.engine.text.packing import first_passages
from tests.engine.models.folders import random_words, tiny

LAYERS, KEY_HEADS = 3, 2


@pytest.mark.parametrize(("prefix", "each"), [(2048, 512), (1000, 333), (700, 7), (37, 36)])
def test_ratios_are_rounded_to_the_same_number(prefix, each):
    for name in (*RULES, "kvgrad"):
        spec = press_for(name, prefix, each)
        ratio, heads = spec["ratio"], LAYERS * KEY_HEADS
        if name in ("kvzip", "kvgrad"):
            assert int(heads * prefix * ratio) == heads * (prefix - each)
        else:
            assert int(prefix * (1 - ratio)) == each


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


def test_presses_are_measured_once_and_set_beside_the_plan(tmp_path, monkeypatch):
    loaded, apart, asked = tiny("llama"), [0.0], []
    passage = first_passages(loaded, [random_words()], 1, 24).passages[0]
    about = {"configuration": "snapkv tokens", "budget": 0.25}
    presses = [{"name": "snapkv", "kind": "snapkv", "each": 4, "about": about}]

    def run(python, loaded, ids, prefix, presses, arrays):
        asked.append(arrays["dense.npy"].shape[:2])
        kept = 4 * LAYERS * KEY_HEADS
        return {"dense": apart, **{p["name"]: {"kl": [3.0], "kept": [kept]} for p in presses}}, {}

    def cell(name):
        path = tmp_path / rivals.PART / "16" / f"{name}-0"
        return Cell(path, text=name, passage=0, prefix=16)

    monkeypatch.setattr(rivals, "run_presses", run)
    plan = {"configuration": "planned 16", "budget": 0.25, "kl": 1.5, "kept": 24}
    one = cell("novel")
    one.rows = [plan, plan | {"configuration": "planned", "kl": 1.0}]
    one.write()
    for _ in range(2):
        rivals.measure_presses(tmp_path, loaded, passage, cell("novel"), presses, {})
    assert asked == [(1, 7)]
    table = rivals.table_of(tmp_path).set_index(["press", "compared"])["ratio"]
    assert table.to_dict() == {
        ("snapkv", "tokens"): 2.0,
        ("planned", "tokens"): 1.0,
        ("planned", "bytes"): 1.0,
    }
    apart[0] = 0.01
    with pytest.raises(AssertionError, match=r"dense models are 0.01 nats apart"):
        rivals.measure_presses(tmp_path, loaded, passage, cell("plays"), presses, {})
