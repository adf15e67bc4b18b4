"""Charts of corpora show what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.domains.charts import DRAWINGS, ordered
from esscher.studies.domains.records import shares_of
from tests.runs.made import make
from tests.show.drawn import panel_rows, texts


@pytest.fixture(scope="module")
def found():
    return make("domains")[1]


@pytest.mark.parametrize("width", ["double", "single"])
@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn(found, name, width, capfd):
    assert texts(draw(DRAWINGS, found, name), width)
    assert capfd.readouterr().err == ""


def test_statistics_are_in_the_order_of_what_they_say(found):
    assert ordered(found)[:3] == ["tokens", "ess", "khat"]
    assert set(ordered(found)) == set(found.statistics)


def test_layers_hold_the_means_and_intervals(found):
    chart = draw(DRAWINGS, found, "layers")
    for i, name in enumerate(ordered(found)):
        shown = {(row["corpus"], row["layer"]): [row[k] for k in ("low", "value", "high")]
                 for row in panel_rows(chart, i, "value")}  # fmt: skip
        means = found.layers[name]
        assert len(shown) == 3 * 2
        for corpus, layers in means.items():
            for at in layers:
                assert shown[corpus, str(at.layer)] == pytest.approx(
                    [at.low, at.value, at.high], rel=1e-5
                )


@pytest.mark.parametrize("kind", ["heads", "explorer"])
def test_heatmaps_hold_the_shares_and_cross_what_may_be_chance(found, kind):
    chart = draw(DRAWINGS, found, kind)
    for i, name in enumerate(ordered(found)):
        test = found.tests[name].omnibus
        shown = {(row["layer"], row["head"]): row for row in panel_rows(chart, i, "share")}
        for unit, share, p in zip(found.units, test.share, test.adjusted, strict=True):
            if share is None:  # a constant
                assert shown[unit]["share"] is None
            else:
                assert shown[unit]["share"] == pytest.approx(share, rel=1e-5)
            assert shown[unit]["chance"] == (p is None or p > found.study.fdr)


def test_a_head_without_a_share_is_crossed_too(found):
    test = found.tests["khat"]
    omnibus = structs.replace(
        test.omnibus, share=(None, *test.omnibus.share[1:]), adjusted=(None, 0.001, 0.001, 0.9)
    )
    tests = dict.fromkeys(found.tests, structs.replace(test, omnibus=omnibus))
    chart = draw(DRAWINGS, replace(found, tests=tests), "heads")
    assert texts(chart).count("×") == 2 * len(found.tests)


def test_the_explorer_compares_all_pairs_in_every_head(found):
    chart = draw(DRAWINGS, found, "explorer")
    count = len(found.statistics)
    for i, name in enumerate(ordered(found)[:3]):
        shown = {(row["layer"], row["head"], row["pair"]): row
                 for row in panel_rows(chart, count + i, "effect")}  # fmt: skip
        assert len(shown) == 3 * len(found.units)
        for pair in found.tests[name].pairs:
            for k, unit in enumerate(found.units):
                row = shown[*unit, f"{pair.b} / {pair.a}"]
                assert row["effect"] == pytest.approx(pair.effect[k], rel=1e-5)
                assert row["hollow"] == (pair.adjusted[k] > found.study.fdr)
                assert row["low"] <= row["effect"] <= row["high"]


def test_the_explorer_starts_where_corpora_differ_most(found):
    share = found.tests["tokens"].omnibus.share
    layer, head = found.units[share.index(max(share))]
    (param,) = draw(DRAWINGS, found, "explorer").to_dict()["params"]
    assert param["value"] == [{"layer": layer, "head": head}]
    assert len(param["views"]) == len(found.statistics)
    (param,) = draw(DRAWINGS, found, "explorer", heads=[(2, 3)]).to_dict()["params"]
    assert param["value"] == [{"layer": 2, "head": 3}]
    with pytest.raises(InputError, match=r"there is no head 1\.3 in this run"):
        draw(DRAWINGS, found, "explorer", heads=[(1, 3)])


def test_shares_of_the_variance(found):
    shown = panel_rows(draw(DRAWINGS, found, "variance"), 0, "part")
    known = {name: part for name, part in found.variance.items() if part is not None}
    for name, part in known.items():
        title = found.statistics[name].title
        own = {row["part"]: row["share"] for row in shown if row["statistic"] == title}
        assert own == pytest.approx(shares_of(part.shares), rel=1e-5, abs=1e-12)
    assert sum(row["share"] for row in shown) == pytest.approx(len(known), rel=1e-5)


def test_pairs_hold_both_counts(found):
    chart = draw(DRAWINGS, found, "pairs")
    names = [corpus.name for corpus in found.corpora]
    for i, name in enumerate(ordered(found)):
        shown = {(row["down"], row["across"]): row["heads"]
                 for row in panel_rows(chart, i, "heads")}  # fmt: skip
        assert len(shown) == 6
        for pair in found.tests[name].pairs:
            first, second = sorted((pair.a, pair.b), key=names.index)
            assert shown[first, second] == pair.heads
            assert shown[second, first] == pair.heads_holm


def test_names_of_corpora_are_shown_as_they_are(found):
    for kind in ("layers", "pairs", "domains"):
        written = texts(draw(DRAWINGS, found, kind))
        assert {"one", "$2_{$ & <b>", "$3$"} <= set(written)


def test_a_result_with_too_few_blocks_has_no_charts(found):
    empty = replace(found, blocks=0)
    assert offered(DRAWINGS, empty) == []
    constant = replace(found, variance=dict.fromkeys(found.variance))
    names = [drawing.name for drawing in offered(DRAWINGS, constant)]
    assert names == ["layers", "heads", "explorer", "pairs"]
