"""The page of sparse patterns: cards, tables, and a report of it."""

from __future__ import annotations

import html

import pytest

import esscher
from esscher.studies.sparse.charts import best_pattern
from esscher.studies.sparse.view import summary
from tests.runs.made import make


@pytest.mark.parametrize("name", ["sparse", "sparse-law"])
def test_cards_and_verdicts(name):
    found = make(name)[1]
    about = summary(found, "run")
    base = found.patterns["random"].fit.map
    assert about.cards[0].value == f"{base.exponent:.3f}"
    last = {n: p.curve.dense.map.mean[-1] for n, p in found.patterns.items()}
    assert about.cards[1].value == min(last, key=last.get)
    data = about.tables[0].data
    assert data["pattern"] == list(found.patterns)
    for i, pattern in enumerate(found.patterns.values()):
        assert data["verdict"][i] == pattern.verdict
        assert data["evidence"][i] == pattern.evidence
        assert data["exponent"][i] == pattern.fit.map.exponent
        assert (data["low"][i], data["high"][i]) == pattern.fit.map.interval
        assert data["keys"][i] == pattern.break_even.for_target.budget
    assert len(about.tables) == (2 if found.heads else 1)


def test_the_table_of_heads_is_the_result_s():
    found = make("sparse")[1]
    data = summary(found, "run").tables[1].data
    for i, unit in enumerate(found.heads):
        assert (data["layer"][i], data["head"][i]) == (unit.layer, unit.head)
        assert data["best"][i] == best_pattern(unit)
        for name, pattern in unit.patterns.items():
            assert data[f"{name}_exponent"][i] == pattern.map.exponent
            assert data[f"{name}_error"][i] == pattern.map.error[-1]
            assert data[f"{name}_keys"][i] == pattern.budget


def test_names_in_the_report_are_text(tmp_path):
    text = esscher.report(make("sparse")[1], tmp_path / "report.html").read_text("utf-8")
    assert "<b> &" not in text
    assert html.escape("<b> & \\frac", quote=False) in text
