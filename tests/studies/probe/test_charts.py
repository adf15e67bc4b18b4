"""Charts of a probe show what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.probe import charts, probe
from esscher.studies.probe.charts import DRAWINGS, FITTED, PREDICTED
from esscher.studies.probe.result import METRIC_NAMES
from tests.engine.models.folders import tiny, words
from tests.runs.made import HOSTILE, changed, make, wide_probe
from tests.show.drawn import panel_rows, rows, texts, unpacked
from tests.studies.probe.sizes import SMALL


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn_and_names_are_text(found, name, width, capfd):
    written = " ".join(texts(draw(DRAWINGS, found, name), width))
    for word in HOSTILE.replace("\x07", "\ufffd").split():
        assert word in written
    assert capfd.readouterr().err == ""


NUMBERS = {
    "heads": charts.MAIN,
    "explorer": charts.FIRST,
    "numbers": [name for row in charts.OTHERS for name in row],
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_heatmaps_hold_the_numbers_of_the_table(found, kind):
    table = found.table().set_index(["layer", "head"])
    table["lost"] = table["sinks"] + table["delimiters"]
    chart = draw(DRAWINGS, found, kind)
    for name in NUMBERS[kind]:
        if table[name].notna().any():
            shown = {(row["layer"], row["head"]): row[name] for row in rows(chart, name)}
            assert shown == pytest.approx(table[name].to_dict(), rel=1e-5)


def of_head(rows_, head):
    return [row for row in rows_ if (row["layer"], row["head"]) == (head.layer, head.head)]


@pytest.mark.parametrize(("number", "metric"), list(enumerate(METRIC_NAMES)))
def test_the_explorer_has_the_curves_of_every_head(found, number, metric):
    panel = len(charts.FIRST) + number
    chart = draw(DRAWINGS, found, "explorer")
    for head in found.heads:
        fit, scale = head.fit[metric], head.norm ** (2 if metric == "cov" else 1)
        shown = of_head(panel_rows(chart, panel, "n"), head)
        measured = [row for row in shown if "hollow" in row]
        assert [row["n"] for row in measured] == list(found.sizes)
        for key, values in (("error", fit.mean), ("low", fit.lower), ("high", fit.upper)):
            drawn = [row[key] for row in measured]
            np.testing.assert_allclose(drawn, np.array(values) / scale, rtol=1e-5)
        assert {row["hollow"] for row in measured} == {not fit.trusted}
        ends = np.array([found.sizes[0], found.sizes[-1]])
        law = [row["error"] for row in shown if row.get("line") == FITTED]
        np.testing.assert_allclose(law, fit.constant * ends**-fit.exponent / scale, rtol=1e-5)
        errors = {row["n"]: row["error"] for row in shown if row.get("line") == PREDICTED}
        wanted = np.array(head.predicted_error[metric].error) / scale
        np.testing.assert_allclose([errors[n] for n in found.sizes], wanted, rtol=1e-5)
        (text,) = of_head(panel_rows(chart, panel, "text"), head)
        assert text["text"].startswith(f"β = {fit.exponent:.3f} (")


def test_the_explorer_starts_at_the_head_that_needs_most_tokens(found):
    worst = max(found.heads, key=lambda head: head.tokens_for["0.1"] or np.inf)
    (param,) = draw(DRAWINGS, found, "explorer").to_dict()["params"]
    assert param["value"] == [{"layer": worst.layer, "head": worst.head}]
    (param,) = draw(DRAWINGS, found, "explorer", heads=[(0, 2)]).to_dict()["params"]
    assert param["value"] == [{"layer": 0, "head": 2}]


def test_too_many_heads_leave_the_curves_that_matter(monkeypatch):
    probe = wide_probe(4, 5)
    monkeypatch.setattr(charts, "KEPT", 7)
    chart = draw(DRAWINGS, probe, "explorer", heads=[(3, 3)])
    kept = {(row["layer"], row["head"]) for row in panel_rows(chart, len(charts.FIRST), "n")}
    assert len(kept) == 7
    assert (3, 3) in kept
    needed = {(h.layer, h.head): h.tokens_for["0.1"] or np.inf for h in probe.heads}
    others = [need for place, need in needed.items() if place not in kept]
    assert min(needed[place] for place in kept - {(3, 3)}) >= max(others)
    assert "curves of the 7 of 20 heads that need most tokens" in chart.chart.title.subtitle


def test_curves_of_chosen_heads(found):
    chart = draw(DRAWINGS, found, "curves", heads=[(2, 1), (0, 2)])
    for number, place in enumerate(((2, 1), (0, 2))):
        head = found.head(*place)
        shown = panel_rows(chart, number, "hollow")
        for metric, name in METRIC_NAMES.items():
            errors = [row["error"] for row in shown if row["metric"] == name]
            scale = head.norm ** (2 if metric == "cov" else 1)
            np.testing.assert_allclose(errors, np.array(head.fit[metric].mean) / scale, rtol=1e-5)
    with pytest.raises(InputError, match=r"no head 5\.1 .* layers 0, 2 and heads 0 to 2"):
        draw(DRAWINGS, found, "curves", heads=[(5, 1)])
    with pytest.raises(InputError, match="takes no heads; that is for explorer, curves"):
        draw(DRAWINGS, found, "heads", heads=[(0, 0)])


def test_predicted_exponents(found):
    table, chart = found.table(), draw(DRAWINGS, found, "predicted")
    written = texts(chart)
    panels = [(m, column) for m, columns in charts.PREDICTORS.items() for column in columns]
    assert len(panels) == 8
    for number, (metric, column) in enumerate(panels):
        shown = panel_rows(chart, number, column, "measured", "name")
        for key, wanted in (("measured", table[metric]), (column, table[column])):
            assert [row[key] for row in shown] == pytest.approx(list(wanted), rel=1e-5)
        hollow = [not head.fit[metric].trusted for head in found.heads]
        assert [row["hollow"] for row in shown] == hollow
        assert f"{np.mean(np.abs(table[column] - table[metric])):.3f}" in written


def test_tokens_are_sorted_with_their_intervals(found):
    table = found.table().sort_values("tokens_10")
    shown = rows(draw(DRAWINGS, found, "tokens"), "tokens", "low")
    for key, column in (("tokens", "tokens_10"), ("low", "tokens_10_low")):
        assert [row[key] for row in shown] == pytest.approx(list(table[column]), rel=1e-5)

    def never(results):
        results["heads"][0]["tokens_for"]["0.1"] = None
        results["heads"][0]["tokens_for_interval"]["0.1"] = [None, None]

    chart = draw(DRAWINGS, changed(found, never), "tokens")
    assert len(rows(chart, "tokens", "low")) == len(found.heads) - 1
    assert "for 1 head no number of tokens is enough" in chart.chart.title.subtitle


def test_heads_together(found):
    chart = draw(DRAWINGS, found, "layers")
    layer, spec = found.layers[0], chart.to_dict()
    shown = unpacked(spec["datasets"][spec["vconcat"][0]["concat"][0]["data"]["name"]])
    assert len(shown) == 6
    for row in shown:
        i, j = (layer.heads.index(row[key]) for key in ("head", "other"))
        errors = layer.heads_together["mean" if i < j else "magnitudes"]
        assert row["correlation"] == pytest.approx(errors.correlation[i][j], rel=1e-5)
    table = found.layers_table().set_index("layer")
    for row in rows(chart, "of", "low"):
        columns = [
            measured[row["of"]] for _, measured, *_ in charts.BY_LAYER if row["of"] in measured
        ]
        values = [table.loc[int(row["layer"]), column] for column in columns]
        assert any(row["value"] == pytest.approx(value, rel=1e-5) for value in values)


def test_what_cannot_be_drawn(found):
    with pytest.raises(InputError, match="no layer has more than one head"):
        draw(DRAWINGS, make("probe-one")[1], "layers")
    empty = replace(found, heads=(), layers=())
    assert offered(DRAWINGS, empty) == []
    with pytest.raises(InputError, match="no part of the run is complete"):
        draw(DRAWINGS, empty)


def test_what_is_predicted_is_called_so():
    """Two heads that were predicted from one pass: columns, titles and exponents."""
    alone = probe(tiny(), [words(1000)], layers=[0], heads=[0, 1], predict=True, **SMALL)
    table = alone.table()
    assert table[["mean", "mean_low", "cov", "map", "map_high"]].isna().all(axis=None)
    assert table[["predicted_mean", "predicted_mean_low", "predicted_map"]].notna().all(axis=None)
    for kind in ("heads", "explorer", "numbers"):
        assert "replicates" not in " ".join(texts(draw(DRAWINGS, alone, kind), "double")), kind
    shown = [
        row["predicted_mean"] for row in rows(draw(DRAWINGS, alone, "heads"), "predicted_mean")
    ]
    assert shown == pytest.approx(list(table["predicted_mean"]), rel=1e-5)
