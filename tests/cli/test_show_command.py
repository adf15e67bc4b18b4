"""``esscher show``: figures of stored runs, tables that fit the terminal, and notes on models."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher.cli import main
from esscher.runs import read_run
from esscher.show.tables import PlainConsole, PlainTable
from tests.fuzz.damage import unpack

RUNS = (
    "paper",
    "probe",
    "sweep",
    "sparse-law",
    "deep",
    "deep-stack",
    "tails",
    "domains",
    "plan",
    "context",
)
WIDTHS = (40, 60, 100)
WIDE = 400
#: Commands with tables that need no stored run.
ALONE = (
    "theory --horizon 0.8 --dim 2 --sizes 100:1e12:3",
    "theory --horizon 0.8 --sizes 100:1000:2 --check",
)


def show(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["show", *map(str, arguments)])


# -- figures


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")]
)
def test_a_figure_in_a_file(ending: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"figure.{ending}"
    result = show(unpack("sweep", tmp_path), "--figure", "exponents", "-o", path)
    assert result.exit_code == 0, result.output
    assert result.output == f"Figure: {path}\n"
    assert path.read_bytes().startswith(start)


def test_the_main_figure_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unpack("sweep", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert show(run, "--figure", "main").output == "Figure: sweep-curve.png\n"
    assert (tmp_path / "sweep-curve.png").stat().st_size > 10_000


def test_the_figure_of_a_plan_s_file(tmp_path: Path) -> None:
    plan = unpack("plan", tmp_path) / "plan.json"
    result = show(plan, "--figure", "budgets", "-o", tmp_path / "x.svg")
    assert result.exit_code == 0, result.output
    assert b"tokens kept" in (tmp_path / "x.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--figure", "heads"), "there is no chart 'heads' of this result; choose from curve, exp"),
        (("--figure", "main", "-o", "x.gif"), "-o x.gif: the name must end in .png, .svg, .pdf"),
        (("-o", "x.png"), "-o x.png is the file of a figure; name it with --figure"),
        (("--figure", "main", "-o", "runs/sweep.png"), "is a directory"),
    ],
)
def test_bad_figures(arguments, said: str, tmp_path: Path, monkeypatch) -> None:
    run = unpack("sweep", tmp_path / "runs")
    (tmp_path / "runs" / "sweep.png").mkdir()
    monkeypatch.chdir(tmp_path)
    result = show(run, *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_runs_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = unpack("sparse-law", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    fresh = shutil.copytree(sparse, tmp_path / "fresh")
    for path in (*(fresh / "parts").iterdir(), fresh / "results.json"):
        path.unlink()
    odd = shutil.copytree(sparse, tmp_path / "odd")
    results = json.loads((odd / "results.json").read_text())
    del results["patterns"]["window"]["fit"]
    (odd / "results.json").write_text(json.dumps(results))
    other = shutil.copytree(sparse, tmp_path / "other")
    about = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(about | {"kind": "unknown"}))
    cases = {
        "nowhere": "nowhere",
        "empty": "not a run",
        "fresh": "no results yet",
        "odd": "patterns[...] has no 'fit'",
        "other": "'unknown'",
    }
    before = sorted(tmp_path.iterdir())
    for name, said in cases.items():
        result = show(name, "--figure", "main")
        assert result.exit_code == 2, name
        assert said in " ".join(result.output.split()), name
    assert sorted(tmp_path.iterdir()) == before


# -- tables: columns are left out and named, no number is ever cut


def printed(words: list[str], columns: int, monkeypatch) -> str:
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


def assert_whole(words: list[str], monkeypatch) -> None:
    """Nothing is cut: each cell of a narrow table is a cell of the wide one."""
    wide = printed(words, WIDE, monkeypatch)
    assert "Left out" not in wide
    whole = {cell for table in tables(wide) for row in table for cell in row}
    parts = {word for cell in whole for word in cell.split()}
    for columns in WIDTHS:
        narrow = printed(words, columns, monkeypatch)
        assert "…" not in narrow
        assert len(tables(narrow)) == len(tables(wide))
        for cell in (cell for table in tables(narrow) for row in table for cell in row):
            # sentences are wrapped, between words
            assert cell in whole or set(cell.split()) <= parts, cell
        assert all(len(line) <= columns for line in narrow.splitlines() if line.startswith(" "))


@pytest.mark.parametrize("kind", RUNS)
def test_numbers_of_stored_runs_are_whole(kind, tmp_path, monkeypatch):
    assert_whole(["show", str(unpack(kind, tmp_path))], monkeypatch)


@pytest.mark.usefixtures("computed_once")
@pytest.mark.parametrize("command", ALONE)
def test_numbers_of_theory_are_whole(command, monkeypatch):
    assert_whole(command.split(), monkeypatch)


def test_the_list_of_runs_is_whole_and_has_a_heading_for_every_cell(tmp_path, monkeypatch):
    unpack("sweep", tmp_path)
    (table,) = tables(printed(["ls", str(tmp_path)], WIDE, monkeypatch))
    assert dict(zip(*table, strict=True)) == {
        "run": "sweep",
        "kind": "sweep",
        "of": "gaussian",
        "horizon": "0.5:1:2",
        "sizes": "16:64:3",
        "replicates": "4 of 4",
        "state": "complete",
    }
    unpack("probe", tmp_path)
    assert_whole(["ls", str(tmp_path)], monkeypatch)


def test_on_a_real_terminal(tmp_path):
    run, columns = unpack("sweep", tmp_path), 60
    reader, writer = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    subprocess.run(["stty", "cols", str(columns)], stdin=writer, check=True, timeout=60)
    with subprocess.Popen(
        [sys.executable, "-m", "esscher", "show", str(run)],
        stdin=writer,
        stdout=writer,
        stderr=writer,
        env=environment | {"TERM": "xterm"},
    ) as process:
        os.close(writer)
        output = b""
        try:
            while part := os.read(reader, 65536):
                output += part
        except OSError:  # the terminal is gone: everything was read
            pass
        assert process.wait(60) == 0
    os.close(reader)
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode()).replace("\r", "")
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


def test_long_names_are_folded_not_dropped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    table = PlainTable("")
    table.add_column("name")
    table.add_column("number", justify="right")
    table.add_row("n" * 70, "0.123456")
    with pytest.raises(ValueError, match="3 cells"):
        table.add_row("1", "2", "3")
    PlainConsole().print(table)
    out = capsys.readouterr().out
    assert out.count("n") >= 70
    assert "0.123456" in out
    assert "Left out" not in out


@pytest.mark.parametrize("kind", ["probe", "deep", "tails", "domains"])
def test_the_note_on_a_model_is_printed(kind, tmp_path):
    run = unpack(kind, tmp_path)
    note = "logits carry a bias by relative position"
    assert f"Note: {note}." not in show(run).output
    for name in ("config.json", "results.json"):
        about = json.loads((run / name).read_text())
        about["configuration"]["model"]["note"] = note
        (run / name).write_text(json.dumps(about))
    identity = read_run(run).identity
    for part in (run / "parts").glob("*.json"):  # they know the configuration by its hash
        stored = json.loads(part.read_text())
        part.write_text(json.dumps(stored | {"run": identity}))
    assert f"Note: {note}." in show(run).output
