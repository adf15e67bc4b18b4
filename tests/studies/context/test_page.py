"""The page of context lengths: cards, table, and a report of it."""

from __future__ import annotations

import html
from dataclasses import replace

import esscher
from esscher.studies.context.view import summary


def test_cards_count_the_heads(found):
    about = summary(found, "run")
    done, beyond, still, middle = about.cards
    assert done.value == "5 of 12"  # by 128 tokens, beyond their intervals
    assert (beyond.value, still.value) == ("1 of 12", "1 of 12")
    assert middle.value == "136"
    assert middle.note == "10% and 90% of the heads: 52 and 900"
    assert about.subject.endswith("on demo:docs, up to 256 tokens, 3 passages, tolerance 10%")


def test_the_table_is_the_result_s(found):
    (table,) = summary(found, "run").tables
    assert table.data["length"] == [head.length for head in found.heads]
    assert table.data["low"] == [head.interval[0] for head in found.heads]
    assert table.data["high"] == [head.interval[1] for head in found.heads]
    assert table.data["note"] == [head.note for head in found.heads]
    assert table.data["last_change"] == [head.change[-1] for head in found.heads]


def test_a_run_without_heads_has_a_page(found):
    about = summary(replace(found, heads=()), "run")
    assert (about.cards, about.tables) == ([], [])


def test_names_in_the_report_are_text(found, tmp_path):
    text = esscher.report(found, tmp_path / "report.html").read_text("utf-8")
    assert "<b> &" not in text
    assert html.escape("<b> & \\frac", quote=False) in text
