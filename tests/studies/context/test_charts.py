"""Charts of context lengths show what was measured."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.context.charts import CHANGES, DRAWINGS
from tests.show.drawn import panel_rows, texts


@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn(found, name, capfd):
    written = texts(draw(DRAWINGS, found, name))
    assert "undefined" not in written
    for word in found.study.model_record.name.replace("\x07", "\ufffd").split():
        assert word in " ".join(written)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["context", "saturation"])
def test_shares_are_of_heads_that_are_done(found, name):
    chart = draw(DRAWINGS, found, name)
    shown = panel_rows(chart, 0, "line")
    lengths = np.array([head.length or np.inf for head in found.heads])
    early, late = (np.array([head.interval[i] for head in found.heads]) for i in (0, 1))
    for line, inside in (("measured", True), ("extrapolated", False)):
        rows = [row for row in shown if row["line"] == line]
        assert len(rows) > 1
        for row in rows:
            at = row["context"] * 1.00001  # rows have six digits
            assert row["context"] <= 256 if inside else row["context"] >= 256
            assert row["share"] == pytest.approx(np.mean(lengths <= at), abs=1e-5)
            assert row["high"] == pytest.approx(np.mean(early <= at), abs=1e-5)
            assert row["low"] == pytest.approx(np.mean(late <= at), abs=1e-5)
    assert {row["name"]: row["at"] for row in panel_rows(chart, 0, "at")} == {
        "longest context": 256,
        "1 head still changing": pytest.approx(11 / 12, abs=1e-5),
    }


def test_curves_are_what_is_still_to_come(found):
    chart = draw(DRAWINGS, found, "curves", heads=[(0, 1), (1, 1), (1, 3)])
    names = [
        "head 0.1: 52",
        "head 1.1: still changing by 20% at 256",
        "head 1.3: 900 (extrapolated)",
    ]
    assert set(names) <= set(texts(chart))
    shown = panel_rows(chart, 0, "line")
    lines = [
        ("still to come", found.head(0, 1).rest),
        ("change at a doubling", found.head(1, 1).change),  # has no sum
        ("still to come", found.head(1, 3).rest),
    ]
    for name, (line, values) in zip(names, lines, strict=True):
        own = {
            row["context"]: row["rest"]
            for row in shown
            if (row["head"], row["line"]) == (name, line)
        }
        expected = dict(zip(found.lengths, values, strict=False))
        known = {at: value for at, value in own.items() if value is not None}
        assert known == pytest.approx(expected, rel=1e-5)
    extrapolated = [(row["context"], row["rest"]) for row in shown if row["line"] == "extrapolated"]
    assert extrapolated[-1] == (900, 0.1)
    assert extrapolated[0] == (256, pytest.approx(found.head(1, 3).rest[-1], rel=1e-5))
    done = [
        (row["head"], row["context"]) for row in panel_rows(chart, 0, "head") if "line" not in row
    ]
    assert done == [(names[0], 52), (names[2], 900)]


def test_the_explorer_starts_at_an_open_end_and_has_the_curves_of_every_head(found):
    chart = draw(DRAWINGS, found, "explorer")
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [{"layer": 1, "head": 1}]
    assert len(param["views"]) == 3
    for number, column in ((1, "last_change"), (2, "exponent")):
        shown = [row[column] for row in panel_rows(chart, number, column)]
        assert shown == pytest.approx(found.table()[column].tolist())
    change, rest, used = CHANGES.names
    shown = panel_rows(chart, 3, "curve")
    for head in found.heads:
        own = [row for row in shown if (row["layer"], row["head"]) == (head.layer, head.head)]
        values = {
            name: [row["change"] for row in own if row["curve"] == name] for name in CHANGES.names
        }
        assert values[change] == pytest.approx(list(head.change), rel=1e-5)
        if head.length is None:
            assert values[used] == []
            continue
        assert values[rest] == pytest.approx(list(head.rest), rel=1e-5)
        (end,) = [row for row in own if row["curve"] == used]
        assert (end["context"], end["change"]) == (head.length, found.study.tolerance)
        assert (end["low"], end["high"]) == pytest.approx(head.interval, rel=1e-5)
    (param,) = draw(DRAWINGS, found, "explorer", heads=[(2, 3)]).to_dict()["params"]
    assert param["value"] == [{"layer": 2, "head": 3}]


def test_nothing_is_offered_before_a_passage_is_complete(found):
    empty = replace(found, heads=(), complete=False, cells=0)
    assert offered(DRAWINGS, empty) == []
    with pytest.raises(InputError, match="no passage of the run is complete"):
        draw(DRAWINGS, empty)


def test_names_in_the_report_are_text(found, tmp_path):
    text = esscher.report(found, tmp_path / "report.html").read_text("utf-8")
    assert "<b> &" not in text
    assert html.escape("<b> & \\frac", quote=False) in text
