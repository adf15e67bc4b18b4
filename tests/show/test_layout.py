"""Columns of panels and of legends."""

from __future__ import annotations

import pytest

from esscher.show.theme import (
    AXIS,
    DOUBLE,
    GAP,
    LETTER_WIDTH,
    NAMES,
    SINGLE,
    TICK_ROOM,
    columns,
    layout,
)
from tests.show.sample_charts import pairs


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


def test_names_along_an_axis_take_their_room_up_to_a_share():
    names = ("one", "a name that is longer than all others")
    wide = layout(pairs(names).to_dict(), 2 * DOUBLE)["concat"]
    own = (2 * DOUBLE - GAP) / 2
    assert wide[0]["width"] == pytest.approx(
        own - LETTER_WIDTH * len(names[1]) - TICK_ROOM, abs=0.1
    )
    assert wide[1]["width"] == pytest.approx(own - AXIS, abs=0.1)
    narrow = layout(pairs((*names, "x" * 500)).to_dict(), SINGLE)["concat"]
    assert narrow[0]["width"] == pytest.approx((1 - NAMES) * SINGLE, abs=0.1)
