"""The page of a plan: cards, table, and a report of it."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

import esscher
from esscher.core.shown import byte_count
from esscher.studies.plan.view import summary


def test_cards_say_what_is_kept_and_what_it_costs(found):
    cards = summary(found, "run").cards
    assert cards[0].value == "50.0%"
    assert f"of a prefix of {found.prefix}" in cards[1].note
    assert cards[2].label == f"predicted {found.predicted.unit}"
    taken = found.check.cache
    card = cards.pop(3)
    assert (card.value, card.label) == (
        byte_count(taken.planned),
        f"for the cache instead of {byte_count(taken.dense)}",
    )
    # half of the tokens, each with a weight of 4 bytes beside its key and value of 32
    assert 0.5 * 68 / 64 < taken.planned / taken.dense < 0.55
    assert cards[3].label.startswith("measured KL to dense")
    assert len(cards) == 6
    assert len(summary(replace(found, check=None), "run").cards) == 3


@pytest.mark.parametrize(
    ("verdict", "mean", "value", "label"),
    [
        ("better", 2.0, "2.0×", "closer to dense than uniform budgets"),
        ("worse", 0.5, "2.0×", "farther from dense than uniform budgets"),
        ("undecided", 1.5, "undecided", "whether the plan or uniform budgets are closer to dense"),
    ],
)
def test_the_verdict_is_said_as_it_is(found, verdict, mean, value, label):
    ratio = structs.replace(found.check.ratios["uniform"], mean=mean, interval=(0.4, 2.5))
    ratios = found.check.ratios | {"uniform": ratio}
    check = structs.replace(found.check, verdict=verdict, ratios=ratios, best=("snapkv",))
    over = dict.fromkeys(("planned", "uniform", "streaming"), ratio)
    check = structs.replace(check, over_best=over)
    card, best = summary(replace(found, check=check), "run").cards[5:]
    assert (card.value, card.label) == (value, label)
    assert "95% interval 0.40 to 2.5" in card.note
    assert (best.value, best.note) == ("SnapKV", "beyond the paired intervals")


def test_the_table_has_realised_errors_after_a_check(found):
    (table,) = summary(found, "run").tables
    assert np.reshape(table.data["tokens"], np.shape(found.budgets)).tolist() == [
        list(row) for row in found.budgets
    ]
    realised = np.reshape(found.check.heads.realised, (len(table.data["layer"]), -1))
    worst = realised.max(axis=1).tolist()
    assert table.data["realised_error"] == pytest.approx(worst, rel=1e-5)  # six digits
    (table,) = summary(replace(found, check=None), "run").tables
    assert "realised_error" not in table.data


def test_names_in_the_report_are_text(found, tmp_path):
    text = esscher.report(found, tmp_path / "report.html").read_text("utf-8")
    assert "<b> &" not in text
    assert html.escape("<b> & \\frac", quote=False) in text
