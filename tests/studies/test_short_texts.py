"""Defaults are upper limits: a short text is studied as far as it goes."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.engine.models.loaded import wrap_model
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model

#: Options that make a study quick, and what it must be left with on a text of 600 words.
STUDIES = {
    "deep": ({"terciles": "none"}, {"context": 601, "passages": 1}),
    "sparse": ({"patterns": "streaming,random"}, {"context": 601, "passages": 1}),
    "context": ({}, {"context": 538, "query_count": 64, "passages": 1}),
    "tails": ({}, {"context": 151, "tokens": 600}),
    "plan": (
        {"budget": 0.5},
        {"prefix": 473, "query_count": 128, "passages": 2, "retrieval": 1},
    ),
}


def model(name="llama"):
    result = tiny_model(name, max_position_embeddings=1200, strength=12.0)
    tokenizer = decoder_tokenizer() if result.family.decoder else encoder_tokenizer()
    return wrap_model(result.model, tokenizer, name=name)


def text(count, seed=0):
    return [" ".join(np.random.default_rng(seed).choice(WORDS, size=count))]


@pytest.mark.parametrize("name", list(STUDIES))
def test_a_text_shorter_than_a_passage(name, tmp_path):
    options, left = STUDIES[name]
    run = getattr(esscher, name)
    result = [run(model(), text(600), out=tmp_path / "run", **options) for _ in range(2)]
    for one in result:  # the second is read from the directory
        settings = one.setup.settings if hasattr(one, "setup") else one.study
        assert {option: getattr(settings, option) for option in left} == left
    with pytest.raises(InputError, match="has only 12 tokens"):
        run(model(), text(12), **options)


def test_a_number_of_passages_that_was_given_is_kept():
    result = esscher.deep(model(), text(600), passages=3, terciles="none")
    assert result.setup.settings.context == 201


def test_a_plan_takes_the_length_of_the_shorter_text():
    decoder = esscher.plan(model(), text(900), check=text(300, 1), budget=0.5)
    decoder = decoder.setup.settings
    assert (decoder.prefix, decoder.query_count) == (226, 75)
    assert (decoder.passages, decoder.check_passages) == (4, 1)


def test_a_plan_that_was_not_checked_is_checked_later_with_the_defaults():
    plan = esscher.plan(model(), text(900), budget=0.5, prefix=100)
    assert plan.setup.settings.passages == 3
    assert plan.evaluate(model(), text(500, 1)).setup.settings.check_passages == 2
