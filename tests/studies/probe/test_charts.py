"""Charts of a probe show what was measured."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from esscher.core.errors import InputError
from esscher.show.content import draw
from esscher.studies.probe import charts, probe
from esscher.studies.probe.charts import DRAWINGS, KINDS, METRIC_NAMES
from tests.engine.models.folders import tiny, words
from tests.runs.made import HOSTILE, changed, make, wide_probe
from tests.show.drawn import panel_rows, rows, texts
from tests.studies.probe.sizes import SMALL


@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn_and_names_are_text(result, name, capfd):
    written = " ".join(texts(draw(DRAWINGS, result, name), "single"))
    for word in HOSTILE.replace("\x07", "\ufffd").split():
        assert word in written
    assert capfd.readouterr().err == ""


def test_heatmaps_hold_the_numbers_of_the_table(result):
    table = result.table().set_index(["layer", "head"])
    chart = draw(DRAWINGS, result, "explorer")
    for name in (each["field"] for each in charts.head_maps(False)):
        shown = {(row["layer"], row["head"]): row[name] for row in rows(chart, name)}
        assert shown == pytest.approx(table[name].to_dict(), rel=1e-5)


def of_head(rows_, layer, head):
    return [row for row in rows_ if (row["layer"], row["head"]) == (layer, head)]


@pytest.mark.parametrize(("number", "metric"), list(enumerate(METRIC_NAMES)))
def test_the_explorer_has_the_curves_of_every_head(result, number, metric):
    chart = draw(DRAWINGS, result, "explorer")
    sizes = result.data["size"].values
    for layer, head in ((layer, head) for layer in (0, 2) for head in range(3)):
        data = result.head(layer, head).data.sel(metric=metric)
        scale = float(data["norm"]) ** (2 if metric == "cov" else 1)
        shown = of_head(panel_rows(chart, len(charts.head_maps(False)) + number, "n"), layer, head)
        measured = [row for row in shown if "hollow" in row]
        assert [row["n"] for row in measured] == sizes.tolist()
        for key, bound in (("error", "value"), ("low", "low"), ("high", "high")):
            drawn = [row[key] for row in measured]
            np.testing.assert_allclose(drawn, data["error"].sel(bound=bound) / scale, rtol=1e-5)
        assert {row["hollow"] for row in measured} == {not bool(data["trusted"])}
        beta, constant = (float(data[name][0]) for name in ("exponent", "constant"))
        law = [row["error"] for row in shown if row.get("line") == KINDS.names[0]]
        np.testing.assert_allclose(law, constant * sizes[[0, -1]] ** -beta / scale, rtol=1e-5)
        errors = {row["n"]: row["error"] for row in shown if row.get("line") == KINDS.names[1]}
        np.testing.assert_allclose(
            [errors[n] for n in sizes], data["predicted_error"] / scale, rtol=1e-5
        )
        texts_ = panel_rows(chart, len(charts.head_maps(False)) + number, "text")
        (text,) = of_head(texts_, layer, head)
        assert text["text"].startswith(f"β = {beta:.3f} (")


def test_the_explorer_starts_at_the_head_that_needs_most_tokens(result):
    worst = result.table().sort_values("tokens_10").iloc[-1]
    (param,) = draw(DRAWINGS, result, "explorer").to_dict()["params"]
    assert param["value"] == [{"layer": worst["layer"], "head": worst["head"]}]
    (param,) = draw(DRAWINGS, result, "explorer", heads=[(0, 2)]).to_dict()["params"]
    assert param["value"] == [{"layer": 0, "head": 2}]


def test_too_many_heads_leave_the_curves_that_matter(monkeypatch):
    wide = wide_probe(4, 5)
    monkeypatch.setattr(charts, "KEPT", 7)
    chart = draw(DRAWINGS, wide, "explorer", heads=[(3, 3)])
    kept = {
        (row["layer"], row["head"]) for row in panel_rows(chart, len(charts.head_maps(False)), "n")
    }
    assert len(kept) == 7
    assert (3, 3) in kept
    needed = wide.table().set_index(["layer", "head"])["tokens_10"].to_dict()
    others = [need for place, need in needed.items() if place not in kept]
    assert min(needed[place] for place in kept - {(3, 3)}) >= max(others)
    assert "curves of the 7 of 20 heads that need most tokens" in chart.chart.title.subtitle


def test_heads_that_are_not_there(result):
    with pytest.raises(InputError, match=r"no head 5\.1 .* layers 0, 2 and heads 0 to 2"):
        draw(DRAWINGS, result, "explorer", heads=[(5, 1)])
    with pytest.raises(InputError, match="takes no heads; that is for explorer"):
        draw(DRAWINGS, result, "tokens", heads=[(0, 0)])


def test_predicted_exponents(result):
    table, chart = result.table(), draw(DRAWINGS, result, "predicted")
    written = texts(chart)
    panels = [(m, column) for m, columns in charts.PREDICTORS.items() for column in columns]
    for number, (metric, column) in enumerate(panels):
        shown = panel_rows(chart, number, column, "measured", "name")
        measured = table[f"exponent_{metric}"]
        for key, wanted in (("measured", measured), (column, table[column])):
            assert [row[key] for row in shown] == pytest.approx(list(wanted), rel=1e-5)
        hollow = ~result["trusted"].sel(metric=metric).values.ravel()
        assert [row["hollow"] for row in shown] == hollow.tolist()
        assert f"{np.mean(np.abs(table[column] - measured)):.3f}" in written


def never(data: xr.Dataset) -> xr.Dataset:
    """No number of tokens is enough for the first head."""
    data["tokens"].loc[{"layer": 0, "head": 0, "within": 0.1}] = np.nan
    return data


def test_tokens_are_sorted_with_their_intervals(result):
    table = result.table().sort_values("tokens_10")
    shown = rows(draw(DRAWINGS, result, "tokens"), "tokens", "low")
    for key, column in (("tokens", "tokens_10"), ("low", "tokens_10_low")):
        assert [row[key] for row in shown] == pytest.approx(list(table[column]), rel=1e-5)
    chart = draw(DRAWINGS, changed(result, never), "tokens")
    assert len(rows(chart, "tokens", "low")) == len(table) - 1
    assert "for 1 head no number of tokens is enough" in chart.chart.title.subtitle


def test_heads_together(result):
    chart = draw(DRAWINGS, result, "layers")
    table = result.table("layers").set_index("layer")
    names = {"heads side by side": "side_by_side", "output projection": "projected"}
    drawn = [row for row in rows(chart, "of", "low") if row["of"] in names]
    assert len(drawn) == 4
    for row in drawn:
        assert row["value"] == pytest.approx(
            table.loc[int(row["layer"]), names[row["of"]]], rel=1e-5
        )


def test_what_cannot_be_drawn(result):
    with pytest.raises(InputError, match="no layer has more than one head"):
        draw(DRAWINGS, make("probe-one")[1], "layers")


def test_what_is_predicted_is_called_so():
    """Two heads that were predicted from one pass: columns, titles and exponents."""
    alone = probe(tiny(), [words(1000)], layers=[0], heads=[0, 1], predict=True, **SMALL)
    table = alone.table()
    assert not any(name.startswith("exponent_") for name in table)
    assert table[["predicted_exponent_mean", "predicted_exponent_map_low"]].notna().all(axis=None)
    assert "exponent mean" not in repr(alone)
    chart = draw(DRAWINGS, alone, "explorer")
    assert "predicted from one pass" in " ".join(texts(chart))
    name = "predicted_exponent_mean"
    shown = [row[name] for row in rows(chart, name)]
    assert sorted(shown) == pytest.approx(sorted(table[name]), rel=1e-5)
    assert alone.head(0, 1).plot().to_dict()
