"""Whole comparisons: corpora in blocks, what differs, resuming, bad input, what is shown."""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pytest
import xarray as xr

import esscher
import esscher.studies.domains.measure as measuring
from esscher.core.errors import InputError
from esscher.engine.models.loaded import wrap_model
from esscher.runs.report import page_of
from esscher.show.content import draw
from esscher.studies.domains import domains
from esscher.studies.domains.charts import DRAWINGS
from esscher.studies.domains.measure import block_passages, cut_blocks, read_corpora
from esscher.studies.domains.study import STATISTICS, DomainsSettings, DomainsStudy
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer, tiny
from tests.engine.models.tiny import tiny_model
from tests.runs.made import make
from tests.runs.stopped import stopped_at
from tests.show.drawn import panel_rows


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


def settings(blocks, tokens=80, seed=0, mode="pooled"):
    return DomainsSettings(
        blocks=blocks,
        block_tokens=tokens,
        mode=mode,
        context=42,
        layers=(0,),
        heads=(0,),
        fdr=0.05,
        seed=seed,
    )


def lines(count):
    """Numbered lines of random words; the tokenizer takes a number for an unknown word."""
    rng = np.random.default_rng([0, 3])
    return "".join(f"{i} {' '.join(rng.choice(WORDS, 9))}\n" for i in range(count))


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_blocks_are_spread_and_apart(mode):
    bert, options = tiny("bert"), settings(5, tokens=84 if mode == "context" else 80, mode=mode)
    read = read_corpus("x", [lines(600)])
    blocks = cut_blocks(bert, *read, options)
    assert (
        blocks == cut_blocks(bert, *read, options) != cut_blocks(bert, *read, settings(5, seed=1))
    )
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
    assert len(cut_blocks(tiny("bert"), *small, settings(4))) == 4
    with pytest.raises(InputError, match=r"'small'.*only 400 tokens.*need 1,200.*at most 60"):
        cut_blocks(tiny("bert"), *small, settings(6, tokens=200))
    with pytest.raises(InputError, match="has only 1 tokens"):
        cut_blocks(tiny("bert"), *read_corpus("x", ["a" * 50_000]), settings(3))


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
    assert result.complete
    assert result.setup.settings.mode == ("pooled" if name == "bert" else "context")
    json.dumps(result.to_dict(), allow_nan=False)
    data = result.data
    assert set(data["statistic"].values) >= {"tokens", "ess", "horizon", "khat"}
    pairs = [f"{b} to {a}" for a, b in itertools.combinations(THREE, 2)]
    labels = {"corpus": list(THREE), "layer": [0, 2], "head": [0, 3], "pair": pairs}
    assert {axis: data[axis].values.tolist() for axis in labels} == labels
    count = data.sizes["statistic"]
    assert {name: len(result.table(name)) for name in result.tables()} == {
        "heads": 4,
        "statistics": count,
        "corpora": 3,
        "tests": 3 * 4 * count,
    }
    effect = data["effect"].sel(statistic="tokens")
    assert (effect.sel(bound="low") <= effect.sel(bound="value")).all()
    assert (effect.sel(bound="value") <= effect.sel(bound="high")).all()
    assert repr(result.head(0, 3)).startswith("head 0.3: verdict")
    assert result.compare(result).different.empty
    assert esscher.load(tmp_path / "r").to_dict() == result.to_dict()


def test_other_words_differ_and_the_same_words_do_not():
    # weaker weights than those of the other tests, whose queries attend one token each
    model = wrap_model(tiny_model("bert", strength=6.0).model, encoder_tokenizer(), name="bert")
    options = POOLED | {"blocks": 6, "layers": [1]}
    same = domains(model, {name: THREE[name] for name in ("one", "two")}, **options)
    assert not (same["verdict"] == "differs").any()
    other = domains(model, {name: THREE[name] for name in ("one", "few words")}, **options)
    # nine words give other clouds
    assert (other["verdict"].sel(statistic="tokens") == "differs").any()
    assert float(other["distinct"].sel(corpus="few words").mean()) == pytest.approx(9 / 120)


