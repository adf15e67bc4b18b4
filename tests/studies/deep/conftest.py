"""Small results: a Gaussian stack, and a model and a text with hostile names; a passage."""

from __future__ import annotations

import pytest

import esscher
from esscher.engine.text.documents import read_text
from esscher.engine.text.packing import passages
from esscher.studies.deep.sampling import SampledPassage
from tests.engine.models.folders import tiny, words
from tests.runs.made import make, random_text, wrapped


@pytest.fixture(scope="package")
def stack():
    return make("deep-stack")[1]


@pytest.fixture(scope="package")
def shallow():
    """One layer, one replicate: no growth, no intervals."""
    return esscher.deep_stack(depth=1, dim=2, horizon=0.4, sizes=[32, 64], replicates=1)


@pytest.fixture(scope="package")
def decoder():
    return make("deep")[1]


@pytest.fixture(scope="package")
def encoder():
    """One size, one way of drawing keys, no terciles."""
    options = {"context": 48, "passages": 2, "sizes": [10], "keys": "shared", "terciles": "none"}
    return esscher.deep(wrapped("bert"), random_text(), **options)


@pytest.fixture(scope="package")
def reader_of():
    """The first passage of a text of 200 words, by the name of a tiny model."""

    def read(name, context=60):
        loaded = tiny(name)
        passage = next(passages(loaded, read_text([words(200)]), context=context))
        return SampledPassage(loaded, passage)

    return read
