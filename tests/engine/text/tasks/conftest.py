"""A tiny decoder that reads letters, so that every text can be read back, and a text for it."""

from __future__ import annotations

import pytest

from tests.engine.models.folders import letter_decoder, random_sentences


@pytest.fixture(scope="session")
def decoder():
    return letter_decoder(4096)


@pytest.fixture(scope="session")
def text():
    """Sentences of random words."""
    return random_sentences(6000)
