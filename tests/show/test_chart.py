"""Blocks of charts: what of the rows is drawn, and how."""

from __future__ import annotations

import re
import warnings

import pytest
import vl_convert

from esscher.core.errors import InputError
from esscher.show.cells import heatmap, picking
from esscher.show.chart import (
    Axis,
    Series,
    figure,
    panel,
    points,
    words,
)
from esscher.show.content import Drawing, chart_bytes, check_heads, draw
from esscher.show.theme import (
    DOUBLE,
    GROUND,
    SHADES,
    layout,
)
from tests.show.sample_charts import SAMPLES, curves, explorer


def texts(chart):
    """Everything that is written in a chart."""
    svg = chart_bytes(chart, ".svg").decode()
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def marks(chart, kind):
    """Elements of marks of a kind: lists of their attributes."""
    svg = chart_bytes(chart, ".svg").decode()
    groups = re.findall(rf'<g class="mark-{kind} role-mark [^>]*>(.*?)</g>', svg)
    return [
        re.findall(r'([a-z-]+)="([^"]*)"', one)
        for group in groups
        for one in re.findall(r"<(?:path|line|text) [^>]*>", group)
    ]


@pytest.mark.parametrize("make", SAMPLES.values())
def test_samples_are_valid_and_compile_without_a_warning(make, capfd):
    spec = make().to_dict(validate=True)
    vl_convert.vegalite_to_svg(layout(spec, DOUBLE), show_warnings=True)
    assert capfd.readouterr().err == ""


def test_ticks_are_plain_digits_up_to_a_million():
    rows = [{"n": n, "error": 1.0} for n in (0.0001, 1e7)]
    x = Axis("n", "n", log=True, limits=(0.0001, 1e7))
    result = texts(figure([panel(points(rows, x, Axis("error")))]))
    for label in ("0.01", "1", "100", "10,000", "10^6"):
        assert label in result
    assert "10^-4" in result
    assert not any("e+" in text or "e-" in text for text in result)


def test_series_differ_in_colour_and_in_shape():
    """Points that are not to be trusted are hollow."""
    x, y = Axis("x"), Axis("y")
    rows = [{"x": i, "y": i, "s": name, "hollow": i == 3} for i, name in enumerate("abca")]
    chart = figure([panel(points(rows, x, y, Series("s", tuple("abc"))))])
    result = [dict(mark) for mark in marks(chart, "symbol")]
    assert len({mark["fill"] for mark in result[:3]}) == 3
    assert result[3]["fill"] == GROUND
    assert len({mark["d"] for mark in result}) == 3
    ordered = Series("s", tuple("abc"), ordered=True).colour()["scale"].to_dict()["range"]
    assert (ordered[0], ordered[-1]) == (SHADES[0], SHADES[-1])


def test_cells_without_a_number_are_crossed_and_colours_say_what_lies_beyond():
    result = texts(explorer())
    assert result.count("×") == 1
    assert "≤ 0.2" in result
    assert "≥ 1" in result
    assert {"L: light", "H: heavy"} <= set(result)


def test_a_picked_head_is_named_and_its_curve_alone_is_drawn():
    assert "curve, layer 1, head 2" in texts(explorer())
    assert len(marks(explorer(), "symbol")) == 3


def test_somebodys_names_are_text_and_nothing_else():
    name = "a </text><script>x</script> \x07 $y$ {{z}} \u2028"
    chart = curves(names=(name, "b"))
    result = chart_bytes(chart, ".svg").decode()
    assert "<script" not in result
    assert "\x07" not in result
    assert chart_bytes(chart, ".pdf").startswith(b"%PDF")


def test_thousands_of_rows_do_not_take_minutes():
    """Altair copies lists of rows at every step, which took 40 s here; tuples it leaves alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chart = explorer(layers=30, heads=32)
    assert sum(map(len, chart.to_dict(validate=False)["datasets"].values())) > 3000


class TestDrawings:
    DRAWINGS = (
        Drawing("main", "the main one", lambda result: curves()),
        Drawing("single", "of heads", lambda result, heads=None: curves(str(heads)), heads=True),
        Drawing("gone", "not there", lambda result: curves(), missing=lambda result: "no numbers"),
    )

    def test_titles_can_be_replaced_and_taken_away(self):
        assert draw(self.DRAWINGS, None, title="Other").chart.title.text == "Other"
        assert "Errors" not in texts(draw(self.DRAWINGS, None, title="").chart)
        assert "points: measured" in texts(draw(self.DRAWINGS, None, title="").chart)

    @pytest.mark.parametrize(
        ("name", "heads", "message"),
        [
            ("other", None, "no chart 'other' .* choose from main, single, gone"),
            ("main", [(0, 0)], "'main' takes no heads; that is for single"),
            ("gone", None, "no chart 'gone' of this result: no numbers"),
        ],
    )
    def test_what_cannot_be_drawn_is_refused(self, name, heads, message):
        with pytest.raises(InputError, match=message):
            draw(self.DRAWINGS, None, name, heads=heads)

    @pytest.mark.parametrize(
        ("heads", "message"),
        [([(0, 1)], r"no head 0\.1 .* layers 0 to 2 and heads 0, 5"), ([], "draw 1 to 24")],
    )
    def test_heads_that_are_not_there_are_refused(self, heads, message):
        with pytest.raises(InputError, match=message):
            check_heads(heads, [(layer, head) for layer in range(3) for head in (0, 5)])


def test_rows_of_a_cell_are_packed_and_drawn_as_they_were():
    rows = [
        {"layer": layer, "head": 0, "line": line, "n": n, "error": float(n * layer)}
        for layer in (1, 2)
        for line in ("a", "b")
        for n in (1, 2, 3)
    ]
    x, y, pick = Axis("n", "n"), Axis("error", "error"), picking(2, 0)
    drawn = panel(points(rows, x, y, pick=pick), words([rows[0] | {"text": "1"}], pick=pick))
    cells = heatmap(
        [{"layer": layer, "head": 0, "k": 1.0} for layer in (1, 2)], "k", "k", pick=pick
    )
    chart = figure([cells, drawn], pick=pick, apart=True)
    packed = next(data for data in chart.to_dict()["datasets"].values() if "line" in data[0])
    assert len(packed) == 4
    assert packed[0] == {
        "layer": 1,
        "head": 0,
        "line": "a",
        "n": [1, 2, 3],
        "error": [1.0, 2.0, 3.0],
    }
    assert len(marks(chart, "symbol")) == 6  # of the picked cell alone
