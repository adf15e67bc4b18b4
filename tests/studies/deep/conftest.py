"""Small results: a Gaussian stack, and a model and a text with hostile names; a passage."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.engine.models.loaded import wrap_model
from esscher.engine.text.documents import read_text
from esscher.engine.text.packing import passages
from esscher.studies.deep.sampling import SampledPassage
from tests.engine.models.folders import (
    WORDS,
    decoder_tokenizer,
    encoder_tokenizer,
    tiny,
    words,
)
from tests.engine.models.tiny import tiny_model

#: What a tag, a formula or a broken file could be made of.
HOSTILE = "a $x_{$ <b> & \\frac \x07 $y$"


def sampled(name, **options):
    """A tiny model, all layers sampled."""
    model = tiny_model(name)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    text = [" ".join(np.random.default_rng([0, 11]).choice(WORDS, size=2500))]
    loaded = wrap_model(model.model, tokenizer, name=HOSTILE)
    options = {"context": 48, "passages": 2, "draws": 2, "sizes": [4, 10, 28]} | options
    return esscher.deep(loaded, text, **options)


@pytest.fixture(scope="package")
def stack():
    return esscher.deep_stack(depth=3, dim=2, horizon=0.4, sizes=[32, 64, 128], replicates=8)


@pytest.fixture(scope="package")
def shallow():
    """One layer, one replicate: no growth, no intervals."""
    return esscher.deep_stack(depth=1, dim=2, horizon=0.4, sizes=[32, 64], replicates=1)


@pytest.fixture(scope="package")
def decoder():
    return sampled("llama")


@pytest.fixture(scope="package")
def encoder():
    """One size, one way of drawing keys, no terciles."""
    return sampled("bert", sizes=[10], keys="shared", terciles="none")


@pytest.fixture(scope="package")
def reader_of():
    """The first passage of a text of 200 words, by the name of a tiny model."""

    def read(name, context=60):
        loaded = tiny(name)
        passage = next(passages(loaded, read_text([words(200)]), context=context))
        return SampledPassage(loaded, passage)

    return read
