"""Horizons from weights and token moments, and from the captured queries and keys."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.engine.models.weights import head_weights
from tests.engine.models.tiny import captured, head_of, tiny_batch, tiny_model

LINEAR = ["bert", "roberta", "distilbert", "gpt2", "gpt2 scaled", "mpnet", "big_bird"]
GROUPED = ["llama", "llama one key head", "qwen2", "gemma2"]


def rows(tensor):
    """[batch, n, d] as float64 rows."""
    return tensor.double().reshape(-1, tensor.shape[-1]).numpy()


def captures(loaded):
    return captured(loaded, tiny_batch(loaded, batch=4, n=30))[0]


@pytest.mark.parametrize("name", LINEAR)
def test_horizons_from_weights_and_from_captured_tokens_agree(name):
    loaded = tiny_model(name)
    assert loaded.family.linear
    for capture in captures(loaded):
        weights = head_weights(loaded, capture.layer)
        assert weights.linear
        hidden = rows(capture.hidden)
        for h in range(loaded.shape.heads):
            head = head_of(weights, h, hidden)
            parts = (rows(x[:, h]) for x in (capture.q, capture.k, capture.v))
            seen = esscher.array_head(*parts, scale=capture.scaling)
            np.testing.assert_allclose(head.spectrum, seen.spectrum, atol=2e-6 * seen.horizon)
            assert head.horizon == pytest.approx(seen.horizon, rel=1e-6)
            assert head.frobenius == pytest.approx(seen.frobenius, rel=1e-6)


@pytest.mark.parametrize("name", [*LINEAR, *GROUPED])
def test_projections_reproduce_values_and_output(name):
    """Values, and the layer's output from the heads' outputs: grouped keys are mapped right."""
    loaded = tiny_model(name)
    outputs = []
    block = loaded.family.blocks(loaded.model)[1]
    projection = loaded.family.projection_modules(block)[-1]
    handle = projection.register_forward_hook(lambda _m, _a, out: outputs.append(out))
    capture = captures(loaded)[1]
    handle.remove()
    weights = head_weights(loaded, 1)
    hidden = capture.hidden.double().numpy()
    for h in range(loaded.shape.heads):
        v = hidden @ weights.W_v[h].T + weights.b_v[h]
        expected = capture.v[:, loaded.shape.key_head(h)].double().numpy()
        np.testing.assert_allclose(v, expected, atol=1e-5 * np.abs(expected).max())
    y = capture.output.double().numpy()
    total = np.einsum("hoe,bhne->bno", weights.W_o, y) + weights.b_o
    np.testing.assert_allclose(total, outputs[0].double().numpy(), atol=1e-5 * np.abs(total).max())


def test_grouped_keys_before_rotation():
    """At position 0 a rotary model does not rotate: there the weights give q and k."""
    loaded = tiny_model("llama")
    capture = captures(loaded)[0]
    weights = head_weights(loaded, 0)
    assert not weights.linear
    hidden = capture.hidden[:, 0].double().numpy()
    for h in range(4):
        for weight, expected in (
            (weights.W_q[h], capture.q[:, h]),
            (weights.W_k[h], capture.k[:, h // 2]),
        ):
            np.testing.assert_allclose(
                hidden @ weight.T, expected[:, 0].double().numpy(), atol=1e-4
            )


def test_layers_and_heads_that_do_not_exist():
    loaded = tiny_model("bert")
    with pytest.raises(InputError, match="layer contains 3; it must be 0 to 2"):
        head_weights(loaded, 3)