def test_a_statistic_that_is_the_same_everywhere_is_left_out():
    # no delimiters at all: the share is 0 in every block
    tokenizer = decoder_tokenizer(begin=False)
    loaded = wrap_model(tiny_model("llama").model, tokenizer, name="llama")
    result = domains(loaded, THREE, layers=[0], heads=[0, 1], **SEQUENCES)
    assert "delimiters" not in result.data["statistic"]
    assert set(result.data["statistic"].values) < set(STATISTICS)


def test_a_stopped_run_resumes_to_the_same(made, tmp_path):
    options, whole, _ = made
    with stopped_at("block-3-corpus-1"):
        domains(tiny("bert"), THREE, out=tmp_path / "run", **options)
    part = esscher.load(tmp_path / "run")
    assert not part.complete
    # ten cells are three blocks of every corpus
    assert "So far from 3 blocks" in part.headline
    again = domains(tiny("bert"), THREE, out=tmp_path / "run", workers=2, **options)
    xr.testing.assert_equal(again.data, whole.data)


def test_a_run_stopped_at_once_says_so(tmp_path):
    with stopped_at("block-0-corpus-2"):
        domains(tiny("bert"), THREE, out=tmp_path / "run", layers=[1], heads=[0], **POOLED)
    part = esscher.load(tmp_path / "run")
    assert part.cells == []
    assert repr(part) == part.headline == "Nothing has been measured yet."
    assert part.table().empty


def test_another_rate_needs_no_new_run(made, stored, monkeypatch):
    monkeypatch.setattr(measuring, "measure_block", None)  # nothing is measured again
    again = domains(tiny("bert"), THREE, fdr=0.2, out=stored, **made[0])
    assert again.setup.settings.fdr == 0.2
    xr.testing.assert_equal(again["p"], made[1]["p"])
    differ = [int((result["verdict"] == "differs").sum()) for result in (made[1], again)]
    assert differ[0] <= differ[1]
    assert esscher.load(stored).to_dict() == again.to_dict()


def test_numbers_that_do_not_exist_are_left_out(monkeypatch):
    """A k-hat needs a tail: where most received values are equal there is none."""
    measured, seen = measuring.measure_block, []

    def measure(*arguments):
        cell = measured(*arguments)
        seen.append(1)
        if len(seen) == 4:
            cell["number"].loc[{"statistic": "khat", "head": 0}] = np.nan
        return cell

    monkeypatch.setattr(measuring, "measure_block", measure)
    result = domains(tiny("bert"), THREE, layers=[1], heads=[0, 3], **POOLED)
    p = result["p"].sel(statistic="khat", layer=1)
    assert np.isnan(p.values).tolist() == [True, False]
    json.dumps(result.to_dict(), allow_nan=False)


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


def test_the_chart_holds_shares_verdicts_and_blocks():
    result = make("domains")[1]
    chart, frame = draw(DRAWINGS, result), result.table().set_index(["layer", "head"])
    shares = {(r["layer"], r["head"]): r["share"] for r in panel_rows(chart, 0, "share")}
    assert shares == pytest.approx(frame["share"].to_dict(), rel=1e-5)
    words = {(r["layer"], r["head"]): r["verdict"] for r in panel_rows(chart, 1, "verdict")}
    assert words == frame["verdict"].to_dict()
    numbers = result["number"].sel(statistic="tokens")
    for row in panel_rows(chart, 2, "number"):
        labels = {axis: row[axis] for axis in ("layer", "head", "corpus", "block")}
        assert row["number"] == pytest.approx(float(numbers.sel(labels)), rel=1e-5)


def test_the_page_names_every_corpus(tmp_path):
    result = make("domains")[1]
    rows = dict(page_of(result).provenance)
    for corpus in result.setup.records["texts"]:
        assert corpus.text_hash in rows[f"corpus {corpus.name}"]
    text = esscher.report(result, tmp_path / "report.html").read_text("utf-8")
    assert "$2_{$ &amp; &lt;b&gt;" in text
