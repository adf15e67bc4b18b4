"""Small plans of a decoder with a hostile name, checked."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.engine.models import wrap_model
from tests.engine.models.folders import WORDS, decoder_tokenizer
from tests.engine.models.tiny import tiny_model
from tests.studies.plan.asked import OPTIONS, roomy, text


@pytest.fixture(scope="session")
def found():
    model = tiny_model("llama", max_position_embeddings=160, strength=12.0)
    loaded = wrap_model(model.model, decoder_tokenizer(), name="a $x_{$ <b> & \\frac \x07 $y$")
    text, check = ([" ".join(np.random.default_rng(i).choice(WORDS, size=1500))] for i in (1, 2))
    return esscher.plan(
        loaded,
        text,
        check=check,
        budget=0.5,
        passages=2,
        check_passages=3,
        prefix=120,
        query_count=12,
    )


@pytest.fixture(scope="session")
def decoder(found):
    return found


@pytest.fixture(scope="session")
def asked(tmp_path_factory):
    """A decoder's plan against all rules, with questions; its run is stored."""
    out = tmp_path_factory.mktemp("asked") / "run"
    return esscher.plan(roomy(), text(0), check=text(1), out=out, **OPTIONS)
