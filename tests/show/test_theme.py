"""Ticks, limits and colours."""

from __future__ import annotations

import pytest

from esscher.show.render import DARK
from esscher.show.theme import PALETTE, SHAPES, VARIABLES, limits, log_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (90, 2100, [100, 200, 500, 1000, 2000]),
        (9, 1.1e8, [10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8]),
        (0.04, 0.28, [0.05, 0.1, 0.2]),
        (2.1, 2.9, [2.2, 2.4, 2.6, 2.8]),
        (417, 421, [417, 418, 419, 420, 421]),
        (1e-12, 1, [1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1]),
    ],
)
def test_logarithmic_ticks_are_round_and_few(low, high, ticks):
    assert log_ticks(low, high) == ticks


def test_limits_leave_room_and_ignore_what_is_not_finite():
    low, high = limits([1.0, None, float("nan"), float("inf"), 3.0])
    assert low < 1.0
    assert high > 3.0
    low, high = limits([-1.0, 0.0, 10.0, 1000.0], log=True)
    assert 5 < low < 10
    assert 1000 < high < 2000
    assert limits([], log=True) == (1.0, 10.0)
    assert limits([2.0]) == (1.0, 3.0)


def test_colours_and_shapes_can_be_told_apart_and_have_a_dark_twin():
    assert len(set(PALETTE)) == len(PALETTE) == len(set(SHAPES))
    assert set(VARIABLES.values()) == set(DARK)
    assert len(set(VARIABLES.values())) == len(VARIABLES)  # no colour stands for two things
