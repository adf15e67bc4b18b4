"""Tables, charts and the page of a plan show what was planned and what was measured."""

from __future__ import annotations

import html

import numpy as np
import pytest

import esscher
from esscher.cli.study import print_result
from esscher.core.errors import InputError
from esscher.studies.plan.charts import ERRORS, MEASURES
from esscher.studies.plan.view import NAMES
from tests.show.drawn import panel_rows, texts
from tests.studies.plan.small import DECODER, prose, tiny


@pytest.fixture(scope="module")
def unchecked():
    return esscher.plan(tiny(), prose(1), **DECODER)


def test_every_chart_is_drawn(small_plan, asked, capfd):
    names = set(small_plan.charts())
    assert set(asked.charts()) == names | {"tasks"}
    for name in names:
        written = texts(small_plan.plot(name))
        assert "undefined" not in written
        for word in small_plan.setup.model.name.replace("\x07", "\ufffd").split():
            assert word in " ".join(written)
    with pytest.raises(InputError, match=r"no chart 'tasks' .* no questions were asked"):
        small_plan.plot("tasks")
    assert capfd.readouterr().err == ""


def test_without_a_check_there_are_budgets(unchecked, capsys):
    assert list(unchecked.charts()) == ["plan", "budgets", "explorer"]
    for name in unchecked.charts():
        assert texts(unchecked.plot(name))
    with pytest.raises(InputError, match="no chart 'cost' of this result: the plan was not"):
        unchecked.plot("cost")
    assert unchecked.verdict is None
    assert unchecked.best == ()
    assert "realised_error" not in unchecked.table()
    assert "Not checked: give held-out text with --check." in unchecked.headline
    print_result(unchecked)
    output = capsys.readouterr().out
    assert "All key heads" in output
    assert "held-out text\n" not in output


def test_costs_are_what_was_measured(small_plan):
    chart, frame = small_plan.plot("cost"), small_plan.table("check").set_index("configuration")
    assert len(chart.to_dict()["concat"]) == len(MEASURES)
    written = texts(chart)
    for number, (title, measure) in enumerate(MEASURES.items()):
        assert title in written
        shown = {row["configuration"]: row for row in panel_rows(chart, number, "value")}
        assert set(shown) == {NAMES[name] for name in frame.index}
        for name, values in frame.iterrows():
            row = shown[NAMES[name]]
            ends = [values[measure + end] for end in ("", "_low", "_high")]
            assert [row["value"], row["low"], row["high"]] == pytest.approx(ends, rel=1e-5)


def test_calibration_compares_every_head(small_plan):
    chart = small_plan.plot("calibration")
    shown = {
        row["name"]: (row["predicted"], row["realised"]) for row in panel_rows(chart, 0, "name")
    }
    predicted, realised = (
        small_plan[name].sel(bound="value").values.reshape(3, 4)
        for name in ("predicted_error", "realised_error")
    )
    for layer, head in np.ndindex(3, 4):
        pair = predicted[layer, head], realised[layer, head]
        if min(pair) > 0:
            assert shown.pop(f"layer {layer}, head {head}") == pytest.approx(pair, rel=1e-5)
    assert not shown
    share = float(small_plan["within_factor"])
    assert f"heads: {share:.0%} within a factor of 1.5 (grey)" in texts(chart)


def test_the_explorer_has_the_query_heads_of_every_key_head(small_plan):
    chart, table = small_plan.plot("explorer"), small_plan.table()
    worst = table.loc[table["predicted_error"].idxmax()]
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [{"layer": worst["layer"], "key_head": worst["key_head"]}]
    assert len(param["views"]) == 4
    rows = panel_rows(chart, 4, "query")
    assert {row["error"] for row in rows} == set(ERRORS.names)
    assert len(rows) == 2 * 3 * 2 * 2
    chart = small_plan.plot("explorer", heads=[(1, 1)])
    assert chart.to_dict()["params"][0]["value"] == [{"layer": 1, "key_head": 1}]
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        small_plan.plot("explorer", heads=[(7, 7)])


def test_a_key_head_has_curves(small_plan):
    head = small_plan.head(1, 1)
    assert repr(head).startswith(f"head 1.1: tokens {small_plan.plan.budgets[1][1]}; share ")
    curves = head.curves()
    assert list(curves) == ["budget", "budget_effect", "budget_error"]
    assert curves["budget"].iloc[-1] == 120
    # all tokens cost nothing but what rounding them does
    assert 0 <= curves["budget_effect"].iloc[-1] < 1e-3 * curves["budget_effect"].iloc[0]
    assert np.all(np.diff(curves["budget_error"]) < 1e-9)
    assert head.plot().to_dict()["params"][0]["value"] == [{"layer": 1, "key_head": 1}]


def test_answers_are_printed_and_drawn(asked, capsys):
    print_result(asked)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    dense = [row for row in rows if row[:1] == ["dense"]]
    assert ["dense", *["dense", "cannot"] * 3] in dense
    answered = asked["log_probability"].sel(task="values", configuration="adakv")
    cell = f"({answered.values[0]:.2f})"
    assert any(row[:1] == ["adakv"] and cell in row for row in rows)
    chart = asked.plot("tasks")
    assert {"needle: dense cannot", "values: dense cannot"} <= set(texts(chart))
    for number, (_, scores) in enumerate(asked.table("tasks").groupby("task", sort=False)):
        if number < 2:  # all of them is no panel
            shown = {row["label"]: row for row in panel_rows(chart, number, "value")}
            for row in scores.to_dict("records"):
                bar = shown.pop(f"{NAMES[row['configuration']]}: {row['score']:.0%}")
                assert bar["high"] == pytest.approx(row["score_high"], abs=1e-5)
            assert not shown


def test_two_plans_are_compared(small_plan, unchecked):
    both = small_plan.compare(unchecked)
    assert set(both.table["variable"]) == {"predicted_error"}
    assert len(both.table) == 6
    assert len(both.different) == 0


def test_names_in_the_report_are_text(small_plan, tmp_path):
    text = esscher.report(small_plan, tmp_path / "report.html").read_text("utf-8")
    assert "<b> &" not in text
    assert html.escape("<b> & \\frac", quote=False) in text
