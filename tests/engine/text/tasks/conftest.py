"""A tiny decoder that reads letters, so that every text can be read back, and a text for it."""

from __future__ import annotations

import pytest

from esscher.engine.models import wrap_model
from tests.engine.models.folders import letter_tokenizer, random_words
from tests.engine.models.tiny import tiny_model


@pytest.fixture(scope="session")
def decoder():
    loaded = tiny_model(
        "llama", strength=15.0, vocab_size=98, max_position_embeddings=4096, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    return wrap_model(loaded.model, letter_tokenizer(), name="letters")


@pytest.fixture(scope="session")
def text():
    """Sentences of random words."""
    words = random_words(6000).split()
    return " ".join(" ".join(words[i : i + 9]).capitalize() + "." for i in range(0, 6000, 9))
