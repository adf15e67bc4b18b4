"""Counts in plain digits."""

from __future__ import annotations

import math

import pytest

from esscher.core.shown import about, counted, plain_count


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"), (1.28, "1.28"), (12.34, "12.3"), (167.3, "167"), (1320, "1,320"),
        (99_999.6, "100,000"), (1e12, "1,000,000,000,000"), (1e18, "1e18"),
        (math.inf, "infinitely many"),
    ],
)  # fmt: skip
def test_counts_are_plain_numbers(number, words):
    assert plain_count(number) == words


def test_nouns():
    assert [counted(n, "head") for n in (0, 1, 2, 1500)] == [
        "0 heads",
        "1 head",
        "2 heads",
        "1,500 heads",
    ]


def test_estimates_have_no_more_digits_than_they_mean():
    assert [about(n) for n in (9.487, 950.0, 65_659_969.0, 1e20)] == [
        "9.49", "950", "65,700,000", "1e20",
    ]  # fmt: skip
