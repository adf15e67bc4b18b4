"""The page of deep stacks: cards, tables, and a report of it."""

from __future__ import annotations

import html
from dataclasses import replace

import pytest

import esscher
from esscher.show.frames import data_of
from esscher.studies.deep.result import DeepEnd
from esscher.studies.deep.view import summary


def test_cards_of_a_stack_are_of_the_map_at_the_largest_size(stack):
    first, last, growth, exponent = summary(stack, "run").cards
    for card, layer in ((first, stack.layers[0]), (last, stack.layers[-1])):
        assert card.value == f"{100 * layer.error['map'].mean[-1]:.2f}%"
        assert card.note.startswith("n = 128; 95% interval ")
    assert growth.value == f"{stack.growth['map'][-1].factor:.3f}"
    assert exponent.value == f"{stack.layers[-1].fit['map'].exponent:.3f}"


def test_cards_without_intervals(shallow):
    first, last, exponent = summary(shallow, "run").cards
    assert first.note == last.note == "n = 64; no interval"
    assert exponent.note == "no interval"


def test_cards_of_a_model_are_of_the_middle_size(decoder):
    first = summary(decoder, "run").cards[0]
    assert first.value == f"{100 * decoder.layers[0].error['independent'].mean[1]:.2f}%"


@pytest.mark.parametrize("run", ["stack", "decoder", "encoder"])
def test_the_table_of_layers_is_the_result_s(run, request):
    found = request.getfixturevalue(run)
    shown, frame = summary(found, "run").tables[-1].data, found.table()
    for name in ("layer", "n", "error", "growth", "growth_low", "exponent", "trusted"):
        assert shown[name] == data_of(frame)[name]
    row = frame.iloc[-1]
    if row["standard_error"] is not None:
        assert shown["error_high"][-1] == row["error_high"]
        assert row["error_high"] > row["error"] + 1.96 * row["standard_error"]  # Student's is wider


def test_tables_of_the_end_and_of_terciles(decoder, encoder):
    end, thirds, _ = summary(decoder, "run").tables
    assert end.data == data_of(decoder.end_table())
    assert thirds.data["third"] == list(decoder.terciles.error)
    for i, third in enumerate(thirds.data["third"]):
        assert thirds.data["heads"][i] == decoder.terciles.heads[third].heads
        assert thirds.data["error"][i] == decoder.terciles.error[third].mean[1]
    assert [table.name for table in summary(encoder, "run").tables] == ["run-end", "run-layers"]


def test_nothing_measured_is_no_error(decoder):
    about = summary(replace(decoder, layers=(), growth={}, end=DeepEnd(), terciles=None), "run")
    assert (list(about.cards), list(about.tables)) == ([], [])


@pytest.mark.parametrize("run", ["stack", "decoder", "encoder", "shallow"])
def test_the_report_has_the_answer_and_names_are_text(run, request, tmp_path, hostile):
    found = request.getfixturevalue(run)
    text = esscher.report(found, tmp_path / "report.html").read_text("utf-8")
    assert html.escape(found.headline, quote=False) in html.unescape(text)
    if found.study.name == "deep":
        assert "<b> &" not in text
        assert html.escape(hostile.partition(" \x07")[0], quote=False) in text
