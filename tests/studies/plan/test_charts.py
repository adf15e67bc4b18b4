"""Charts of a plan show what was planned and what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.plan.charts import (
    BANDED,
    DRAWINGS,
    ERRORS,
    KEY_HEAD,
    MEASURES,
)
from esscher.studies.plan.view import name_of
from tests.show.drawn import panel_rows, texts

UNCHECKED = ["plan", "budgets", "explorer"]


@pytest.mark.parametrize("name", [one.name for one in DRAWINGS if one.name != "tasks"])
def test_every_chart_is_drawn(found, name, capfd):
    written = texts(draw(DRAWINGS, found, name))
    assert "undefined" not in written
    for word in found.model.name.replace("\x07", "\ufffd").split():
        assert word in " ".join(written)
    assert capfd.readouterr().err == ""


def test_without_a_check_there_are_budgets(found, capfd):
    unchecked = replace(found, check=None)
    assert [one.name for one in offered(DRAWINGS, unchecked)] == UNCHECKED
    for name in UNCHECKED:
        assert texts(draw(DRAWINGS, unchecked, name))
    with pytest.raises(InputError, match="no chart 'cost' of this result: the plan was not"):
        draw(DRAWINGS, unchecked, "cost")
    assert capfd.readouterr().err == ""


def test_costs_are_what_was_measured(found):
    chart, check = draw(DRAWINGS, found, "cost"), found.check
    assert len(chart.to_dict()["concat"]) == len(MEASURES)
    written = texts(chart)
    for number, (title, measure) in enumerate(MEASURES.items()):
        assert title in written
        shown = {row["configuration"]: row for row in panel_rows(chart, number, "value")}
        assert set(shown) == {name_of(name) for name in check.configurations}
        for name, measures in check.configurations.items():
            row, value = shown[name_of(name)], getattr(measures, measure)
            assert row["value"] == pytest.approx(value.mean, rel=1e-5)
            assert (row["low"], row["high"]) == pytest.approx(value.interval, rel=1e-5, abs=1e-9)
            assert f"{name_of(name)}: {value.mean:.3g}" in written


def test_errors_by_layer(found):
    shown = panel_rows(draw(DRAWINGS, found, "layers"), 0, "layer")
    for name, measures in found.check.configurations.items():
        own = [row for row in shown if row["configuration"] == name_of(name)]
        means = {row["layer"]: row["error"] for row in own}
        errors = dict(enumerate(measures.layer_error))
        expected = {i: error.mean for i, error in errors.items()}
        assert means == pytest.approx(expected, rel=1e-5)
        high = {row["layer"]: row["high"] for row in own if "high" in row}
        expected = {i: error.interval[1] for i, error in errors.items()}
        assert high == (pytest.approx(expected, rel=1e-5) if name in BANDED else {})


def test_calibration_compares_every_head(found):
    chart, heads = draw(DRAWINGS, found, "calibration"), found.check.heads
    shown = {
        row["name"]: (row["predicted"], row["realised"]) for row in panel_rows(chart, 0, "name")
    }
    for layer, head in np.ndindex(np.shape(heads.predicted)):
        pair = heads.predicted[layer][head], heads.realised[layer][head]
        if min(pair) > 0:
            assert shown.pop(f"layer {layer}, head {head}") == pytest.approx(pair, rel=1e-5)
    assert not shown
    within = f"heads: {heads.within_factor:.0%} within a factor of {heads.factor:g} (grey)"
    assert within in texts(chart)


def test_the_explorer_has_the_query_heads_of_every_key_head(found):
    chart, table = draw(DRAWINGS, found, "explorer"), found.table()
    worst = table.loc[table["predicted_error"].idxmax()]
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [{"layer": worst["layer"], KEY_HEAD: worst["key_head"]}]
    assert len(param["views"]) == 4
    for number, column in enumerate(("tokens", "ratio", "predicted_error")):
        shown = {
            (row["layer"], row[KEY_HEAD]): row[column] or 0.0
            for row in panel_rows(chart, number, column)
        }
        expected = table.set_index(["layer", "key_head"])[column].to_dict()
        assert shown == pytest.approx(expected, rel=1e-5)
    errors = dict(
        zip(ERRORS.names, (found.predicted.head_error, found.check.heads.realised), strict=True)
    )
    group = found.model.heads // found.model.key_heads
    shown = panel_rows(chart, 4, "query")
    assert len(shown) == 2 * found.model.layers * found.model.heads
    for row in shown:
        head = row[KEY_HEAD] * group + int(row["query"])
        assert row["value"] == pytest.approx(errors[row["error"]][row["layer"]][head], rel=1e-5)
    (param,) = draw(DRAWINGS, found, "explorer", heads=[(1, 0)]).to_dict()["params"]
    assert param["value"] == [{"layer": 1, KEY_HEAD: 0}]
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        draw(DRAWINGS, found, "explorer", heads=[(7, 7)])


def test_one_passage_has_no_intervals_and_errors_may_be_zero(found, capfd):
    check, none = found.check, tuple((0.0,) * found.model.heads for _ in found.budgets)

    def alone(mean):
        return structs.replace(mean, interval=None)

    measures = {
        name: structs.replace(own, kl=alone(own.kl), layer_error=tuple(map(alone, own.layer_error)))
        for name, own in check.measures.items()
    }
    heads = structs.replace(check.heads, predicted=none, realised=none, within_factor=None)
    changed = structs.replace(check, measures=measures, heads=heads)
    predicted = structs.replace(found.predicted, head_error=none)
    alone_ = replace(found, check=changed, predicted=predicted)
    for drawing in offered(DRAWINGS, alone_):
        assert texts(draw(DRAWINGS, alone_, drawing.name))
    assert capfd.readouterr().err == ""


def test_answers_to_questions_are_drawn_by_task(asked, found, capfd):
    chart = draw(DRAWINGS, asked, "tasks")
    written = texts(chart)
    assert "undefined" not in written
    assert {"needle: dense cannot", "values: dense cannot"} <= set(written)
    for number, scores in enumerate(asked.check.tasks.values()):
        shown = {row["label"]: row for row in panel_rows(chart, number, "value")}
        assert len(shown) == len(scores)
        for name, score in scores.items():
            called = "dense" if name == "dense" else name_of(name)
            row = shown[f"{called}: {score.score:.0%}"]
            assert (row["low"], row["high"]) == pytest.approx(score.interval, abs=1e-5)
    with pytest.raises(InputError, match=r"no chart 'tasks' .* no questions were asked"):
        draw(DRAWINGS, found, "tasks")
    assert capfd.readouterr().err == ""
