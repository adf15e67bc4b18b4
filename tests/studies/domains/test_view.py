"""Charts, page and terminal of corpora show what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

import esscher
from esscher.core.errors import InputError
from esscher.runs.report import page_of
from esscher.show.content import draw, offered
from esscher.studies.domains.charts import DRAWINGS, MAIN
from esscher.studies.domains.view import summary
from tests.runs.made import make
from tests.show.drawn import panel_rows, texts


@pytest.fixture(scope="module")
def result():
    return make("domains")[1]


@pytest.mark.parametrize("width", ["double", "single"])
@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn(result, name, width, capfd):
    assert texts(draw(DRAWINGS, result, name), width)
    assert capfd.readouterr().err == ""


def test_layers_hold_the_means_and_intervals(result):
    chart = draw(DRAWINGS, result, "layers")
    for i, name in enumerate(result.tests):
        rows = {(row["corpus"], row["layer"]): row for row in panel_rows(chart, i, "value")}
        assert len(rows) == 3 * 2
        for corpus, layers in result.layers[name].items():
            for mean in layers:
                row = rows[corpus, str(mean.layer)]
                shown = [row["low"], row["value"], row["high"]]
                assert shown == pytest.approx([mean.low, mean.value, mean.high], rel=1e-5)


def test_heatmaps_hold_the_shares_and_cross_what_may_be_chance(result):
    chart = draw(DRAWINGS, result, "heads")
    for i, name in enumerate(MAIN):
        test = result.tests[name]
        rows = {(row["layer"], row["head"]): row for row in panel_rows(chart, i, "share")}
        for unit, share, verdict in zip(result.units, test.share, test.verdict, strict=True):
            assert rows[unit]["share"] == pytest.approx(share, rel=1e-5)
            assert rows[unit]["chance"] == (verdict != "differs")


def test_nothing_is_drawn_before_blocks_are_compared(result):
    early = replace(result, blocks=0)
    assert offered(DRAWINGS, early) == []
    with pytest.raises(InputError, match="too few blocks"):
        draw(DRAWINGS, early)
    assert summary(early, "run").tables == []


def test_cards_and_tables_hold_the_numbers(result):
    page = summary(result, "run")
    first, second, _ = page.cards
    test = result.tests["tokens"]
    assert first.value == f"{test.count('differs')} of 4"
    assert second.value == f"{test.count('undecided')} of 4"
    corpora, heads = page.tables
    assert corpora.data["median"] == list(result.medians()["median"])
    assert heads.data["verdict"] == list(result.table()["verdict"])
    assert len(heads.data["effect"]) == 3 * 4 * len(result.tests)


def test_names_in_the_report_are_text(result, tmp_path):
    text = esscher.report(result, tmp_path / "report.html").read_text("utf-8")
    assert "$2_{$ &amp; &lt;b&gt;" in text


def test_provenance_names_every_corpus(result):
    rows = dict(page_of(result).provenance)
    for corpus in result.study.corpora:
        assert corpus.text_hash in rows[f"corpus {corpus.name}"]
