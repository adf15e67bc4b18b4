"""Charts of sparse patterns show what was measured."""

from __future__ import annotations

import pytest

from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.sparse.charts import DRAWINGS
from tests.runs.made import make
from tests.show.drawn import panel_rows, rows


def test_a_model_has_heads_and_a_law_has_none():
    law, model = make("sparse-law")[1], make("sparse")[1]
    assert [drawing.name for drawing in offered(DRAWINGS, law)] == ["patterns"]
    assert [drawing.name for drawing in offered(DRAWINGS, model)] == ["patterns", "explorer"]
    with pytest.raises(InputError, match="tokens of a law have no heads"):
        draw(DRAWINGS, law, "explorer")
    assert list(law.tables()) == ["patterns", "curves"]
    with pytest.raises(InputError, match="there is no table 'heads'"):
        law.table("heads")


def test_the_main_chart_holds_errors_and_exponents_with_their_intervals():
    result = make("sparse-law")[1]
    chart = draw(DRAWINGS, result)
    drawn = [row for row in rows(chart, "budget") if row.get("metric") == "map"]
    table = result.table("curves")
    for row, shown in zip(table[table["metric"] == "map"].itertuples(), drawn, strict=True):
        assert (shown["pattern"], shown["budget"]) == (row.pattern, row.budget)
        numbers = [shown["error"], shown["high"]]
        assert numbers == pytest.approx([row.error, row.error_high], rel=1e-5)
    fits = {row["pattern"]: row for row in rows(chart, "hollow") if row["metric"] == "map"}
    for row in result.table().itertuples():
        fit = fits[row.pattern if row.pattern == "random" else f"{row.pattern}: {row.verdict}"]
        assert [fit[key] for key in ("low", "exponent", "high")] == pytest.approx(
            [row.exponent_low, row.exponent, row.exponent_high], rel=1e-5
        )
        assert fit["hollow"] == (not row.trusted or row.law != "power")


def test_the_explorer_shows_every_head():
    result = make("sparse")[1]
    chart = draw(DRAWINGS, result, "explorer")
    table = result.table("heads").set_index(["layer", "head"])
    for i, field in enumerate(("exponent_random", "error_random")):
        shown = {(row["layer"], row["head"]): row[field] for row in panel_rows(chart, i, field)}
        assert shown == pytest.approx(table[field].to_dict(), rel=1e-5)
    words = panel_rows(chart, 2, "letter")
    assert {(row["layer"], row["head"]): row["best"] for row in words} == table["best"].to_dict()
    worst = table["error_random"].idxmax()
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [dict(zip(("layer", "head"), worst, strict=True))]
    for layer, head in table.index:
        errors = result.head(layer, head)["head_error"].values.ravel()
        drawn = [
            row["head_error"]
            for row in panel_rows(chart, 3, "pattern", "head_error")
            if (row["layer"], row["head"]) == (layer, head)
        ]
        assert drawn == pytest.approx(list(errors), rel=1e-5)
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        draw(DRAWINGS, result, "explorer", heads=[(7, 7)])
