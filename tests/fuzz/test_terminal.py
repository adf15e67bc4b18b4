"""Strings of stored runs are text on a terminal, in a page and in a spreadsheet."""

from __future__ import annotations

import json

import pytest
import xarray as xr
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.dataset_file import from_bytes, to_bytes
from esscher.core.shown import printable, shortened
from esscher.runs.result import RESULTS
from tests.runs.made import unpack

HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/red][link=http://x]y[/link] :bomb: \u202eabc\r<script>"


def test_control_characters_are_written_out():
    assert printable("\x1b[31mred\x07\u202e") == "\\x1b[31mred\\x07\\u202e"
    assert (
        printable("two\nlines\tand Größe, 数, 👩\u200d🚀")
        == "two\nlines\tand Größe, 数, 👩\u200d🚀"
    )
    assert printable("\ud800") == "\\ud800"
    assert len(shortened("x" * 10**6)) <= 80
    assert shortened(10**5000).startswith("a whole number of")


@pytest.mark.parametrize("kind", ["sweep", "plan"])
def test_names_of_runs_reach_the_terminal_as_text(kind, tmp_path):
    run = unpack(kind, tmp_path)
    for path in (run / "config.json", run / "results.json", run / "plan.json"):
        if path.exists():
            path.write_text(json.dumps(_hostile(json.loads(path.read_text()))))
    for words in (["show", run], ["ls", tmp_path], ["report", run, "-o", tmp_path / "page.html"]):
        result = CliRunner().invoke(main, [str(word) for word in words], color=True)
        assert result.exit_code in (0, 2), result.output
        assert not isinstance(result.exception, Exception) or result.exit_code == 2
        for bad in ("\x1b", "\x07", "\u202e", "\r", "💣"):
            assert bad not in result.output


def test_markup_is_not_taken_for_markup(tmp_path):
    run = unpack("sweep", tmp_path)
    data = from_bytes((run / RESULTS).read_bytes(), "")
    note = xr.full_like(data["reasons"], "[red]x[/red][link=http://x]y[/link] :bomb:", "U50")
    (run / RESULTS).write_bytes(to_bytes(data.assign(reasons=note)))
    result = CliRunner().invoke(main, ["show", str(run)], color=True)
    assert "[red]x[/red][link=http://x]y[/link] :bomb:" in result.output


def _hostile(tree, field=""):
    """The same tree with hostile names and notes in the places that are shown."""
    if isinstance(tree, dict):
        return {name: _hostile(value, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_hostile(value, field) for value in tree]
    shown = ("name", "subject", "text", "headline", "source", "note", "notes", "law", "evidence")
    return HOSTILE if isinstance(tree, str) and field in shown else tree
