"""Charts of tails show what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from esscher.core.errors import InputError
from esscher.math.tails.verdict import NONE, SUB_GAUSSIAN
from esscher.show.content import draw, offered
from esscher.studies.tails.charts import DRAWINGS
from tests.runs.made import make
from tests.show.drawn import rows


@pytest.fixture(scope="module")
def result():
    return make("tails")[1]


@pytest.fixture(scope="module")
def judged(result):
    """Two layers of ten heads of two kinds, on which the halves agree: single heads are judged."""
    heads = result.data["head"]
    data = xr.concat(
        [result.data.assign_coords(head=heads + 4 * i) for i in range(5)],
        "head",
        data_vars="minimal",
    )
    kinds = np.resize([SUB_GAUSSIAN, NONE], data.sizes["head"])
    data["verdict"] = xr.DataArray(kinds, dims="head").broadcast_like(data["verdict"])
    data["reproducible"] = xr.ones_like(data["reproducible"])
    return replace(result, data=data)


@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn(judged, name, capfd):
    assert draw(DRAWINGS, judged, name)._repr_svg_().startswith("<svg")
    assert capfd.readouterr().err == ""


def test_verdicts_are_drawn_only_where_they_are_given(result, judged):
    table = judged.table().set_index(["layer", "head"])
    words = [table[name].to_dict() for name in ("verdict", "with_delimiters")]
    shown = rows(draw(DRAWINGS, judged), "word")
    assert shown
    for row in shown:
        assert row["word"] in [column[row["layer"], row["head"]] for column in words]
    assert not rows(draw(DRAWINGS, result), "word")
    with pytest.raises(InputError, match="verdicts on single heads are not given"):
        draw(DRAWINGS, result, "verdicts")


def test_curves_hold_the_fits_of_the_heads_asked_for(result):
    shown = rows(draw(DRAWINGS, result, "curves", heads=[(1, 3)]), "tau")
    tau = result.head(1, 3)["fit_tau"].sel(subset="text", part="both", bound="value")
    known = tau.values[~np.isnan(tau.values)]
    drawn = [row["tau"] for row in shown if "low" in row][: len(known)]
    assert drawn == pytest.approx(known, rel=1e-5)
    assert {(row["layer"], row["head"]) for row in shown} == {(1, 3)}


def test_the_explorer_starts_at_the_head_of_largest_kurtosis(result):
    frame = result.table()
    worst = frame.loc[frame["kurtosis"].idxmax()]
    (param,) = draw(DRAWINGS, result, "explorer").to_dict()["params"]
    assert param["value"] == [{"layer": worst["layer"], "head": worst["head"]}]
    (param,) = draw(DRAWINGS, result, "explorer", heads=[(0, 3)]).to_dict()["params"]
    assert param["value"] == [{"layer": 0, "head": 3}]
    assert len(param["views"]) == 5


def test_layers_only_if_they_were_measured(result):
    shown = rows(draw(DRAWINGS, result, "layers"), "value")
    assert {row["layer"] for row in shown} == set(result.table("layers")["layer"])
    unknown = result.data["hidden_tokens"] * np.nan
    without = replace(result, data=result.data.assign(hidden_tokens=unknown))
    assert "layers" not in [drawing.name for drawing in offered(DRAWINGS, without)]
    with pytest.raises(InputError, match="the tokens of whole layers were not measured"):
        draw(DRAWINGS, without, "layers")


def test_heads_that_were_not_measured_are_refused(result):
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        draw(DRAWINGS, result, "curves", heads=[(7, 7)])
