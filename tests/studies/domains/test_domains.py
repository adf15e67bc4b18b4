"""Whole comparisons: what is found, what is not, resuming, bad input."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import esscher
import esscher.studies.domains.measure as running
from esscher.core.errors import InputError
from esscher.engine.models import wrap_model
from esscher.runs.folder import Cell
from esscher.studies.domains import Domains, domains
from esscher.studies.domains.result import STATISTICS
from tests.engine.models.demo import demo_model
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer, tiny
from tests.engine.models.tiny import tiny_model
from tests.studies.domains.corpora import corpus

POOLED = {"blocks": 4, "block_tokens": 120, "context": 62}
SEQUENCES = {"blocks": 4, "block_tokens": 160, "context": 80}
#: Two corpora of the same law, and one of other words.
THREE = {"one": corpus(1), "two": corpus(2), "few words": corpus(3, WORDS[:9])}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two heads of an encoder on three corpora: the options, the result, and its directory."""
    out = tmp_path_factory.mktemp("domains") / "run"
    options = POOLED | {"layers": [1], "heads": [0, 3]}
    return options, domains(tiny("bert"), THREE, out=out, **options), out


@pytest.fixture
def stored(made, tmp_path):
    """A copy of its directory, to be changed."""
    return shutil.copytree(made[-1], tmp_path / "run")


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_results_have_everything(name, tmp_path):
    loaded = tiny(name)
    options = POOLED if name == "bert" else SEQUENCES
    found = domains(loaded, THREE, layers=[0, 2], heads=[0, 3], out=tmp_path / "run", **options)
    assert isinstance(found, Domains)
    assert found.complete
    assert found.study.mode == ("pooled" if name == "bert" else "context")
    assert [corpus.name for corpus in found.corpora] == list(THREE)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.units == tuple((layer, head) for layer in (0, 2) for head in (0, 3))
    assert set(found.tests) >= {"tokens", "ess", "horizon", "khat"}
    for test in found.tests.values():
        assert len(test.p) == 4
        assert [(pair.a, pair.b) for pair in test.pairs] == [
            ("one", "two"),
            ("one", "few words"),
            ("two", "few words"),
        ]
    table = found.table()
    assert len(table) == 3 * 4 * len(found.tests)
    tokens = table[table["statistic"] == "tokens"]
    assert (tokens["low"] <= tokens["effect"]).all()
    assert (tokens["effect"] <= tokens["high"]).all()
    assert len(found.per_block()) == 3 * 4 * 4
    assert len(found.medians()) == 3 * len(found.tests)
    assert "tokens that a head needs" in repr(found)
    assert "<table" in found._repr_html_()
    assert esscher.load(tmp_path / "run").to_dict() == found.to_dict()


def test_what_differs_is_found_and_what_does_not_is_not():
    # weaker weights than those of the other tests, whose queries attend one token each
    model = wrap_model(tiny_model("bert", strength=6.0).model, encoder_tokenizer(), name="bert")
    options = POOLED | {"blocks": 6, "layers": [1]}
    same = domains(model, {name: THREE[name] for name in ("one", "two")}, **options)
    assert sum(test.count("differs") for test in same.tests.values()) == 0
    other = domains(model, {name: THREE[name] for name in ("one", "few words")}, **options)
    # nine words give other clouds
    assert other.tests["tokens"].count("differs") > 0
    distinct = {corpus.name: corpus.distinct for corpus in other.corpora}
    assert distinct["few words"] == pytest.approx(9 / 120)


def test_a_statistic_that_is_the_same_everywhere_is_left_out():
    # no delimiters at all: the share is 0 in every block
    loaded = demo_free("llama")
    found = domains(loaded, THREE, layers=[0], heads=[0, 1], **SEQUENCES)
    assert "delimiters" not in found.tests
    known = {statistic.name for statistic in STATISTICS}
    assert set(found.tests) < known


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
    return esscher.load(folder)


def test_a_stopped_run_resumes_to_the_same(made, tmp_path, monkeypatch):
    options, whole, _ = made
    part = stopped_after(10, tmp_path / "run", monkeypatch, **options)
    assert not part.complete
    # ten cells are three blocks of every corpus
    assert "So far from 3 blocks" in part.headline
    assert "tokens that a head needs" in repr(part)
    again = domains(tiny("bert"), THREE, out=tmp_path / "run", **options)
    without = [
        {k: v for k, v in r.items() if k != "created"} for r in (whole.to_dict(), again.to_dict())
    ]
    assert without[0] == without[1]


def test_a_run_stopped_at_once_says_so(tmp_path, monkeypatch):
    options = POOLED | {"layers": [1], "heads": [0]}
    part = stopped_after(2, tmp_path / "run", monkeypatch, **options)
    assert "2 of 12 blocks are measured: too few" in part.headline
    assert repr(part) == part.headline
    assert part.table().empty
    assert part.medians().empty
    assert part.charts() == {}
    with pytest.raises(InputError, match="too few blocks are measured to compare anything"):
        part.plot()


