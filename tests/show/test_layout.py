"""Columns of panels and of legends."""

from __future__ import annotations

import pytest

from esscher.show.theme import (
    AXIS,
    BAR,
    DOUBLE,
    GAP,
    LETTER_WIDTH,
    NAMES,
    SINGLE,
    TICK_ROOM,
    columns,
    layout,
)
from tests.show.sample_charts import curves, explorer, pairs


@pytest.mark.parametrize(
    ("count", "width", "across"),
    [
        (1, DOUBLE, 1),
        (3, DOUBLE, 3),
        (4, DOUBLE, 2),
        (5, DOUBLE, 3),
        (6, DOUBLE, 3),
        (3, SINGLE, 1),
        (2, 50, 1),
    ],
)
def test_as_many_panels_side_by_side_as_fit_and_rows_are_even(count, width, across):
    assert columns(count, width, 120) == across


def test_panels_share_the_width():
    wide = layout(curves().to_dict(), DOUBLE)
    assert wide["columns"] == 2
    (own,) = {panel["width"] for panel in wide["concat"]}
    assert own == pytest.approx((DOUBLE - GAP) / 2 - AXIS, abs=0.1)
    narrow = layout(curves().to_dict(), SINGLE)
    assert narrow["columns"] == 1
    assert [panel["width"] for panel in narrow["concat"]] == pytest.approx(
        2 * [SINGLE - AXIS], abs=0.1
    )


def test_a_bar_of_colours_takes_its_room():
    laid = layout(explorer().to_dict(), SINGLE)
    first, last = laid["concat"][0], laid["concat"][-1]
    assert last["width"] - first["width"] == pytest.approx(BAR)


def test_names_along_an_axis_take_their_room_up_to_a_share():
    names = ("one", "a name that is longer than all others")
    wide = layout(pairs(names).to_dict(), 2 * DOUBLE)["concat"]
    own = (2 * DOUBLE - 2 * GAP) / 3
    assert wide[0]["width"] == pytest.approx(
        own - LETTER_WIDTH * len(names[1]) - TICK_ROOM, abs=0.1
    )
    assert wide[1]["width"] == pytest.approx(own - AXIS, abs=0.1)
    narrow = layout(pairs((*names, "x" * 500)).to_dict(), SINGLE)["concat"]
    assert narrow[0]["width"] == pytest.approx((1 - NAMES) * SINGLE, abs=0.1)


@pytest.mark.parametrize(
    ("width", "count", "listed", "across"),
    [(DOUBLE, 4, 4, 4), (SINGLE, 4, 4, 2), (60, 4, 4, 1), (DOUBLE, 6, 6, 3), (DOUBLE, 40, 3, 3)],
)
def test_legends_have_as_many_columns_as_fit(width, count, listed, across):
    """As many in each row as possible, of those that are listed."""
    names = [f"a long name, number {i:02}" for i in range(count)]
    fill = {
        "legend": {"orient": "bottom"} | ({} if listed == count else {"values": names[:listed]}),
        "scale": {"domain": names},
    }
    laid = layout({"concat": [{"layer": [{"encoding": {"fill": fill}}]}]}, width)
    assert laid["concat"][0]["layer"][0]["encoding"]["fill"]["legend"]["columns"] == across


def test_a_long_title_is_broken_and_the_specification_is_left_alone():
    spec = curves(title="word " * 40).to_dict()
    before = repr(spec)
    assert len(layout(spec, SINGLE)["title"]["text"]) > len(layout(spec, DOUBLE)["title"]["text"])
    assert repr(spec) == before
