"""The page of a sweep: its answer, cards and tables, a report of it, and its command."""

from __future__ import annotations

import esscher
from esscher.studies.sweep.result import TITLES
from esscher.studies.sweep.view import agreement_counts, summary


def test_one_horizon_in_words_and_cards(one):
    about = summary(one, "run")
    values = {card.label: card.value for card in about.cards}
    assert values["replicates"] == "8"
    for metric, name in TITLES.items():
        assert values[f"exponent of the {name}"] == f"{one.rate(metric).exponent:.3f}"
    counts = agreement_counts(one.exponents_table())
    assert sum(counts.values()) == 3
    assert values["exponents agree with theory on these sizes"] == f"{counts['agrees']} of 3"
    # eight replicates decide nothing, and the page does not say that they do
    assert "3 undecided" in about.answer
    assert "None of the 3 has settled: n is too small" in about.answer
    assert values["exponents have settled: they hold for larger n too"] == "0 of 3"


def test_notes_are_told(laplace):
    about = summary(laplace, "run")
    assert all(f"Note: {note}." in about.answer for note in laplace.notes)
    assert laplace.notes
    assert "predicted exponents" not in about.answer


def test_one_size_has_errors_alone():
    found = esscher.sweep(esscher.gaussian_head(0.5, 1), [32], 4)
    about = summary(found, "run")
    assert [table.title for table in about.tables] == ["Errors"]
    assert "4 replicates at 1 size" in about.answer
