"""Every family: attention recomputed from what was captured is the model's own attention."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from esscher.engine.models.capture import attention_override
from tests.engine.models.tiny import (
    MODELS,
    WINDOW,
    captured,
    final_output,
    footprint,
    tiny_batch,
    tiny_model,
)

PADDING = [None, "left", "right"]


@pytest.fixture(scope="module", params=list(MODELS))
def loaded(request):
    return tiny_model(request.param)


def at_text(tensor, capture):
    """Rows of [batch, heads, n, d] that are not padding: what a padded query gets is undefined."""
    keep = capture.valid
    return tensor if keep is None else tensor.transpose(1, 2)[keep]


@pytest.mark.parametrize("padding", PADDING)
def test_recomputed_attention_equals_the_models_own(loaded, padding):
    batch = tiny_batch(loaded, padding=padding)
    seen, _ = captured(loaded, batch)
    assert [capture.layer for capture in seen] == list(range(loaded.shape.layers))
    for capture in seen:
        again = capture.attend(torch.float64)
        expected = capture.output.double()
        assert again.shape == expected.shape
        error = (at_text(again, capture) - at_text(expected, capture)).abs().max()
        assert error < 2e-6 * expected.abs().max()
        # Otherwise the comparison would say little: attention must differ from a plain mean.
        flat = dataclasses.replace(capture, scaling=0.0, bias=None).attend()
        assert (at_text(flat - again, capture)).abs().max() > 0.02 * expected.abs().max()


def test_final_output_is_unchanged_by_recomputation(loaded):
    batch = tiny_batch(loaded, n=12, padding="left")  # so short that all models are dense
    plain = final_output(loaded, batch)
    with attention_override(loaded, lambda inputs: inputs.attend(torch.float64)):
        replaced = final_output(loaded, batch)
    _, while_captured = captured(loaded, batch)
    assert torch.equal(plain, while_captured)
    assert torch.equal(plain, final_output(loaded, batch))
    kept = batch["attention_mask"].bool()
    assert (replaced[kept] - plain[kept]).abs().max() < 1e-4 * plain.abs().max()
    with attention_override(loaded, lambda inputs: torch.zeros(inputs.output_shape), layers=[1]):
        other = final_output(loaded, batch)
    assert (plain - other).abs().max() > 1e-2 * plain.abs().max()


@pytest.mark.parametrize("padding", PADDING)
def test_visibility_follows_from_the_named_parts(loaded, padding):
    """The model's mask is causality, window and padding, and nothing else."""
    batch = tiny_batch(loaded, padding=padding)
    seen, _ = captured(loaded, batch)
    for capture in seen:
        pattern = capture.pattern()[None]
        if capture.valid is not None:
            assert torch.equal(capture.valid, batch["attention_mask"].bool())
            pattern = pattern & capture.valid[:, None, :]
        else:
            assert padding is None
        assert capture.visible().shape[1] == 1
        assert torch.equal(*torch.broadcast_tensors(capture.visible()[:, 0], pattern))


def test_nothing_is_left_behind(loaded):
    before = footprint(loaded)
    batch = tiny_batch(loaded)
    captured(loaded, batch)
    after_capture = footprint(loaded)

    class Stop(Exception):
        pass

    def fail(inputs):
        if inputs.layer == 1:
            raise Stop

    def run(block):
        with block:
            assert footprint(loaded) != before
            final_output(loaded, batch)

    with pytest.raises(Stop):
        run(attention_override(loaded, fail))
    assert before == after_capture == footprint(loaded)


def test_nested_blocks(loaded):
    """Inside a replacement, what is captured is the replacement's output."""
    batch = tiny_batch(loaded)
    before = footprint(loaded)
    with attention_override(loaded, lambda inputs: 2 * inputs.original(), layers=[0, 2]):
        seen, inner = captured(loaded, batch)
        outer = final_output(loaded, batch)
    assert torch.equal(inner, outer)
    assert footprint(loaded) == before
    for capture, factor in zip(seen, (2.0, 1.0, 2.0), strict=True):
        expected = factor * capture.attend()
        assert (capture.output - expected).abs().max() < 1e-5 * expected.abs().max()


def test_windows_and_caps_of_gemma():
    seen, _ = captured(tiny_model("gemma2"), tiny_batch(tiny_model("gemma2")))
    assert [capture.window for capture in seen] == [WINDOW, None, WINDOW]
    assert {capture.softcap for capture in seen} == {0.5}
    assert seen[0].scaling == pytest.approx(5**-0.5)
    assert seen[0].visible()[0, 0].sum(-1).tolist() == [min(i + 1, WINDOW) for i in range(21)]


def test_mpnet_bias_is_its_relative_position_table():
    loaded = tiny_model("mpnet")
    seen, _ = captured(loaded, tiny_batch(loaded))
    table = loaded.model.encoder.relative_attention_bias.weight
    for capture in seen:
        assert capture.bias.shape == (4, 21, 21)
        assert torch.equal(capture.bias[:, 3, 3], table[0])
        assert torch.equal(capture.bias[:, 4, 2], capture.bias[:, 9, 7])
    without = seen[0].attend() - dataclasses.replace(seen[0], bias=None).attend()
    assert without.abs().max() > 1e-2


def test_block_sparse_is_measured_dense_and_stays_sparse():
    loaded = tiny_model("big_bird sparse")
    assert "dense" in loaded.family.note
    batch = tiny_batch(loaded, n=40)
    before = footprint(loaded)
    state = torch.random.get_rng_state()
    seen, dense = captured(loaded, batch)
    assert torch.equal(state, torch.random.get_rng_state())
    assert seen[0].visible().all()
    assert footprint(loaded) == before
    assert set(before["types"]) == {None, "block_sparse"}
    sparse = final_output(loaded, batch)
    assert (sparse - dense).abs().max() > 1e-3
