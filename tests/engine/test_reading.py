"""A passage that is read many times: a decoder's queries come after its prefix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.reading import PassageReader, read_prompt
from esscher.engine.text import Passage
from tests.engine.cache.plans import prompts, room_for
from tests.engine.models.tiny import tiny_model


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_queries_follow_the_prefix_whoever_has_read_it(name):
    loaded = tiny_model(name, strength=6.0, **room_for(name))
    ids = prompts([60])[0]
    passage = Passage(0, ids.numpy(), np.zeros(60, dtype=bool))
    cache = read_prompt(loaded, ids[:48], lambda inputs: None)
    with torch.no_grad():
        laws = torch.log_softmax(loaded.model(ids[None]).logits[0, 48:], dim=-1)
    for given in (None, cache):
        reader = PassageReader(loaded, passage, 48, given)
        assert reader.cache.get_seq_length() == 48
        for _ in range(2):  # the prefix stays as it is
            found = reader.read(lambda inputs: None)
            torch.testing.assert_close(found.end, laws[reader.positions], rtol=1e-3, atol=1e-4)
        assert [tuple(own.shape[:2]) for own in found.attention] == [(4, 12)] * 3


def test_an_encoder_has_no_prefix():
    loaded = tiny_model("bert")
    ids = prompts([40])[0].numpy()
    assert PassageReader(loaded, Passage(0, ids, np.zeros(40, dtype=bool)), 0).cache is None
