"""Blocks of charts: what of the rows is drawn, and how."""

from __future__ import annotations

import re
import warnings
from itertools import pairwise

import pandas as pd
import pytest
import vl_convert

from esscher.core.errors import InputError
from esscher.show.cells import heatmap, picking
from esscher.show.cells import pairs as pairs_of_heads
from esscher.show.chart import (
    BESIDE,
    LISTED,
    LONG,
    Axis,
    Series,
    bars,
    figure,
    guides,
    panel,
    points,
    words,
)
from esscher.show.content import Drawing, check_heads, draw, offered
from esscher.show.frames import records
from esscher.show.save import chart_bytes
from esscher.show.theme import (
    BLUE,
    DOUBLE,
    GREY,
    GROUND,
    LETTER,
    LIGHT_LETTER,
    LINE,
    SHADES,
    layout,
)
from tests.show.sample_charts import SAMPLES, both, costs, curves, explorer, pairs, steps


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


@pytest.mark.parametrize("make", [*SAMPLES.values(), both])
def test_samples_are_valid_and_compile_without_a_warning(make, capfd):
    spec = make().to_dict(validate=True)
    vl_convert.vegalite_to_svg(layout(spec, DOUBLE), show_warnings=True)
    assert capfd.readouterr().err == ""


def test_ticks_are_plain_digits_up_to_a_million():
    rows = [{"n": n, "error": 1.0} for n in (0.0001, 1e7)]
    x = Axis("n", "n", log=True, limits=(0.0001, 1e7))
    found = texts(figure([panel(points(rows, x, Axis("error")))]))
    for label in ("0.01", "1", "100", "10,000", "10^6"):
        assert label in found
    assert "10^-4" in found
    assert not any("e+" in text or "e-" in text for text in found)


def test_whole_numbers_only():
    rows = [{"kind": "a", "count": 2}]
    chart = figure([panel(bars(rows, Axis("kind", names=["a"]), Axis("count", whole=True)))])
    assert {text for text in texts(chart) if text} == {"a", "0", "1", "2"}


def test_intervals_that_reach_zero_are_cut_on_a_logarithmic_axis():
    svg = chart_bytes(curves(), ".svg").decode()
    assert "NaN" not in svg
    assert "Infinity" not in svg
    assert len(marks(curves(), "rule")) >= 14


def test_points_not_to_be_trusted_are_hollow():
    x, y = Axis("x"), Axis("y")
    rows = [{"x": 1, "y": 1, "hollow": True}, {"x": 2, "y": 2, "hollow": False}, {"x": 3, "y": 3}]
    found = [dict(mark)["fill"] for mark in marks(figure([panel(points(rows, x, y))]), "symbol")]
    assert found == [GROUND, BLUE, BLUE]


def test_series_differ_in_colour_and_in_shape():
    x, y = Axis("x"), Axis("y")
    rows = [{"x": i, "y": i, "s": name} for i, name in enumerate("abc")]
    chart = figure([panel(points(rows, x, y, Series("s", tuple("abc"))))])
    found = [dict(mark) for mark in marks(chart, "symbol")]
    assert len({mark["fill"] for mark in found}) == 3
    assert len({mark["d"] for mark in found}) == 3
    ordered = Series("s", tuple("abc"), ordered=True).colour()["scale"].to_dict()["range"]
    assert (ordered[0], ordered[-1]) == (SHADES[0], SHADES[-1])


def test_cells_without_a_number_are_crossed_and_colours_say_what_lies_beyond():
    found = texts(explorer())
    assert found.count("×") == 1
    assert "≤ 0.2" in found
    assert "≥ 1" in found
    assert {"L: light", "H: heavy"} <= set(found)


def test_a_picked_head_is_named_and_its_curve_alone_is_drawn():
    assert "curve, layer 1, head 2" in texts(explorer())
    assert len(marks(explorer(), "symbol")) == 3


def test_crosses_are_seen_in_dark_and_in_light_cells():
    cells = [{"layer": 0, "head": i, "share": i / 4, "chance": i != 2} for i in range(5)]
    chart = figure([heatmap(cells, "share", "share", ends=(0.0, 1.0), crossed="chance")])
    fills = [dict(mark)["fill"] for mark in marks(chart, "text") if dict(mark).get("fill")]
    assert fills == [LIGHT_LETTER, LIGHT_LETTER, LETTER, LETTER]


