"""Exact match and F1 are those of SQuAD's official script."""

from __future__ import annotations

import pytest

from esscher.engine.text.questions import normalised, squad_scores


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Normans (Norman: Nourmands)", "normans norman nourmands"),
        ("10th and 11th centuries", "10th and 11th centuries"),
        (" a  an\tthe\n Theatre", "theatre"),
        ("$100,000 -- an hour's pay", "100000 hours pay"),
        ("Zürich, à la carte", "zürich à la carte"),
        ("the-a", "thea"),
    ],
)
def test_normalisation(text, words):
    assert " ".join(normalised(text)) == words


@pytest.mark.parametrize(
    ("reply", "answers", "exact", "f1"),
    [
        ("France.", ("France", "in France"), 1.0, 1.0),
        ("in the 10th century", ("10th and 11th centuries", "10th"), 0.0, 0.5),
        ("Denmark, Iceland and Norway", ("Denmark",), 0.0, 0.4),
        ("Rollo Rollo", ("Rollo",), 0.0, 2 / 3),
        ("", ("Rollo",), 0.0, 0.0),
        ("the", ("a", "Rollo"), 1.0, 1.0),
    ],
)
def test_scores(reply, answers, exact, f1):
    assert squad_scores(reply, answers) == pytest.approx((exact, f1))
