"""Every published rule keeps what it should keep, and exactly as much as the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.cache.cache import reduced_copy
from esscher.engine.cache.published import RULES, Profile, Scores, rule_named
from esscher.engine.cache.published.duo import Duo
from esscher.engine.cache.published.lukv import LUKV
from esscher.engine.cache.published.pyramid import Pyramid
from esscher.engine.cache.selection import Kept
from tests.engine.cache.plans import prompts
from tests.engine.cache.published.reading import (
    PROMPT,
    SMALL,
    SNAPKV,
    WINDOW,
    decoder,
    looked,
    profile_of,
    read,
)

#: Decoders with rotary positions, with none in some layers, with learned ones, and with windows.
DECODERS = ("llama", "llama one key head", "smollm3", "gpt2", "gemma2", "gemma3_text")


@pytest.mark.parametrize("name", DECODERS)
def test_totals_are_exact(name):
    loaded, ids = decoder(name), prompts([PROMPT])[0]
    looking, profile = looked(loaded, list(SMALL.values()), ids), profile_of(loaded)
    for rule in SMALL.values():
        found = looking.found(rule)
        for each in (6, 17, 33, PROMPT):
            kept = rule.keep(found, each, profile)
            assert len(kept) == len(looking.layers)
            assert all(len(layer) == loaded.shape.key_heads for layer in kept)
            assert sum(len(i) for layer in kept for i in layer) == each * len(kept) * len(kept[0])
            for index in (i for layer in kept for i in layer):
                assert bool((index.diff() > 0).all())
                assert len(index) == 0 or 0 <= index[0] <= index[-1] < PROMPT
            again = rule.keep(found, each, profile)
            assert indices(again) == indices(kept)


def test_what_is_kept_for_certain():
    loaded, ids = decoder(), prompts([PROMPT])[0]
    looking, profile = looked(loaded, list(SMALL.values()), ids), profile_of(loaded)
    sinks, window = set(range(4)), set(range(PROMPT - WINDOW, PROMPT))
    certain = {
        "streaming": {*sinks, *range(PROMPT - 16, PROMPT)}, "snapkv": window,
        "tova": {PROMPT - 1}, "expected": sinks, "pyramid": window, "kvzip": sinks,
        "lukv": {*sinks, PROMPT - 1}, "duo": {0, PROMPT - 1}, "adakv": {PROMPT - WINDOW},
        "criticalkv": {PROMPT - WINDOW},
    }  # fmt: skip
    assert set(certain) == set(SMALL)
    for name, rule in SMALL.items():
        for layer in rule.keep(looking.found(rule), 20, profile):
            assert all(certain[name] <= set(index.tolist()) for index in layer), name


def test_a_cache_holds_what_is_kept():
    loaded, ids = decoder(), prompts([PROMPT])[0]
    rule = SMALL["criticalkv"]
    looking = looked(loaded, [rule], ids)
    kept = rule.keep(looking.found(rule), 20)
    dense = read(loaded, ids, lambda inputs: None)
    cache = reduced_copy(
        loaded, dense, lambda layer, _: [Kept(i, torch.zeros(len(i))) for i in kept[layer]]
    )
    assert cache.kept.tolist() == [[len(i) for i in layer] for layer in kept]


def test_pyramid_budgets():
    rule = Pyramid(SNAPKV)
    # as kvpress: from 2 each - each / 20 down to each / 20, linearly
    assert rule.budgets(4, 2000, 200) == [390, 263, 137, 10]
    found = rule.budgets(7, 2000, 203)
    assert sum(found) == 7 * 203
    ideal = np.linspace(2 * 203 - 203 / 20, 203 / 20, 7)
    assert np.abs(np.array(found) - ideal).max() < 1
    # the smallest would be below the window, and so all are the same
    assert rule.budgets(4, 2000, 100) == [100] * 4
    # more than there are tokens is never kept
    assert rule.budgets(3, 100, 70) == [92, 70, 48]
    assert rule.budgets(1, 2000, 200) == [200]


def table(*rows):
    return Scores(torch.tensor(rows, dtype=torch.float32), torch.ones(len(rows), len(rows[0])))


def indices(kept):
    return [[index.tolist() for index in layer] for layer in kept]


def test_heads_of_adakv_compete():
    found = [table([9, 8, 7, 6, 5], [4, 3, 2, 1, 0])]
    # a fifth of 3, at least one token, is safe in the second head
    assert indices(SMALL["adakv"].keep(found, 3)) == [[[0, 1, 2, 3, 4], [0]]]
    assert indices(SMALL["adakv"].keep(found, 1)) == [[[0], [0]]]


def test_norms_of_criticalkv_decide_the_second_half():
    scores = torch.tensor([[8.0, 7.0, 6.0, 5.0, 4.0, 3.0]])
    found = [Scores(scores, torch.tensor([[1.0, 1, 1, 1, 1, 9]]))]
    assert indices(SMALL["criticalkv"].keep(found, 4)) == [[[0, 1, 2, 5]]]
    assert indices(SMALL["adakv"].keep(found, 4)) == [[[0, 1, 2, 3]]]


def test_layers_of_kvzip_compete():
    scores = torch.zeros(2, 1, 10)
    scores[0, 0, 4:] = 1.0
    found = [Scores(layer) for layer in scores]
    assert indices(RULES["kvzip"].keep(found, 6)) == [[[*range(8)]], [[0, 1, 2, 3]]]


def some_profile(lost, retrieval, sizes=(5, 10, 20)):
    return Profile(sizes[-1], np.array(sizes), np.array(lost, float), np.array(retrieval, float))


def test_budgets_of_lukv():
    lost = [[[9, 8, 0], [9, 1, 0]]]
    profile = some_profile(lost, [[0, 0]])
    # on the hull the first head gains 9/15 a token, the second 8/5 and then 1/10
    assert LUKV().budgets(profile, 20, 10).tolist() == [[10, 10]]
    assert LUKV().budgets(profile, 20, 8).tolist() == [[6, 10]]
    assert LUKV().budgets(profile, 20, 14).tolist() == [[18, 10]]
    assert LUKV().budgets(profile, 20, 20).tolist() == [[20, 20]]
    assert LUKV().budgets(profile, 40, 20).tolist() == [[20, 20]]
    with pytest.raises(InputError, match="below the 10 that must be kept"):
        LUKV().budgets(profile, 20, 4)


def test_the_split_of_duo():
    profile = some_profile(np.zeros((2, 2, 3)), [[1, 5], [0, 2]])
    budgets, sinks = Duo().split(profile, 20, 8)
    # streaming heads have 4, and what they leave is just enough for a head with 20
    assert (budgets.tolist(), sinks) == ([[4, 20], [4, 4]], 0)
    assert Duo().split(profile, 20, 20)[0].tolist() == [[20, 20], [20, 20]]
    budgets, sinks = Duo().split(profile, 2000, 1000)
    assert (budgets.tolist(), sinks) == ([[667, 2000], [667, 666]], 64)
    kept = Duo().keep([Scores(torch.zeros(2, 2000))] * 2, 1000, profile)
    assert kept[0][0].tolist() == [*range(64), *range(2000 - (667 - 64), 2000)]
    assert len(kept[0][1]) == 2000


def test_names():
    assert list(RULES) == [
        "streaming", "snapkv", "tova", "expected", "pyramid", "adakv", "criticalkv", "kvzip",
        "lukv", "duo",
    ]  # fmt: skip
    for name in (
        *RULES,
        "adakv:expected",
        "criticalkv:tova",
        "adakv:streaming",
        "lukv:snapkv",
        "lukv:expected",
    ):
        rule = rule_named(name)
        assert rule.name == name
        assert "arXiv 2" in rule.cite
    assert rule_named("adakv:snapkv").name == "adakv"
    assert [name for name, rule in RULES.items() if rule.calibrated] == ["lukv", "duo"]
    assert [name for name, rule in RULES.items() if rule.reads == "repeat"] == ["kvzip"]


@pytest.mark.parametrize("name", ["h2o", "", "adakv:kvzip", "pyramid:tova", "snapkv:", "lukv:h2o"])
def test_names_that_are_none(name):
    if name.endswith(":"):
        name += "nothing"
    with pytest.raises(InputError, match="choose among streaming, snapkv"):
        rule_named(name)


def test_bad_requests():
    found = [table([9, 8, 7], [4, 3, 2])]
    with pytest.raises(InputError, match="each is 4; the prompt has 3 tokens"):
        SMALL["adakv"].keep(found, 4)
    with pytest.raises(InputError, match="'lukv' needs a profile"):
        RULES["lukv"].keep(found, 2)
    with pytest.raises(InputError, match="2 layers with 2 key heads, the prompt was read by 1"):
        RULES["duo"].keep(found, 2, some_profile(np.zeros((2, 2, 3)), np.zeros((2, 2))))
    with pytest.raises(InputError, match="has 60 tokens; the rule 'snapkv' needs more than 64"):
        looked(decoder(), [RULES["snapkv"]], prompts([60])[0])
    for sizes in ((5, 5, 20), (5, 10), ()):
        with pytest.raises(InputError, match="sizes must increase up to the prompt's 20"):
            Profile(20, np.array(sizes), np.zeros((1, 1, len(sizes))), np.zeros((1, 1)))
    with pytest.raises(InputError, match="a profile has lost"):
        some_profile(np.zeros((2, 2, 2)), np.zeros((2, 2)))
