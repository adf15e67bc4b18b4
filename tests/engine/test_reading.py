"""A passage that is read many times: a decoder's queries come after its prefix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.streams import random_stream
from esscher.engine.reading import PassageReader, compare_laws, read_prompt
from esscher.engine.text.packing import Passage
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
            result = reader.read(lambda inputs: None)
            torch.testing.assert_close(result.end, laws[reader.positions], rtol=1e-3, atol=1e-4)
        assert [tuple(output.shape[:2]) for output in result.attention] == [(4, 12)] * 3


def test_an_encoder_has_no_prefix():
    loaded = tiny_model("bert")
    ids = prompts([40])[0].numpy()
    assert PassageReader(loaded, Passage(0, ids, np.zeros(40, dtype=bool)), 0).cache is None


def test_laws_are_compared_by_their_definition():
    rng = random_stream(0, "test laws")
    p, q = rng.dirichlet(np.ones(7), 5), rng.dirichlet(np.ones(7), 5)
    follows = np.array([0, 3, 6, 2, 2])
    result = compare_laws(*(torch.from_numpy(np.log(x)) for x in (p, q)), torch.from_numpy(follows))
    assert result["kl"] == pytest.approx(np.mean(np.sum(p * np.log(p / q), axis=1)))
    assert result["top1"] == np.mean(p.argmax(1) == q.argmax(1))
    assert result["nll"] == pytest.approx(-np.mean(np.log(q[np.arange(5), follows])))
