"""Counts in plain digits, values with their errors, and what is being done."""

from __future__ import annotations

import math
import sys

import pytest

from esscher.core.shown import (
    about,
    announce,
    between,
    cosine_between,
    counted,
    plain_count,
    rates_said,
    two_digits,
    with_error,
    with_interval,
)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (1.28, "1.28"),
        (12.34, "12.3"),
        (167.3, "167"),
        (1320, "1,320"),
        (99_999.6, "100,000"),
        (1e12, "1,000,000,000,000"),
        (1e18, "1e18"),
        (math.inf, "infinitely many"),
    ],
)
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
        "9.49",
        "950",
        "65,700,000",
        "1e20",
    ]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0.07571, 0.0021, "0.076(2)"),
        (0.0757, 0.00021, "0.0757(2)"),
        (1.2345, 0.3, "1.2(3)"),
        # one digit of the error: from 0.095 on it is that of 0.1
        (1.2345, 0.0949, "1.23(9)"),
        (1.2345, 0.096, "1.2(1)"),
        (123.4, 12.0, "123(12)"),
        # powers of ten below a thousandth, of the value or of a larger error
        (0.000123, 0.000004, "1.23(4)e-4"),
        (0.00012, 0.00012, "1(1)e-4"),
        # an error beyond the value leaves the value its digits
        (0.172, 2.1, "0.17 ± 2.1"),
        (0.0, 0.02, "0 ± 0.020"),
        (-0.03, 0.04, "-0.030 ± 0.040"),
        (0.00012, 0.003, "0.00012 ± 0.0030"),
        (0.0002971, 0.00001, "3.0(1)e-4"),
        (-0.0757, 0.002, "-0.076(2)"),
        (12.34, 1.6, "12(2)"),
        # errors that are not known, or change none of four digits
        (0.0757, None, "0.0757"),
        (0.0757, math.nan, "0.0757"),
        (0.0757, math.inf, "0.0757"),
        (1.5, 0.0, "1.5"),
        (12.3456, 1e-3, "12.35"),
    ],
)
def test_the_error_has_one_digit(value, error, words):
    assert with_error(value, error) == words


@pytest.mark.parametrize(
    ("value", "error", "decimals", "words"),
    [
        (0.4967, 0.031, 2, "0.50(3)"),
        (0.4967, 0.0001, 2, "0.50(1)"),
        (0.4967, 1.5, 2, "0.50(150)"),
        (11.36, 0.25, 1, "11.4(2)"),
        (1234.6, 56.2, 0, "1,235(56)"),
        (2.0, None, 2, "2.00"),
        (2.0, math.nan, 1, "2.0"),
    ],
)
def test_decimals_may_be_given(value, error, decimals, words):
    assert with_error(value, error, decimals) == words


def test_what_is_done_before_the_first_bar_is_said_on_a_terminal(capsys, monkeypatch):
    announce("Loading demo:minilm")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    announce("Loading demo:minilm")
    assert capsys.readouterr() == ("", "Loading demo:minilm ...\n")


def test_two_digits() -> None:
    numbers = (0.0, 0.03, 0.996, 1, 9.96, 12.34, 469.0, 65_659_969, -0.5, 1.14e-5, 3e20)
    assert [two_digits(number) for number in numbers] == [
        "0",
        "0.030",
        "1.0",
        "1.0",
        "10",
        "12",
        "470",
        "66,000,000",
        "-0.50",
        "1.1e-5",
        "3.0e20",
    ]
    assert two_digits(float("inf")) == "inf"


def test_intervals() -> None:
    assert between(1.834, (1.448, 2.321)) == "1.8 (1.4 to 2.3)"
    assert between(1.834, (None, 2.0)) == between(1.834, None) == "1.8"
    assert cosine_between(0.9984, (0.995, 1.0)) == "0.998 (0.995 to 1.000)"
    assert cosine_between(0.9984, None) == "0.998"


def test_wide_intervals_are_shown_with_both_ends() -> None:
    assert with_interval(0.172, (0.0, 2.3)) == "0.17 (0 to 2.3)"
    assert with_interval(0.172, (0.151, 0.19)) == with_error(0.172, 0.021) == "0.17(2)"


def test_rates_in_words() -> None:
    counts = {"at 1/2": 1, "below": 2, "above": 0, "undecided": 3}
    said = rates_said(counts, "head")
    assert said == "like 1/sqrt(n) in 1 head, more slowly in 2, undecided in 3"
    assert "faster in 4, undecided" in rates_said(counts | {"above": 4}, "head")
