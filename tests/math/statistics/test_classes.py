"""Exponents by class: at 1/2, below, above, undecided."""

import numpy as np
import pytest

from esscher.math.statistics.intervals import CLASSES, class_counts, rate_class


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.46, 0.54), "at 1/2"),
        ((0.45, 0.55), "at 1/2"),
        ((0.46, 0.49), "at 1/2"),  # close to 1/2, though not 1/2 itself
        ((0.40, 0.49), "below"),
        ((0.51, 0.70), "above"),
        ((0.40, 0.52), "undecided"),
        ((-0.46, 1.27), "undecided"),
        ((None, None), "undecided"),
        ((0.46, None), "undecided"),
    ],
)
def test_classes(interval, expected):
    assert rate_class(interval) == expected


def test_wider_intervals_are_never_more_decided():
    rng = np.random.default_rng(0)
    for _ in range(500):
        low = rng.uniform(0.2, 0.6)
        high = low + rng.exponential(0.05)
        result = rate_class((low, high))
        wider = rate_class((low - rng.exponential(0.05), high + rng.exponential(0.05)))
        if result == "at 1/2":  # it may lie on one side of 1/2 as a whole, too
            assert wider != "below" or high < 0.5
            assert wider != "above" or low > 0.5
        else:
            assert wider in (result, "undecided")


def test_counts():
    counts = class_counts([(0.46, 0.54), (0.3, 0.4), (0.3, 0.6), (0.48, 0.52)])
    assert tuple(counts) == CLASSES
    assert tuple(counts.values()) == (2, 1, 0, 1)
