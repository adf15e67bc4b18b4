"""Ratios handed to kvpress: they keep as many tokens as our rules."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np
import pytest
from benchmarks.kvpress import press_for
from benchmarks.kvpress_environment import hand_over

import esscher
from benchmarks import kvpress
from esscher.engine.cache.published import RULES
from tests.engine.models.folders import tiny

LAYERS, KEY_HEADS = 3, 2


@pytest.mark.parametrize(("prefix", "each"), [(2048, 512), (1000, 333), (700, 7), (37, 36)])
def test_ratios_are_rounded_to_the_same_number(prefix, each):
    for name, rule in RULES.items():
        spec = press_for(rule, prefix, each)
        ratio, heads = spec["ratio"], LAYERS * KEY_HEADS
        if name == "kvzip":
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


def exported(tmp_path, monkeypatch, curves, **distances):
    """Compare budgets inside a kvpress that finds given divergences."""
    loaded = tiny("llama")
    np.save(tmp_path / "budgets.npy", curves)

    def run(python, loaded, ids, prefix, presses, arrays):
        assert np.array_equal(arrays["plan.npy"], curves, equal_nan=True)
        kept = [2 * LAYERS * KEY_HEADS] * len(ids)
        rows = {
            p["name"]: {"kl": distances.get(p["kind"], [1.0, 1.0]), "kept": kept} for p in presses
        }
        return {"transformers": "5.2.0", **rows}, {}

    monkeypatch.setattr(kvpress, "run_presses", run)
    monkeypatch.setattr(kvpress, "QUERIES", 8)
    chosen = Namespace(
        lukv=tmp_path / "budgets.npy",
        prefix=8,
        budget=0.25,
        passages=2,
        text="demo:docs",
        out=str(tmp_path / "found.json"),
    )
    kvpress.compare_exported(chosen, loaded, tmp_path)
    return json.loads((tmp_path / "found.json").read_text())["exported"]


def test_budgets_of_a_plan_inside_kvpress(tmp_path, monkeypatch, capsys):
    curves = np.full((99, LAYERS, KEY_HEADS), np.nan)
    curves[74] = 0.75
    result = exported(tmp_path, monkeypatch, curves, adakv=[2.0, 4.0], lukv=[1.0, 2.0])
    assert set(result) == {
        f"{kind}{scorer}" for scorer in kvpress.SCORERS for kind in ("plan:", "", "adakv:")
    }
    assert result["adakv:expected"]["ratio"] == pytest.approx(2.0)
    assert result["plan:expected"]["ratio"] == 1.0
    assert "| adakv:snapkv | 3.00000 | 2.0 | 2.00 " in capsys.readouterr().out


def test_budgets_that_do_not_fit(tmp_path, monkeypatch):
    with pytest.raises(esscher.InputError, match=r"have shape \(99, 3, 2\), not \(99, 2, 2\)"):
        exported(tmp_path, monkeypatch, np.zeros((99, 2, 2)))
    with pytest.raises(esscher.InputError, match=r"has no budgets for 25% of the tokens"):
        exported(tmp_path, monkeypatch, np.full((99, LAYERS, KEY_HEADS), np.nan))
