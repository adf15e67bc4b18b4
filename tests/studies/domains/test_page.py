"""The page of corpora: cards, tables, and a report of it."""

from __future__ import annotations

import html
import shlex
from dataclasses import replace

import pytest
from msgspec import structs

import esscher
from esscher.runs.report import page_of
from esscher.studies.domains.charts import ordered
from esscher.studies.domains.page import summary
from tests.runs.made import make


@pytest.fixture(scope="module")
def found():
    return make("domains")[1]


def test_cards_say_how_many_heads_differ(found):
    first, *others = summary(found, "run").cards
    count = found.counts["any"]
    assert first.value == f"{count.heads} of 4"
    assert f"{count.heads_holm} family-wise" in first.note
    assert others[0].value == f"{count.undecided} of 4"
    assert others[-1].value == f"{found.transfer.factor:.2f}×"


def test_blocks_that_cannot_decide_are_no_zero(found):
    test = structs.replace(found.correction, least_found=10**6, smallest_p=0.1, blocks_for_any=4)
    first, *_ = summary(replace(found, correction=test), "run").cards
    assert first.value == "–"
    assert "cannot be decided" in first.note
    assert "at least 4 blocks" in first.note


def test_tables_hold_all_numbers(found):
    variance, strongest, corpora, heads = summary(found, "run").tables
    frame = found.variance_table()
    for source in ("head", "corpus", "head x corpus", "block", "rest"):
        shown = dict(zip(variance.data["statistic"],
                         variance.data[source.replace(" ", "_")], strict=True))  # fmt: skip
        for row in frame.to_dict("records"):
            assert shown[found.statistics[row["statistic"]].title] == row[source]
    assert strongest.data["effect"] == [one.effect for one in found.strongest]
    assert corpora.data["tokens"] == [c.median["tokens"].value for c in found.corpora]
    assert list(zip(heads.data["layer"], heads.data["head"], strict=True)) == list(found.units)
    for name in ordered(found):
        test = found.tests[name].omnibus
        assert heads.data[f"{name}_share"] == list(test.share)
        assert heads.data[f"{name}_p"] == list(test.adjusted)
        assert heads.data[f"{name}_holm"] == list(test.holm)
        assert heads.data[f"{name}_class"] == list(found.tests[name].classes)


def test_names_in_the_report_are_text(found, tmp_path):
    text = esscher.report(found, tmp_path / "report.html").read_text("utf-8")
    assert "$2_{$ &amp; &lt;b&gt;" in text
    assert html.escape(found.headline, quote=False) in html.unescape(text)


def test_provenance_and_command_name_every_corpus(found):
    page = page_of(found)
    rows = dict(page.provenance)
    words = shlex.split(page.command)
    for corpus in found.study.corpora:
        assert corpus.text_hash in rows[f"corpus {corpus.name}"]
        assert f"{corpus.name}={corpus.source}" in words
    assert words[:2] == ["esscher", "domains"]
    assert words.count("--text") == 3
    assert "--replicates" not in words