def test_another_rate_needs_no_new_run(made, stored, monkeypatch):
    monkeypatch.setattr(running, "measure_block", None)  # nothing is measured again
    again = domains(tiny("bert"), THREE, fdr=0.2, out=stored, **made[0])
    assert again.study.fdr == 0.2
    first, second = made[1].tests["tokens"], again.tests["tokens"]
    assert first.p == second.p
    assert first.count("differs") <= second.count("differs")
    assert esscher.load(stored).to_dict() == again.to_dict()


def test_a_saved_result_is_read_again(tmp_path):
    found = domains(tiny("bert"), THREE, fdr=0.1, layers=[1], heads=[0, 3], **POOLED)
    found.save(tmp_path / "domains.json")
    again = esscher.load(tmp_path / "domains.json")
    assert again.study.fdr == 0.1
    assert again.to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda r: r["tests"]["tokens"]["p"].pop(), "not of all heads"),
        (lambda r: r["tests"]["tokens"]["pairs"][0].update(a="else"), "not of its corpora"),
        (lambda r: r["numbers"].pop("tokens"), "same statistics"),
        (lambda r: r["numbers"]["tokens"][0].pop(), "not of all blocks"),
        (lambda r: r["tests"].pop("tokens"), "no tests"),
        (lambda r: r["layers"]["tokens"].pop("one"), "layers are not of its corpora"),
        (lambda r: r["configuration"].pop("fdr"), "has no 'fdr'"),
        (lambda r: r["configuration"].update(fdr=2), "fdr is 2"),
        (lambda r: r.update(smallest_p="x"), "smallest_p is 'x'"),
    ],
)
def test_results_that_do_not_fit_together_are_refused(damage, words, stored):
    path = stored / "results.json"
    tree = json.loads(path.read_text())
    damage(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=words):
        esscher.load(stored)


def test_a_block_of_other_heads_is_refused(tmp_path, monkeypatch):
    measured, seen = running.measure_block, []

    def other(*arguments):
        cell = measured(*arguments)
        seen.append(1)
        return Cell(cell.about, cell.table[::-1]) if len(seen) == 4 else cell

    monkeypatch.setattr(running, "measure_block", other)
    with pytest.raises(InputError, match="not of the same heads"):
        domains(tiny("bert"), THREE, layers=[1], heads=[0, 3], out=tmp_path / "run", **POOLED)


def test_another_text_is_refused(made, stored):
    with pytest.raises(InputError, match="another configuration"):
        domains(tiny("bert"), THREE | {"two": corpus(9)}, out=stored, **made[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"blocks": 2}, "at least 3"),
        ({"blocks": 3, "fdr": 0.001}, "give more blocks, or more corpora"),
        ({"block_tokens": 10}, "at least 48"),
        ({"context": 500}, "at most 80"),
        ({"mode": "context", "block_tokens": 50}, "do not hold a passage"),
        ({"mode": "else"}, "one of pooled, context"),
        ({"fdr": 0}, "fdr is 0; it must be a number above 0"),
        ({"fdr": 5}, r"did you mean 0\.05"),
        ({"fdr": "x"}, "fdr is 'x'"),
        ({"seed": -1}, "seed is -1"),
        ({"layers": [7]}, "layers contains 7"),
        ({"blocks": 60}, "4,000 tokens"),
    ],
)
def test_bad_input(options, words, tmp_path):
    with pytest.raises(InputError, match=words):
        domains(tiny("bert"), THREE, out=tmp_path / "run", **(POOLED | options))
    assert not (tmp_path / "run").exists()


def test_the_real_encoder():
    found = esscher.domains(
        demo_model("demo:minilm"),
        {"prose": "demo:docs", "code": "demo:code"},
        layers=[0],
        heads=[0, 5],
        blocks=6,
        block_tokens=200,
        context=210,
    )
    assert found.complete
    assert found.units == ((0, 0), (0, 5))


def test_numbers_that_do_not_exist_are_left_out(tmp_path, monkeypatch):
    # k-hat needs a tail; where most received values are equal there is none
    measured = running.measure_block

    def without(*arguments):
        cell = measured(*arguments)
        table = cell.table.copy()
        table.loc[0, "khat"] = np.nan
        return Cell(cell.about, table)

    monkeypatch.setattr(running, "measure_block", without)
    found = domains(tiny("bert"), THREE, layers=[1], heads=[0, 3], **POOLED)
    test = found.tests["khat"]
    assert test.p[0] is None
    assert test.p[1] is not None
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.plot("heads")._repr_svg_().startswith("<svg")
