"""Counts in plain digits, and values with their errors and intervals."""

from __future__ import annotations

import math
import sys

import pytest

from esscher.core.shown import (
    announce,
    between,
    counted,
    plain_count,
    rounded,
    shown,
    two_digits,
    with_error,
    with_interval,
)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (12.34, "12.3"),
        (1320, "1,320"),
        (99_999.6, "100,000"),
        (1e12, "1,000,000,000,000"),
        (1e18, "1e18"),
        (math.inf, "infinitely many"),
    ],
)
def test_counts_are_plain_numbers(number, words):
    assert plain_count(number) == words


def test_nouns_and_estimates():
    assert [counted(n, "head") for n in (0, 1, 1500)] == ["0 heads", "1 head", "1,500 heads"]
    assert [rounded(n) for n in (9.487, 950.0, 65_659_969.0)] == ["9.49", "950", "65,700,000"]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0.07571, 0.0021, "0.076(2)"),
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
        (-0.0757, 0.002, "-0.076(2)"),
        # errors that are not known, or change none of four digits
        (0.0757, None, "0.0757"),
        (0.0757, math.inf, "0.0757"),
        (12.3456, 1e-3, "12.35"),
    ],
)
def test_the_error_has_one_digit(value, error, words):
    assert with_error(value, error) == words


def test_what_is_done_before_the_first_bar_is_said_on_a_terminal(capsys, monkeypatch):
    announce("Loading demo:minilm")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    announce("Loading demo:minilm")
    assert capsys.readouterr() == ("", "Loading demo:minilm ...\n")


def test_two_digits() -> None:
    numbers = (0.0, 0.03, 0.996, 9.96, 469.0, 65_659_969, -0.5, 1.14e-5, 3e20, math.inf)
    words = "0 0.030 1.0 10 470 66,000,000 -0.50 1.1e-5 3.0e20 inf"
    assert [two_digits(number) for number in numbers] == words.split()


def test_intervals() -> None:
    assert between(1.834, (1.448, 2.321)) == "1.8 (1.4 to 2.3)"
    assert between(1.834, (None, 2.0)) == between(1.834, None) == "1.8"
    assert between(0.9984, (0.995, 1.0), "d3") == "0.998 (0.995 to 1.000)"
    assert with_interval(0.172, (0.0, 2.3)) == "0.17 (0 to 2.3)"
    assert with_interval(0.172, (0.151, 0.19)) == with_error(0.172, 0.021) == "0.17(2)"


@pytest.mark.parametrize(
    ("value", "how", "text"),
    [
        (0.4567, "d2", "0.46"),
        (1234.5, "s3", "1,234"),
        (0.000012345, "s3", "1.23×10⁻⁵"),
        (2.5e9, "s2", "2.5×10⁹"),
        (264_690, "n3", "265,000"),
        (264_690, "n0", "264,690"),
        (0.1234, "p1", "12.3%"),
        (None, "d2", "–"),
        (math.inf, "n0", "∞"),
        (True, "text", "yes"),
    ],
)
def test_formats(value, how, text):
    assert shown(value, how) == text
