"""Charts of context lengths show what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.show.content import draw
from esscher.studies.context.charts import CURVE, DRAWINGS
from tests.show.drawn import panel_rows


def known(array):
    """Numbers of a variable without those that are not there."""
    return [x for x in array.values.tolist() if x == x]


def test_shares_are_of_heads_that_are_done(result):
    chart = draw(DRAWINGS, result, "saturation")
    shown = panel_rows(chart, 0, "line")
    ends = result["length"].fillna(np.inf)
    for line, inside in (("measured", True), ("extrapolated", False)):
        rows = [row for row in shown if row["line"] == line]
        assert len(rows) > 1
        for row in rows:
            at = row["context"] * 1.00001  # rows have six digits
            measured = result.setup.settings.context
            assert row["context"] <= measured if inside else row["context"] >= measured
            for field, bound in (("share", "value"), ("high", "low"), ("low", "high")):
                expected = float((ends.sel(bound=bound) <= at).mean())
                assert row[field] == pytest.approx(expected, abs=1e-5)


def test_the_explorer_starts_at_an_open_end_and_has_the_curves_of_every_head(result):
    chart = draw(DRAWINGS, result, "explorer")
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [{"layer": 1, "head": 1}]
    assert len(param["views"]) == 3
    for number, column in ((1, "last_change"), (2, "exponent")):
        shown = {(r["layer"], r["head"]): r[column] for r in panel_rows(chart, number, column)}
        expected = result.table().set_index(["layer", "head"])[column].to_dict()
        assert shown == pytest.approx(expected, rel=1e-5)
    shown = panel_rows(chart, 3, "curve")
    for layer, head in np.ndindex(3, 4):
        rows = [row for row in shown if (row["layer"], row["head"]) == (layer, head)]
        data = result.head(layer, head)
        for variable in CURVE[:2]:
            values = [row["value"] for row in rows if row["curve"] == variable.heading]
            assert values == pytest.approx(known(data[variable.name]), rel=1e-5)
        ends = [row for row in rows if row["curve"] == CURVE[2].heading]
        if (layer, head) == (1, 1):
            assert ends == []
            continue
        (end,) = ends
        assert end["value"] == 0.1
        assert [end["context"], end["low"], end["high"]] == pytest.approx(
            known(data["length"]), rel=1e-5
        )
    (param,) = draw(DRAWINGS, result, "explorer", heads=[(2, 3)]).to_dict()["params"]
    assert param["value"] == [{"layer": 2, "head": 3}]


def test_nothing_is_offered_before_a_passage_is_complete(result):
    empty = replace(result, data=result.data.drop_vars("length").assign_attrs(cells="[]"))
    assert empty.charts() == {}
    with pytest.raises(InputError, match="there is no chart yet: Nothing has been measured yet"):
        empty.plot()
