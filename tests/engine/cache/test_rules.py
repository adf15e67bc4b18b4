"""Every published rule keeps what it should keep, and exactly as much as the others."""

from __future__ import annotations

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.cache.cache import reduced_copy
from esscher.engine.cache.published import RULES, Scores, rule_named
from esscher.engine.cache.selection import Kept
from tests.engine.cache.plans import prompts
from tests.engine.cache.reading import (
    PROMPT,
    SMALL,
    WINDOW,
    decoder,
    looked,
    read,
)

#: Decoders with rotary positions, with none in some layers, with learned ones, and with windows.
DECODERS = ("llama", "llama one key head", "smollm3", "gpt2", "gemma2", "gemma3_text")


@pytest.mark.parametrize("name", DECODERS)
def test_totals_are_exact(name):
    loaded, ids = decoder(name), prompts([PROMPT])[0]
    looking = looked(loaded, list(SMALL.values()), ids)
    for rule in SMALL.values():
        found = looking.found(rule)
        for each in (6, 17, 33, PROMPT):
            kept = rule.keep(found, each)
            assert len(kept) == len(looking.layers)
            assert all(len(layer) == loaded.shape.key_heads for layer in kept)
            assert sum(len(i) for layer in kept for i in layer) == each * len(kept) * len(kept[0])
            for index in (i for layer in kept for i in layer):
                assert bool((index.diff() > 0).all())
                assert len(index) == 0 or 0 <= index[0] <= index[-1] < PROMPT
            again = rule.keep(found, each)
            assert indices(again) == indices(kept)


def test_what_is_kept_for_certain():
    loaded, ids = decoder(), prompts([PROMPT])[0]
    looking = looked(loaded, list(SMALL.values()), ids)
    sinks, window = set(range(4)), set(range(PROMPT - WINDOW, PROMPT))
    certain = {
        "streaming": {*sinks, *range(PROMPT - 16, PROMPT)},
        "snapkv": window,
        "expected": sinks,
        "adakv": {PROMPT - WINDOW},
        "kvzip": sinks,
    }
    assert set(certain) == set(SMALL)
    for name, rule in SMALL.items():
        for layer in rule.keep(looking.found(rule), 20):
            assert all(certain[name] <= set(index.tolist()) for index in layer), name


def test_a_cache_holds_what_is_kept():
    loaded, ids = decoder(), prompts([PROMPT])[0]
    rule = SMALL["adakv"]
    looking = looked(loaded, [rule], ids)
    kept = rule.keep(looking.found(rule), 20)
    dense = read(loaded, ids, lambda inputs: None)
    cache = reduced_copy(
        loaded, dense, lambda layer, _: [Kept(i, torch.zeros(len(i))) for i in kept[layer]]
    )
    assert cache.kept.tolist() == [[len(i) for i in layer] for layer in kept]


def table(*rows):
    return Scores(torch.tensor(rows, dtype=torch.float32))


def indices(kept):
    return [[index.tolist() for index in layer] for layer in kept]


def test_heads_of_adakv_compete():
    found = [table([9, 8, 7, 6, 5], [4, 3, 2, 1, 0])]
    # a fifth of 3, at least one token, is safe in the second head
    assert indices(SMALL["adakv"].keep(found, 3)) == [[[0, 1, 2, 3, 4], [0]]]
    assert indices(SMALL["adakv"].keep(found, 1)) == [[[0], [0]]]


def test_layers_of_kvzip_compete():
    scores = torch.zeros(2, 1, 10)
    scores[0, 0, 4:] = 1.0
    found = [Scores(layer) for layer in scores]
    assert indices(RULES["kvzip"].keep(found, 6)) == [[[*range(8)]], [[0, 1, 2, 3]]]


def test_names():
    assert list(RULES) == ["streaming", "snapkv", "expected", "adakv", "kvzip"]
    for name in (*RULES, "adakv:expected", "adakv:streaming"):
        rule = rule_named(name)
        assert rule.name == name
        assert "arXiv 2" in rule.cite
    assert rule_named("adakv:snapkv").name == "adakv"
    assert [name for name, rule in RULES.items() if rule.reads == "repeat"] == ["kvzip"]


@pytest.mark.parametrize("name", ["h2o", "", "adakv:kvzip", "snapkv:"])
def test_names_that_are_none(name):
    if name.endswith(":"):
        name += "nothing"
    with pytest.raises(InputError, match="choose among streaming, snapkv"):
        rule_named(name)


def test_bad_requests():
    found = [table([9, 8, 7], [4, 3, 2])]
    with pytest.raises(InputError, match="each is 4; the prompt has 3 tokens"):
        SMALL["adakv"].keep(found, 4)
    with pytest.raises(InputError, match="has 60 tokens; the rule 'snapkv' needs more than 64"):
        looked(decoder(), [RULES["snapkv"]], prompts([60])[0])
