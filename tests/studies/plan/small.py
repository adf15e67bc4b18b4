"""Small models, texts and options of plans that take a second."""

from __future__ import annotations

import numpy as np

from esscher.engine.models.loaded import wrap_model
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model

DECODER = {"prefix": 120, "query_count": 12, "passages": 2, "check_passages": 3, "budget": 0.5}
#: Caches in which facts can be hidden; every rule and one of them over the scores of another.
OPTIONS = {
    "prefix": 224,
    "query_count": 12,
    "passages": 3,
    "check_passages": 2,
    "budget": 0.25,
    "against": ("all", "adakv:expected", "adakv:streaming"),
    "tasks": ("values", "needle"),
    "task_items": 2,
}


def tiny(name="llama", positions=160, strength=12.0):
    model = tiny_model(name, max_position_embeddings=positions, strength=strength)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    return wrap_model(model.model, tokenizer, name=name)


def roomy():
    """A decoder with room for questions about texts."""
    return tiny(positions=600, strength=6.0)


def prose(seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=1500))]
