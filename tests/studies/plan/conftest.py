"""Small plans of an encoder and of a decoder with a hostile name, both checked."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.engine.models import wrap_model
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model
from tests.studies.plan.asked import OPTIONS, roomy, text


def _plan(name, **options):
    model = tiny_model(name, max_position_embeddings=160, strength=12.0)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    loaded = wrap_model(model.model, tokenizer, name="a $x_{$ <b> & \\frac \x07 $y$")
    text, check = ([" ".join(np.random.default_rng(i).choice(WORDS, size=1500))] for i in (1, 2))
    return esscher.plan(loaded, text, check=check, budget=0.5, passages=2, check_passages=3,
                        **options)  # fmt: skip


@pytest.fixture(scope="session")
def encoder():
    return _plan("bert", prefix=40)


@pytest.fixture(scope="session")
def decoder():
    return _plan("llama", prefix=120, query_count=12)


@pytest.fixture(scope="session", params=["encoder", "decoder"])
def found(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def asked(tmp_path_factory):
    """A decoder's plan against all rules, with questions; its run is stored."""
    out = tmp_path_factory.mktemp("asked") / "run"
    return esscher.plan(roomy(), text(0), check=text(1), out=out, **OPTIONS)
