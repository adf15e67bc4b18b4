"""Small models, texts and options of plans that take a second."""

from __future__ import annotations

import numpy as np

from esscher.engine.models import wrap_model
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model

DECODER = {"prefix": 120, "query_count": 12, "passages": 2, "check_passages": 3, "budget": 0.5}


def tiny(name="llama"):
    model = tiny_model(name, max_position_embeddings=160, strength=12.0)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    return wrap_model(model.model, tokenizer, name=name)


def prose(seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=1500))]
