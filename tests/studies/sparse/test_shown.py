"""Charts and the page of sparse patterns show what was measured."""

from __future__ import annotations

import html

import pytest

import esscher
from esscher.core.errors import InputError
from esscher.engine.sampled.sizes import METRICS
from esscher.show.content import draw, offered
from esscher.studies.sparse.charts import DRAWINGS, best_pattern
from esscher.studies.sparse.charts import METRICS as TITLES
from esscher.studies.sparse.view import summary
from tests.runs.made import make
from tests.show.drawn import panel_rows, texts


def test_a_model_has_heads_and_a_law_has_none(capfd):
    law, model = make("sparse-law")[1], make("sparse")[1]
    assert [drawing.name for drawing in offered(DRAWINGS, law)] == ["patterns"]
    assert [drawing.name for drawing in offered(DRAWINGS, model)] == ["patterns", "explorer"]
    with pytest.raises(InputError, match="tokens of a law have no heads"):
        draw(DRAWINGS, law, "explorer")
    assert "undefined" not in texts(draw(DRAWINGS, law))
    assert capfd.readouterr().err == ""


def test_the_main_chart_holds_errors_and_exponents_with_their_intervals():
    result = make("sparse-law")[1]
    spec = draw(DRAWINGS, result).to_dict()
    rows = [row for data in spec["datasets"].values() for row in data]
    for name, pattern in result.patterns.items():
        curve = pattern.curve.map
        errors = [r for r in rows if r.get("pattern") == name and "budget" in r and "high" in r]
        for budget, mean, (_, high) in zip(result.budgets, curve.mean, curve.interval, strict=True):
            shown = [(row["error"], row["high"]) for row in errors if row["budget"] == budget]
            assert pytest.approx((mean, high), rel=1e-5) in shown
        label = name if name == "random" else f"{name}: {pattern.verdict}"
        for metric in METRICS:
            fit, title = pattern.fit[metric], TITLES[metric]
            row = next(r for r in rows if r.get("pattern") == label and r.get("metric") == title)
            assert [row[key] for key in ("low", "exponent", "high")] == pytest.approx(
                [fit.interval[0], fit.exponent, fit.interval[1]], rel=1e-5
            )
            assert row["hollow"] == (not fit.trusted or fit.law != "power")


def test_the_explorer_shows_every_head():
    result = make("sparse")[1]
    chart = draw(DRAWINGS, result, "explorer")
    assert "undefined" not in texts(chart)
    table = result.heads_table().set_index(["pattern", "layer", "head"])
    for i, name in enumerate(result.patterns):
        field = f"{name} error"
        shown = {(row["layer"], row["head"]): row[field] for row in panel_rows(chart, i + 1, field)}
        assert shown == pytest.approx(table.loc[name]["last_error"].to_dict(), rel=1e-5)
    words = panel_rows(chart, len(result.patterns) + 1, "word")
    assert {(row["layer"], row["head"]): row["word"] for row in words} == {
        (unit.layer, unit.head): best_pattern(unit) for unit in result.heads
    }
    worst = max(result.heads, key=lambda unit: unit.patterns["random"].error[-1])
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [{"layer": worst.layer, "head": worst.head}]
    shown = panel_rows(chart, len(result.patterns) + 2, "pattern", "error")
    for unit in result.heads:
        for name, pattern in unit.patterns.items():
            place = (unit.layer, unit.head, name)
            errors = [
                row["error"]
                for row in shown
                if (row["layer"], row["head"], row["pattern"]) == place
            ]
            assert errors == pytest.approx(list(pattern.error), rel=1e-5)
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        draw(DRAWINGS, result, "explorer", heads=[(7, 7)])


@pytest.mark.parametrize("name", ["sparse", "sparse-law"])
def test_the_page_holds_the_numbers(name, tmp_path):
    result = make(name)[1]
    page = summary(result, "run")
    base = result.patterns["random"].fit.map
    assert page.cards[0].value == f"{base.exponent:.3f}"
    last = {n: pattern.curve.map.mean[-1] for n, pattern in result.patterns.items()}
    assert page.cards[1].value == min(last, key=last.get)
    data = page.tables[0].data
    assert data["pattern"] == list(result.patterns)
    for i, pattern in enumerate(result.patterns.values()):
        assert data["verdict"][i] == pattern.verdict
        numbers = [data[key][i] for key in ("low", "exponent", "high")]
        low, high = pattern.fit.map.interval
        assert numbers == pytest.approx([low, pattern.fit.map.exponent, high], rel=1e-5)
    assert len(page.tables) == (2 if result.heads else 1)
    text = esscher.report(result, tmp_path / "report.html").read_text("utf-8")
    assert "<b> &" not in text
    assert (html.escape("<b> & \\frac", quote=False) in text) == (name == "sparse")
