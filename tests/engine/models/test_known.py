"""Models that were looked at before, and whose weights have changed since."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.models.loaded import wrap_model
from esscher.engine.models.record import computed_once as once
from tests.engine.models.tiny import tiny_model


def test_an_answer_is_given_once_for_the_same_weights():
    model, asked = tiny_model("llama").model, []

    def answer(given):
        asked.append(given)
        return len(asked)

    assert [once(model, "a", answer) for _ in range(3)] == [1, 1, 1]
    assert once(model, "b", answer) == 2
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    assert once(model, "a", answer) == 3
    # written to behind PyTorch's back: all weights, as training does
    for weight in model.parameters():
        weight.data.mul_(1.5)
    assert once(model, "a", answer) == 4
    model.to(torch.bfloat16)
    assert [once(model, "a", answer) for _ in range(2)] == [5, 5]


def test_hashes_follow_the_weights():
    model = tiny_model("llama").model
    first = wrap_model(model).weight_hash
    assert wrap_model(model).weight_hash == first
    with torch.no_grad():
        weight = next(model.parameters())
        weight[0, 0] += 1.0
    assert wrap_model(model).weight_hash != first
    with torch.no_grad():
        weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="not finite"):
        wrap_model(model)


def test_models_are_not_kept_alive():
    model = tiny_model("llama").model
    once(model, "a", lambda given: 1)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