def test_a_cell_can_be_crossed_with_something_else():
    cells = [
        {"layer": 0, "head": i, "length": n, "far": i == 1} for i, n in enumerate((1, 2, None))
    ]
    chart = figure([heatmap(cells, "length", "length", crossed="far", cross="→")])
    assert [texts(chart).count(mark) for mark in "→×"] == [1, 1]


def test_steps_are_steps_and_strokes_stand_at_their_places():
    (band,), (line,) = marks(steps(), "area"), marks(steps(), "line")
    for mark in (band, line):  # every corner shares an x or a y with the one before it
        corners = re.findall(r"[-0-9.]+,[-0-9.]+", dict(mark)["d"])
        places = [tuple(map(float, corner.split(","))) for corner in corners]
        assert len(places) > 4
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(places))
    assert len(marks(steps(), "rect")) == 2


def test_names_of_lines_can_be_turned_to_the_other_side():
    anchors = {dict(mark).get("text-anchor") for mark in marks(steps(), "text")}
    assert anchors == {"end"}


def test_what_lies_within_a_factor_is_grey():
    assert GREY in {dict(mark)["fill"] for mark in marks(curves(), "area")}


def test_points_beside_each_other_leave_heatmaps_alone():
    """An offset is a scale, which panels would share."""
    cells = [{"layer": 0, "head": i, "size": 1.0 + i} for i in range(2)]
    rows = [{"kind": "k", "s": s, "x": 1.0} for s in "ab"]
    near = points(rows, Axis("kind", names=["k"]), Axis("x"), Series("s", "ab"), beside=True)
    alone = figure([heatmap(cells, "size", "size")])
    both_of = figure([heatmap(cells, "size", "size"), panel(near)], apart=True)
    widths = [layout(chart.to_dict(), DOUBLE)["concat"][0]["width"] for chart in (alone, both_of)]
    found = [
        float(re.findall(r"h([0-9.]+)", dict(marks(chart, "rect")[0])["d"])[0]) / width
        for chart, width in zip((alone, both_of), widths, strict=True)
    ]
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_points_of_one_name_stand_beside_each_other():
    symbols = [dict(mark)["transform"] for mark in marks(pairs(), "symbol")]
    assert len(symbols) == len(set(symbols)) == 8


def test_panels_apart_have_room_of_their_own_for_points_beside_each_other():
    def ends(names):
        rows = [{"name": name, "kind": kind, "value": 1.0} for name in names for kind in "ab"]
        x, y = Axis("name", names=names), Axis("value", limits=(0.0, 2.0))
        return panel(points(rows, x, y, Series("kind", ("a", "b")), beside=True))

    spec = figure([ends(["one"]), ends(["one", "two"])], apart=True).to_dict()
    assert spec["resolve"]["scale"]["xOffset"] == "independent"


def test_lines_to_compare_with_have_the_colour_of_their_series():
    x, y = Axis("x", limits=(0.0, 1.0)), Axis("y", limits=(0.0, 1.0))
    series = Series("kind", ("a", "b"), colours=(BLUE, LETTER))
    rows = [{"at": 0.2, "kind": "a"}, {"at": 0.7, "kind": "b"}]
    drawn = marks(figure([panel(guides(rows, x, y, series))]), "rule")
    assert [dict(mark)["stroke"].upper() for mark in drawn] == [BLUE, LETTER]


def test_a_matrix_says_its_counts_and_a_line_without_a_name_says_nothing():
    found = texts(pairs())
    assert {"0", "1", "9", "10", "two"} <= set(found)
    assert "undefined" not in found


def test_figures_below_each_other_keep_their_legends_and_have_one_title():
    found = texts(both())
    assert found.count("Both") == 1
    assert "Errors" not in found
    assert {"0.5", "fitted", "planned"} <= set(found)


def test_legends_of_lines_and_of_many_numbers():
    def legend(**options):
        return Series("s", tuple("abc"), **options).colour()["legend"].to_dict()

    assert "labelOffset" not in legend(shapes=("circle",) * 3)
    # a line is longer than a point, and pushes the names away; lines alone are long
    assert legend(shapes=("circle", LINE, LINE))["labelOffset"] == BESIDE
    assert legend(shapes=(LINE,) * 3)["symbolSize"] == LONG
    numbers = [str(i) for i in range(30)]
    listed = Series("s", numbers, ordered=True).colour()["legend"].to_dict()["values"]
    assert (listed[0], listed[-1], len(listed)) == ("0", "29", LISTED)
    assert "values" not in Series("s", numbers).colour()["legend"].to_dict()


