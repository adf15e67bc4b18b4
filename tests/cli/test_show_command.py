"""``esscher show``: figures of stored runs, tables that fit the terminal, and notes on models."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher.cli import main
from esscher.core.dataset_file import from_bytes, to_bytes
from esscher.runs.result import RESULTS
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
    for path in (*(fresh / "parts").iterdir(), fresh / RESULTS):
        path.unlink()
    odd = shutil.copytree(sparse, tmp_path / "odd") / RESULTS
    odd.write_bytes(to_bytes(from_bytes(odd.read_bytes(), "").drop_vars("exponent")))
    other = shutil.copytree(sparse, tmp_path / "other")
    about = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(about | {"kind": "unknown"}))
    cases = {
        "nowhere": "nowhere",
        "empty": "not a run",
        "fresh": "no results yet",
        "odd": "exponent is missing",
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
