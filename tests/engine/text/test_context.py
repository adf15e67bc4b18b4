"""Passages with their structure, one at a time."""

from __future__ import annotations

import weakref

import pytest
import torch

from esscher.engine.text import iterate_passages, read_passages, visit_passages
from tests.engine.models.folders import tiny, words
from tests.engine.models.tiny import MODELS


@pytest.fixture(scope="module", params=list(MODELS))
def loaded(request):
    return tiny(request.param)


def test_every_layer_of_every_passage(loaded):
    text = read_passages(loaded, [words(60)], tokens=40, context=16, keep_short=False)
    found = [(p.number, c.layer) for p, c in iterate_passages(loaded, text)]
    assert found == [(p, layer) for p in range(len(text)) for layer in range(3)]
    for passage, capture in iterate_passages(loaded, text, layers=[1, 2]):
        assert capture.q.shape[:3] == (1, 4, 16)
        assert capture.valid is None
        assert capture.causal == loaded.causal
        again = capture.attend()
        assert (again - capture.output).abs().max() < 1e-5 * again.abs().max()
        assert len(passage.ids) == 16


def test_visiting_is_the_same(loaded):
    text = read_passages(loaded, [words(60)], tokens=20, context=16)
    seen = []
    visit_passages(loaded, text, lambda p, c: seen.append((p.number, c.layer, c.output)))
    for (p, c), (number, layer, output) in zip(iterate_passages(loaded, text), seen, strict=True):
        assert (p.number, c.layer) == (number, layer)
        assert torch.equal(c.output, output)


def test_visiting_keeps_one_layer(loaded):
    text = read_passages(loaded, [words(60)], tokens=20, context=16)
    alive = []

    def sink(passage, capture):
        assert sum(ref() is not None for ref in alive) == 0
        alive.append(weakref.ref(capture.output))

    visit_passages(loaded, text, sink)
    assert len(alive) == 3 * len(text)
