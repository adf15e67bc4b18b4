"""Whole comparisons: what is found, what is not, resuming, bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest

import esscher
import esscher.studies.domains.run as running
from esscher.core.errors import InputError
from esscher.engine.models import wrap_model
from esscher.show.domains import draw_domains
from esscher.studies.domains import Domains, domains, load_domains
from esscher.studies.domains.statistics import STATISTICS
from tests.engine.models.demo import demo_model
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model
from tests.studies.probe.test_probe import tiny

POOLED = {"blocks": 4, "block_tokens": 120, "context": 62}
SEQUENCES = {"blocks": 4, "block_tokens": 160, "context": 80}


def corpus(seed, words=WORDS, tokens=4000):
    """Random words, ten to a line."""
    rng = np.random.default_rng([seed, 7])
    rows = rng.choice(words, (tokens // 10, 10))
    return ["\n".join(" ".join(row) for row in rows)]


#: Two corpora of the same law, and one of other words.
THREE = {"one": corpus(1), "two": corpus(2), "few words": corpus(3, WORDS[:9])}


@pytest.fixture(autouse=True)
def few_permutations(monkeypatch):
    monkeypatch.setattr("esscher.studies.domains.comparison.FEWEST", 2_000)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_results_have_everything(name, tmp_path):
    loaded = tiny(name)
    options = POOLED if name == "bert" else SEQUENCES
    if name == "bert":  # the 60 keys of the tiny decoder are too few to sample from
        options = options | {"measure": True, "replicates": 3}
    found = domains(loaded, THREE, layers=[0, 2], heads=[0, 3], out=tmp_path / "run", **options)
    assert isinstance(found, Domains)
    assert found.complete
    assert found.results["configuration"]["mode"] == ("pooled" if name == "bert" else "context")
    assert found.corpora == list(THREE)
    json.dumps(found.to_dict(), allow_nan=False)
    assert {"corpora", "tests", "variance", "rank", "headline", "transfer"} <= set(found.results)
    assert found.results["units"] == [[layer, head] for layer in (0, 2) for head in (0, 3)]
    assert set(found.results["statistics"]) >= {"tokens", "ess", "horizon", "khat"}
    assert ("exponent" in found.results["statistics"]) == (name == "bert")
    for test in found.results["tests"].values():
        assert len(test["omnibus"]["p"]) == 4
        assert [(pair["a"], pair["b"]) for pair in test["pairs"]] == [
            ("one", "two"), ("one", "few words"), ("two", "few words"),
        ]  # fmt: skip
    for pair in found.results["tests"]["tokens"]["pairs"]:
        for low, effect, high in zip(pair["low"], pair["effect"], pair["high"], strict=True):
            assert low <= effect <= high
    assert len(found.to_frame()) == 4 * len(found.results["statistics"])
    assert len(found.differences()) == 3 * len(found.to_frame())
    assert len(found.medians()) == 3
    shares = found.variance()[["head", "corpus", "head x corpus", "block", "rest"]]
    assert shares.sum(axis=1).to_numpy() == pytest.approx(1)
    assert "Corpora differ" in repr(found)
    assert "<table" in found._repr_html_()
    assert load_domains(tmp_path / "run").to_dict() == found.to_dict()
    assert len(draw_domains(found.results).axes) >= 6


def test_what_differs_is_found_and_what_does_not_is_not():
    # weaker weights than those of the other tests, whose queries attend one token each
    model = wrap_model(tiny_model("bert", strength=6.0).model, encoder_tokenizer(), name="bert")
    found = domains(model, THREE, layers=[1], **(POOLED | {"blocks": 6}))
    frame = found.differences()
    same = frame[(frame["a"] == "one") & (frame["b"] == "two")]
    other = frame[frame["b"] == "few words"]
    # at most a few of the same law are false discoveries; nine words give other clouds
    assert (same["adjusted_p"] <= 0.05).mean() < 0.1
    assert (other["adjusted_p"] <= 0.05).mean() > 0.2
    assert (other[other["statistic"] == "tokens"]["adjusted_p"] <= 0.05).any()
    distinct = found.medians().set_index("corpus")["distinct"]
    assert distinct["few words"] == pytest.approx(9 / 120)
    # the check within corpora is of the same blocks
    assert found.results["correction"]["halves_rejected"] < 0.08


def test_a_statistic_that_is_the_same_everywhere_is_left_out():
    # no delimiters at all: the share is 0 in every block
    loaded = demo_free("llama")
    found = domains(loaded, THREE, layers=[0], heads=[0, 1], **SEQUENCES)
    assert "delimiters" not in found.results["statistics"]
    known = {statistic.name for statistic in STATISTICS}
    assert set(found.results["statistics"]) < known


def demo_free(name):
    """A tiny decoder whose tokenizer frames nothing."""
    return wrap_model(tiny_model(name).model, decoder_tokenizer(begin=False), name=name)


def stopped_after(count, folder, monkeypatch, **options):
    """Run until ``count`` blocks are stored, as with Ctrl-C."""
    measured, seen = running.measure_block, []

    def stops(*arguments):
        seen.append(1)
        if len(seen) > count:
            raise KeyboardInterrupt
        return measured(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(running, "measure_block", stops)
        with pytest.raises(KeyboardInterrupt):
            domains(tiny("bert"), THREE, out=folder, **options)
    return load_domains(folder)


def test_a_stopped_run_resumes_to_the_same(tmp_path, monkeypatch):
    options = POOLED | {"layers": [1], "heads": [0, 3]}
    whole = domains(tiny("bert"), THREE, **options)
    part = stopped_after(10, tmp_path / "run", monkeypatch, **options)
    assert not part.complete
    # ten cells are three blocks of every corpus
    assert "So far from 3 blocks" in part.headline
    assert "Corpora differ" in repr(part)
    again = domains(tiny("bert"), THREE, out=tmp_path / "run", **options)
    without = [{k: v for k, v in r.items() if k != "created"} for r in
               (whole.results, again.results)]  # fmt: skip
    assert without[0] == without[1]


def test_a_run_stopped_at_once_says_so(tmp_path, monkeypatch):
    options = POOLED | {"layers": [1], "heads": [0]}
    part = stopped_after(2, tmp_path / "run", monkeypatch, **options)
    assert "2 of 12 blocks are measured: too few" in part.headline
    assert repr(part) == part.headline
    assert part.to_frame().empty
    assert part.medians().empty
    assert draw_domains(part.results).texts


def test_another_alpha_needs_no_new_run(tmp_path):
    loaded = tiny("bert")
    options = POOLED | {"layers": [1], "heads": [0, 3], "out": tmp_path / "run"}
    first = domains(loaded, THREE, **options)
    strict = load_domains(tmp_path / "run", alpha=0.001)
    assert strict.results["alpha"] == 0.001
    assert strict.results["counts"]["any"]["heads"] <= first.results["counts"]["any"]["heads"]
    assert load_domains(tmp_path / "run").to_dict() == first.to_dict()
    again = domains(loaded, THREE, alpha=0.2, **options)
    assert load_domains(tmp_path / "run").to_dict() == again.to_dict()


def test_another_text_is_refused(tmp_path):
    loaded = tiny("bert")
    options = POOLED | {"layers": [1], "heads": [0, 3], "out": tmp_path / "run"}
    domains(loaded, THREE, **options)
    with pytest.raises(InputError, match="another configuration"):
        domains(loaded, THREE | {"two": corpus(9)}, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"blocks": 2}, "at least 3"),
        ({"block_tokens": 10}, "at least 48"),
        ({"context": 500}, "at most 80"),
        ({"mode": "context", "block_tokens": 50}, "do not hold a passage"),
        ({"mode": "else"}, "one of pooled, context"),
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": "x"}, "alpha is 'x'"),
        ({"seed": -1}, "seed is -1"),
        ({"layers": [7]}, "layers contains 7"),
        ({"measure": True, "replicates": 0}, "replicates"),
        ({"measure": True, "mode": "context", "context": 30, "block_tokens": 50}, "it takes 40"),
        ({"blocks": 60}, "4,000 tokens"),
    ],
)
def test_bad_input(options, words, tmp_path):
    with pytest.raises(InputError, match=words):
        domains(tiny("bert"), THREE, out=tmp_path / "run", **(POOLED | options))
    assert not (tmp_path / "run").exists()


def test_the_real_encoder():
    found = esscher.domains(
        demo_model("demo:minilm"), {"prose": "demo:docs", "code": "demo:code"},
        layers=[0], heads=[0, 5], blocks=3, block_tokens=200, context=210,
    )  # fmt: skip
    assert found.complete
    assert found.results["units"] == [[0, 0], [0, 5]]


def test_numbers_that_do_not_exist_are_left_out(tmp_path, monkeypatch):
    # k-hat needs a tail; where most received values are equal there is none
    measured = running.measure_block

    def without(*arguments):
        cell = measured(*arguments)
        cell.table.loc[0, "khat"] = np.nan
        return cell

    monkeypatch.setattr(running, "measure_block", without)
    found = domains(tiny("bert"), THREE, layers=[1], heads=[0, 3], **POOLED)
    test = found.results["tests"]["khat"]["omnibus"]
    assert test["p"][0] is None
    assert test["p"][1] is not None
    json.dumps(found.to_dict(), allow_nan=False)
    assert draw_domains(found.results).axes
