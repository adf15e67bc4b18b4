"""Tables fit the terminal: columns are left out and named, no number is ever cut."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.show.tables import PlainConsole, PlainTable
from tests.fuzz.damage import unpack

RUNS = (
    "paper", "probe", "sweep", "sparse-law", "deep", "deep-stack", "tails", "domains", "plan",
    "context",
)  # fmt: skip
WIDTHS = (40, 60, 80, 100)
WIDE = 400
#: Commands with tables that need no stored run.
ALONE = (
    "theory --horizon 0.8 --dim 2 --sizes 100:1e12:3",
    "theory --horizon 0.8 --sizes 100:1000:2 --check",
    "hardmax --sizes 1e2:1e12:3 --replicates 20",
    "hardmax --dim 3 --sizes 1e2:1e9:3 --replicates 5",
)


def shown(words: list[str], columns: int, monkeypatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.output


def tables(text: str) -> list[list[list[str]]]:
    """The tables of an output: rows of cells, the headings first; columns stand 3 blanks apart."""
    found, lines = [], text.splitlines()
    for i, line in enumerate(lines):
        if not re.fullmatch(r" ─+ ", line):
            continue
        rows, j = [lines[i - 1]], i + 1
        while j < len(lines) and lines[j].startswith("  "):
            rows.append(lines[j])
            j += 1
        found.append([re.split(r" {2,}", row.strip()) for row in rows if row.strip()])
    return found


def assert_whole(narrow: str, wide: str, columns: int) -> None:
    """Nothing is cut: each cell with a digit of a narrow table is a cell of the wide one."""
    assert "…" not in narrow
    whole = {cell for table in tables(wide) for row in table for cell in row}
    words = {word for cell in whole for word in cell.split()}
    assert len(tables(narrow)) == len(tables(wide))
    for table in tables(narrow):
        for row in table:
            for cell in row:
                # sentences are wrapped, between words
                assert cell in whole or set(cell.split()) <= words, cell
    for line in narrow.splitlines():
        if line.startswith(" "):
            assert len(line) <= columns


@pytest.mark.parametrize("kind", RUNS)
def test_numbers_of_stored_runs_are_whole(kind, tmp_path, monkeypatch):
    run = str(unpack(kind, tmp_path))
    wide = shown(["show", run], WIDE, monkeypatch)
    assert "Left out" not in wide
    for columns in WIDTHS:
        assert_whole(shown(["show", run], columns, monkeypatch), wide, columns)


@pytest.mark.usefixtures("computed_once")
@pytest.mark.parametrize("command", ALONE)
def test_numbers_of_theory_are_whole(command, monkeypatch):
    wide = shown(command.split(), WIDE, monkeypatch)
    for columns in WIDTHS:
        assert_whole(shown(command.split(), columns, monkeypatch), wide, columns)


def test_lists_of_runs_and_charts_are_whole(tmp_path, monkeypatch):
    run = unpack("probe", tmp_path)
    unpack("sweep", tmp_path)
    for words in (
        ["ls", str(tmp_path)],
        ["figure", str(run), "--list"],
    ):
        wide = shown(words, WIDE, monkeypatch)
        for columns in WIDTHS:
            assert_whole(shown(words, columns, monkeypatch), wide, columns)


def test_the_list_of_runs_has_a_heading_for_every_cell(tmp_path, monkeypatch):
    unpack("sweep", tmp_path)
    (table,) = tables(shown(["ls", str(tmp_path)], WIDE, monkeypatch))
    assert dict(zip(*table, strict=True)) == {
        "run": "sweep", "kind": "sweep", "of": "gaussian", "horizon": "0.5:1:2",
        "sizes": "16:64:3", "replicates": "4 of 4", "state": "complete",
    }  # fmt: skip


@pytest.mark.parametrize("columns", [60, 80])
def test_on_a_real_terminal(columns, tmp_path):
    run = unpack("sweep", tmp_path)
    reader, writer = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    subprocess.run(
        ["stty", "cols", str(columns), "rows", "50"], stdin=writer, check=True, timeout=60
    )
    with subprocess.Popen(
        [sys.executable, "-m", "esscher", "show", str(run)],
        stdin=writer, stdout=writer, stderr=writer, env=environment | {"TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(writer)
        output = b""
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:  # the terminal is gone: everything was read
                break
            if not part:
                break
            output += part
        assert process.wait(60) == 0
    os.close(reader)
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode()).replace("\r", "")
    assert "…" not in text
    # commands are not broken, so that they can be copied
    lines = [line for line in text.splitlines() if not line.startswith("Next: ")]
    assert max(map(len, lines)) <= columns
    assert "-0.273-1.371" in text
    assert "Left out for lack of room" in text


def test_the_least_important_columns_go_first(capsys, monkeypatch):
    def drawn(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        table = PlainTable("Title", least=("b",))
        for name in ("name", "a", "b", "c"):
            table.add_column(name, justify="left" if name == "name" else "right")
        table.add_row("x", "0.123456", "0.234567", "0.345678")
        PlainConsole().print(table)
        return capsys.readouterr().out

    assert "Left out" not in drawn(60)
    assert "Left out for lack of room: b." in drawn(40)
    assert "0.345678" in drawn(40)
    assert "0.234567" not in drawn(40)
    assert "b, c." in drawn(25)
    assert "a, b, c." in " ".join(drawn(15).split())


def test_long_names_are_folded_not_dropped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    table = PlainTable("")
    table.add_column("name")
    table.add_column("number", justify="right")
    table.add_row("n" * 70, "0.123456")
    PlainConsole().print(table)
    out = capsys.readouterr().out
    assert out.count("n") >= 70
    assert "0.123456" in out
    assert "Left out" not in out


def test_a_row_has_a_cell_for_every_column():
    table = PlainTable("")
    table.add_column("one")
    with pytest.raises(ValueError, match="2 cells"):
        table.add_row("1", "2")
