"""Tiny models that read, and a text in letters that can be read back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.models.folders import letter_decoder, random_sentences, tiny


@pytest.fixture(scope="module")
def bert():
    return tiny("bert")


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")


@pytest.fixture(scope="session")
def decoder():
    return letter_decoder(4096)


@pytest.fixture(scope="session")
def text(decoder):
    """Tokens of sentences of random words."""
    ids = decoder.tokenizer(random_sentences(6000), add_special_tokens=False)["input_ids"]
    return np.array(ids)
