"""A tiny decoder with room for questions about texts, and texts in words that it knows."""

from __future__ import annotations

import numpy as np

from esscher.engine.models import wrap_model
from tests.engine.models.folders import WORDS, decoder_tokenizer
from tests.engine.models.tiny import tiny_model

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


def roomy():
    """A decoder that reads 600 tokens."""
    model = tiny_model("llama", max_position_embeddings=600, strength=6.0)
    return wrap_model(model.model, decoder_tokenizer(), name="llama")


def text(seed):
    return [" ".join(np.random.default_rng(seed).choice(WORDS, size=1500))]
