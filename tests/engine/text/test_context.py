"""Passages with their structure, one at a time."""

from __future__ import annotations

import weakref

import pytest

from esscher.engine.text.collect import iterate_passages, visit_passages
from esscher.engine.text.packing import read_passages
from tests.engine.models.folders import tiny, words


@pytest.fixture(scope="module", params=["bert", "mpnet", "llama", "gemma3"])
def loaded(request):
    return tiny(request.param)


def test_every_layer_of_every_passage(loaded):
    text = read_passages(loaded, [words(60)], tokens=40, context=16)
    seen = [(p.number, c.layer) for p, c in iterate_passages(loaded, text)]
    assert seen == [(p, layer) for p in range(len(text)) for layer in range(3)]
    for passage, capture in iterate_passages(loaded, text, layers=[1, 2]):
        assert capture.q.shape[:3] == (1, 4, 16)
        assert capture.valid is None
        assert capture.causal == loaded.causal
        again = capture.attend()
        assert (again - capture.output).abs().max() < 1e-5 * again.abs().max()
        assert len(passage.ids) == 16


def test_visiting_keeps_one_layer(loaded):
    text = read_passages(loaded, [words(60)], tokens=20, context=16)
    seen, alive = [], []

    def sink(passage, capture):
        assert sum(ref() is not None for ref in alive) == 0
        alive.append(weakref.ref(capture.output))
        seen.append((passage.number, capture.layer, capture.output.double().sum().item()))

    visit_passages(loaded, text, sink)
    iterated = iterate_passages(loaded, text)
    assert seen == [(p.number, c.layer, c.output.double().sum().item()) for p, c in iterated]
