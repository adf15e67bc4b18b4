"""Small plans of a decoder, checked: with a hostile name, and with questions."""

from __future__ import annotations

import pytest

import esscher
from esscher.engine.models.loaded import wrap_model
from tests.engine.models.folders import decoder_tokenizer
from tests.studies.plan.small import DECODER, OPTIONS, prose, roomy, tiny


@pytest.fixture(scope="session")
def small_plan():
    name = "a $x_{$ <b> & \\frac \x07 $y$"
    loaded = wrap_model(tiny().model, decoder_tokenizer(), name=name)
    return esscher.plan(loaded, prose(1), check=prose(2), **DECODER)


@pytest.fixture(scope="session")
def asked(tmp_path_factory):
    """A decoder's plan against all rules, with questions; its run is stored."""
    out = tmp_path_factory.mktemp("asked") / "run"
    return esscher.plan(roomy(), prose(0), check=prose(1), out=out, **OPTIONS)
