"""The two real models: capture, replacement and horizons, as on the tiny ones."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import esscher
from esscher.engine.models.capture import attention_override
from esscher.engine.models.families import ModelShape
from esscher.engine.models.transformers_library import quiet
from esscher.engine.models.weights import head_weights
from tests.engine.models.demo import demo_model
from tests.engine.models.tiny import footprint, head_of

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 12


def run(loaded, block=None):
    """Hidden states or logits of the text, within a block if there is one."""
    ids = loaded.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert ids.shape[1] > 200
    with torch.no_grad(), block or nullcontext():
        return loaded.model(input_ids=ids)[0]


def check(loaded):
    """Capture, recompute, replace; return the captures."""
    before = footprint(loaded)
    seen = []
    plain = run(loaded)
    assert torch.equal(
        plain, run(loaded, attention_override(loaded, lambda inputs: seen.append(inputs)))
    )
    for capture in seen:
        expected = capture.output.double()
        assert (capture.attend() - expected).abs().max() < 1e-5 * expected.abs().max()
    replaced = run(loaded, attention_override(loaded, lambda inputs: inputs.attend()))
    assert (plain - replaced).abs().max() < 1e-4 * plain.abs().max()
    assert footprint(loaded) == before
    return seen


def test_minilm():
    loaded = demo_model("demo:minilm")
    assert loaded.shape == ModelShape(layers=6, heads=12, key_heads=12, head_dim=32, hidden=384)
    assert loaded.max_positions == 512
    assert loaded.delimiter_ids == {0, 101, 102}
    assert not loaded.causal
    for capture in check(loaded):
        weights = head_weights(loaded, capture.layer)
        hidden = capture.hidden[0].double().numpy()
        for h in range(12):
            parts = (x[0, h].double().numpy() for x in (capture.q, capture.k, capture.v))
            head = esscher.array_head(*parts, scale=capture.scaling)
            assert head_of(weights, h, hidden).horizon == pytest.approx(head.horizon, rel=1e-5)


@pytest.mark.slow
def test_smollm2():
    loaded = demo_model("demo:smollm2")
    assert loaded.shape == ModelShape(layers=30, heads=9, key_heads=3, head_dim=64, hidden=576)
    assert loaded.max_positions == 8192
    assert loaded.causal
    seen = check(loaded)
    assert len(seen) == 30
    assert all(capture.causal and capture.group == 3 for capture in seen)
    value = head_weights(loaded, 7)
    v = seen[7].hidden[0].double().numpy() @ value.W_v[5].T
    np.testing.assert_allclose(v, seen[7].v[0, 1].double().numpy(), atol=1e-4)


@pytest.mark.slow
def test_smollm2_is_saved_and_read_again(tmp_path):
    """Nothing of the GGUF file is left over that keeps transformers from writing its weights."""
    loaded = demo_model("demo:smollm2")
    with quiet():
        loaded.model.save_pretrained(tmp_path)
        loaded.tokenizer.save_pretrained(tmp_path)
    assert esscher.load_model(str(tmp_path)).weight_hash == loaded.weight_hash
