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
from tests.show.drawn import panel_rows, rows


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


def test_verdicts_are_drawn_only_where_they_are_given(result, judged):
    table = judged.table().set_index(["layer", "head"])
    for name in ("verdict", "with_delimiters"):
        shown = rows(draw(DRAWINGS, judged), name)
        assert {(row["layer"], row["head"]): row[name] for row in shown} == table[name].to_dict()
        assert not rows(draw(DRAWINGS, result), name)


def test_the_explorer_starts_at_the_head_of_largest_kurtosis_and_has_the_fits_of_all(result):
    frame, chart = result.table(), draw(DRAWINGS, result)
    worst = frame.loc[frame["kurtosis"].idxmax()]
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [{"layer": worst["layer"], "head": worst["head"]}]
    assert len(param["views"]) == 5
    (param,) = draw(DRAWINGS, result, heads=[(0, 3)]).to_dict()["params"]
    assert param["value"] == [{"layer": 0, "head": 3}]
    tau = result.head(1, 3)["fit_tau"].sel(subset="text", part="both", bound="value")
    shown = [r["fit_tau"] for r in panel_rows(chart, 5, "low") if (r["layer"], r["head"]) == (1, 3)]
    assert shown == pytest.approx(tau.values[~np.isnan(tau.values)], rel=1e-5)
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        draw(DRAWINGS, result, heads=[(7, 7)])


def test_layers_only_if_they_were_measured(result):
    shown = rows(draw(DRAWINGS, result, "layers"), "low")
    assert {row["layer"] for row in shown} == set(result.table("layers")["layer"])
    unknown = result.data["hidden_tokens"] * np.nan
    without = replace(result, data=result.data.assign(hidden_tokens=unknown))
    assert "layers" not in [drawing.name for drawing in offered(DRAWINGS, without)]
    with pytest.raises(InputError, match="the tokens of whole layers were not measured"):
        draw(DRAWINGS, without, "layers")