def test_more_series_than_colours_differ_in_shape():
    series = Series("s", [str(i) for i in range(20)])
    looks = list(
        zip(
            *(made["scale"].to_dict()["range"] for made in (series.colour(), series.shape())),
            strict=True,
        )
    )
    assert len(set(looks)) == 20


def test_bars_carry_their_intervals():
    assert len(marks(costs(), "rule")) == 6  # two upright, two across, two of points


def test_somebodys_names_are_text_and_nothing_else():
    name = "a </text><script>x</script> \x07 $y$ {{z}} \u2028"
    chart = costs(names=(name, "b"))
    found = chart_bytes(chart, ".svg").decode()
    assert "<script" not in found
    assert "\x07" not in found
    assert chart_bytes(chart, ".pdf").startswith(b"%PDF")


def test_records_have_none_for_what_is_missing():
    frame = pd.DataFrame({"a": [1.0, float("nan")], "b": ["x", None], "c": [1, 2]})
    assert records(frame) == [{"a": 1.0, "b": "x", "c": 1}, {"a": None, "b": None, "c": 2}]


def test_thousands_of_rows_do_not_take_minutes():
    """Altair copies lists of rows at every step, which took 40 s here; tuples it leaves alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chart = explorer(layers=30, heads=32)
    assert sum(map(len, chart.to_dict(validate=False)["datasets"].values())) > 3000


class TestDrawings:
    DRAWINGS = (
        Drawing("main", "the main one", lambda found: curves()),
        Drawing("single", "of heads", lambda found, heads=None: curves(str(heads)), heads=True),
        Drawing("gone", "not there", lambda found: curves(), missing=lambda found: "no numbers"),
    )

    def test_the_first_one_is_the_main_one(self):
        assert draw(self.DRAWINGS, None).chart.title.text == "Errors"
        assert [one.name for one in offered(self.DRAWINGS, None)] == ["main", "single"]

    def test_titles_can_be_replaced_and_taken_away(self):
        assert draw(self.DRAWINGS, None, title="Other").chart.title.text == "Other"
        assert "Errors" not in texts(draw(self.DRAWINGS, None, title="").chart)
        assert "points: measured" in texts(draw(self.DRAWINGS, None, title="").chart)

    def test_heads_are_handed_on(self):
        assert draw(self.DRAWINGS, None, "single", heads=[(1, 2)]).chart.title.text == "[(1, 2)]"

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

    def test_heads_that_are_not_there_are_refused(self):
        there = [(layer, head) for layer in range(3) for head in (0, 5)]
        check_heads([(0, 5)], there)
        with pytest.raises(InputError, match=r"no head 0\.1 .* layers 0 to 2 and heads 0, 5"):
            check_heads([(0, 1)], there)
        with pytest.raises(InputError, match="0 heads are asked for; draw 1 to 24"):
            check_heads([], there)


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


def test_words_stand_in_a_corner_line_by_line():
    chart = figure([panel(words([{"text": "one\ntwo"}]), words([{"text": "right"}], right=True))])
    assert {"one", "two", "right"} <= set(texts(chart))


def test_pairs_of_heads_are_coloured_from_minus_one_to_one():
    rows = [{"head": 0, "other": 1, "r": 0.5}, {"head": 1, "other": 0, "r": -1.0}]
    fill = pairs_of_heads(rows, "r", "layer 0").to_dict()["encoding"]["fill"]
    assert fill["scale"]["domain"] == [-1, 1]
    assert len(marks(figure([pairs_of_heads(rows, "r", "layer 0")]), "rect")) == 2


def test_the_frame_around_the_picked_cell_leaves_its_colour():
    framed = [part for part in all_marks(explorer().to_dict()) if part.get("style") == "chosen"]
    assert framed
    assert all(mark["fill"] == "transparent" for mark in framed)


def all_marks(spec):
    """All marks of a specification."""
    found = [spec["mark"]] if isinstance(spec.get("mark"), dict) else []
    parts = [part for key in ("layer", "concat", "vconcat") for part in spec.get(key, ())]
    return found + [mark for part in parts for mark in all_marks(part)]
