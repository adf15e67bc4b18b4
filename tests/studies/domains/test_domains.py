"""Whole comparisons: corpora in blocks, what differs, resuming, bad input, what is shown."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import esscher
import esscher.studies.domains.measure as running
from esscher.core.errors import InputError
from esscher.engine.models.loaded import wrap_model
from esscher.runs.folder import Cell
from esscher.runs.report import page_of
from esscher.show.content import draw
from esscher.studies.domains import Domains, domains
from esscher.studies.domains.charts import DRAWINGS, MAIN
from esscher.studies.domains.measure import block_passages, cut_blocks, read_corpora
from esscher.studies.domains.result import STATISTICS
from esscher.studies.domains.study import DomainsStudy
from esscher.studies.domains.view import summary
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer, tiny
from tests.engine.models.tiny import tiny_model
from tests.runs.made import make
from tests.runs.stopped import stopped_at
from tests.show.drawn import panel_rows, texts


def corpus(seed, words=WORDS, tokens=4000):
    """Random words, ten to a line."""
    rows = np.random.default_rng([seed, 7]).choice(words, (tokens // 10, 10))
    return ["\n".join(" ".join(row) for row in rows)]


POOLED = {"blocks": 4, "block_tokens": 120, "context": 62}
SEQUENCES = {"blocks": 4, "block_tokens": 160, "context": 80}
#: Two corpora of the same law, and one of other words.
THREE = {"one": corpus(1), "two": corpus(2), "few words": corpus(3, WORDS[:9])}


# -- blocks


def read_corpus(name, source):
    ((read, text),) = read_corpora({name: source}).items()
    return read, text


def study(blocks, tokens=80, seed=0, mode="pooled"):
    return DomainsStudy(
        "demo:minilm", {}, blocks=blocks, block_tokens=tokens, context=42, mode=mode, seed=seed
    )


def lines(count):
    """Numbered lines of random words; the tokenizer takes a number for an unknown word."""
    rng = np.random.default_rng([0, 3])
    return "".join(f"{i} {' '.join(rng.choice(WORDS, 9))}\n" for i in range(count))


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_blocks_are_spread_and_apart(mode):
    bert, options = tiny("bert"), study(5, tokens=84 if mode == "context" else 80, mode=mode)
    read = read_corpus("x", [lines(600)])
    blocks = cut_blocks(bert, *read, options)
    assert blocks == cut_blocks(bert, *read, options) != cut_blocks(bert, *read, study(5, seed=1))
    seen = [
        [int(line.split()[0]) for line in block.splitlines() if line.split()[0].isdigit()]
        for block in blocks
    ]
    for before, after in itertools.pairwise(seen):
        assert before[-1] <= after[0]
    for part, (first, *_) in enumerate(seen):
        # each in its own fifth, from the beginning of a line on
        assert part * 120 - 2 <= first <= (part + 1) * 120
    for block in blocks:
        inside = block_passages(bert, block, options)
        assert sum(p.text_tokens for p in inside) >= 80
        if mode == "context":
            assert [len(p.ids) for p in inside] == [42, 42]


def test_corpora_that_just_suffice_and_that_are_too_short():
    # 4 parts of 100 tokens, blocks of 80: only the beginnings of the parts are long enough
    small = read_corpus("small", [lines(40)])
    assert len(cut_blocks(tiny("bert"), *small, study(4))) == 4
    with pytest.raises(InputError, match=r"'small'.*only 400 tokens.*need 1,200.*at most 60"):
        cut_blocks(tiny("bert"), *small, study(6, tokens=200))
    with pytest.raises(InputError, match="has only 1 tokens"):
        cut_blocks(tiny("bert"), *read_corpus("x", ["a" * 50_000]), study(3))


def test_documents_are_joined_and_unreadable_corpora_are_named(tmp_path):
    assert read_corpus("x", ["one", "two"])[1] == "one\n\ntwo"
    with pytest.raises(InputError, match=r"corpus 'b'.*no file or folder"):
        read_corpus("b", str(tmp_path / "missing.txt"))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"corpus 'c'.*not text"):
        read_corpus("c", tmp_path / "bad.txt")


@pytest.mark.parametrize(
    ("corpora", "words"),
    [
        ({}, "are no corpora"),
        ({"a": "x"}, "is only one corpus"),
        ({"a": "x", "": "y"}, "name of a corpus is ''"),
        ({"a": "x", 3: "y"}, "name of a corpus is 3"),
        ({"a": "x", "a ": "y"}, "the same name"),
        ({"a": "-", "b": "-"}, "standard input"),
        (["a", "b"], "dictionary"),
    ],
)
def test_bad_corpora(corpora, words):
    with pytest.raises(InputError, match=words):
        DomainsStudy("demo:minilm", corpora).check_texts()


# -- whole runs


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
    options = POOLED if name == "bert" else SEQUENCES
    result = domains(tiny(name), THREE, layers=[0, 2], heads=[0, 3], out=tmp_path / "r", **options)
    assert isinstance(result, Domains)
    assert result.complete
    assert result.study.mode == ("pooled" if name == "bert" else "context")
    assert [part.name for part in result.corpora] == list(THREE)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.units == tuple((layer, head) for layer in (0, 2) for head in (0, 3))
    assert set(result.tests) >= {"tokens", "ess", "horizon", "khat"}
    pairs = list(itertools.combinations(THREE, 2))
    assert all([(p.a, p.b) for p in test.pairs] == pairs for test in result.tests.values())
    table = result.table()
    assert len(table) == 3 * 4 * len(result.tests)
    tokens = table[table["statistic"] == "tokens"]
    assert (tokens["low"] <= tokens["effect"]).all()
    assert (tokens["effect"] <= tokens["high"]).all()
    assert len(result.per_block()) == 3 * 4 * 4
    assert len(result.medians()) == 3 * len(result.tests)
    assert esscher.load(tmp_path / "r").to_dict() == result.to_dict()


def test_other_words_differ_and_the_same_words_do_not():
    # weaker weights than those of the other tests, whose queries attend one token each
    model = wrap_model(tiny_model("bert", strength=6.0).model, encoder_tokenizer(), name="bert")
    options = POOLED | {"blocks": 6, "layers": [1]}
    same = domains(model, {name: THREE[name] for name in ("one", "two")}, **options)
    assert not any(any(test.differs) for test in same.tests.values())
    other = domains(model, {name: THREE[name] for name in ("one", "few words")}, **options)
    # nine words give other clouds
    assert any(other.tests["tokens"].differs)
    assert other.corpora[1].distinct == pytest.approx(9 / 120)


def test_a_statistic_that_is_the_same_everywhere_is_left_out():
    # no delimiters at all: the share is 0 in every block
    tokenizer = decoder_tokenizer(begin=False)
    loaded = wrap_model(tiny_model("llama").model, tokenizer, name="llama")
    result = domains(loaded, THREE, layers=[0], heads=[0, 1], **SEQUENCES)
    assert "delimiters" not in result.tests
    assert set(result.tests) < set(STATISTICS)


def test_a_stopped_run_resumes_to_the_same(made, tmp_path):
    options, whole, _ = made
    with stopped_at("block-3-corpus-1"):
        domains(tiny("bert"), THREE, out=tmp_path / "run", **options)
    part = esscher.load(tmp_path / "run")
    assert not part.complete
    # ten cells are three blocks of every corpus
    assert "So far from 3 blocks" in part.headline
    again = domains(tiny("bert"), THREE, out=tmp_path / "run", **options)
    assert again.to_dict() | {"created": ""} == whole.to_dict() | {"created": ""}


def test_a_run_stopped_at_once_says_so(tmp_path):
    with stopped_at("block-0-corpus-2"):
        domains(tiny("bert"), THREE, out=tmp_path / "run", layers=[1], heads=[0], **POOLED)
    part = esscher.load(tmp_path / "run")
    assert "2 of 12 blocks are measured: too few" in part.headline
    assert repr(part) == part.headline
    assert part.table().empty
    assert part.charts() == {}
    assert summary(part, "run").tables == []
    with pytest.raises(InputError, match="too few blocks are measured to compare anything"):
        part.plot()


def test_another_rate_needs_no_new_run(made, stored, monkeypatch):
    monkeypatch.setattr(running, "measure_block", None)  # nothing is measured again
    again = domains(tiny("bert"), THREE, fdr=0.2, out=stored, **made[0])
    assert again.study.fdr == 0.2
    first, second = made[1].tests["tokens"], again.tests["tokens"]
    assert first.p == second.p
    assert sum(first.differs) <= sum(second.differs)
    assert esscher.load(stored).to_dict() == again.to_dict()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda r: r["tests"]["tokens"]["p"].pop(), "not of all heads"),
        (lambda r: r["numbers"].pop("tokens"), "same statistics"),
        (lambda r: r["numbers"]["tokens"][0].pop(), "not of all blocks"),
        (lambda r: r["tests"].pop("tokens"), "no tests"),
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


def changed(monkeypatch, change, **options):
    """A run whose fourth table is changed."""
    measured, seen = running.measure_block, []

    def measure(*arguments):
        cell = measured(*arguments)
        seen.append(1)
        return Cell(cell.about, change(cell.table)) if len(seen) == 4 else cell

    monkeypatch.setattr(running, "measure_block", measure)
    return domains(tiny("bert"), THREE, layers=[1], heads=[0, 3], **(POOLED | options))


def test_a_block_of_other_heads_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="not of the same heads"):
        changed(monkeypatch, lambda table: table[::-1], out=tmp_path / "run")


def test_numbers_that_do_not_exist_are_left_out(monkeypatch):
    # k-hat needs a tail; where most received values are equal there is none
    khat = np.array([np.nan, 0.1])
    result = changed(monkeypatch, lambda table: table.assign(khat=khat))
    test = result.tests["khat"]
    assert test.p[0] is None
    assert test.p[1] is not None
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.plot()._repr_svg_().startswith("<svg")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"blocks": 3, "fdr": 0.001}, "give more blocks, or more corpora"),
        ({"block_tokens": 10}, "at least 48"),
        ({"context": 500}, "at most 80"),
        ({"mode": "context", "block_tokens": 50}, "do not hold a passage"),
        ({"fdr": 5}, r"did you mean 0\.05"),
        ({"blocks": 60}, "4,000 tokens"),
    ],
)
def test_bad_input(options, words, tmp_path):
    with pytest.raises(InputError, match=words):
        domains(tiny("bert"), THREE, out=tmp_path / "run", **(POOLED | options))
    assert not (tmp_path / "run").exists()


# -- what is shown


def test_the_chart_holds_the_shares_and_crosses_undecided_heads(capfd):
    result = make("domains")[1]
    chart = draw(DRAWINGS, result)
    for i, name in enumerate(MAIN):
        test = result.tests[name]
        rows = {(row["layer"], row["head"]): row for row in panel_rows(chart, i, "share")}
        for unit, share, differs in zip(result.units, test.share, test.differs, strict=True):
            assert rows[unit]["share"] == pytest.approx(share, rel=1e-5)
            assert rows[unit]["undecided"] != differs
    assert texts(chart)
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match="too few blocks"):
        draw(DRAWINGS, replace(result, blocks=0))


def test_the_page_holds_the_numbers(tmp_path):
    result = make("domains")[1]
    page = summary(result, "run")
    differ = sum(result.tests["tokens"].differs)
    assert [card.value for card in page.cards[:2]] == [f"{differ} of 4", f"{4 - differ} of 4"]
    rows = dict(page_of(result).provenance)
    for part in result.study.corpora:
        assert part.text_hash in rows[f"corpus {part.name}"]
    text = esscher.report(result, tmp_path / "report.html").read_text("utf-8")
    assert "$2_{$ &amp; &lt;b&gt;" in text
