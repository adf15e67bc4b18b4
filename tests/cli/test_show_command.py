"""``esscher show``: figures of stored runs, tables that fit the terminal, and notes on models."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher.cli import main
from esscher.runs.result import RESULTS
from tests.runs.made import unpack

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


def show(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["show", *map(str, arguments)])


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
    ("arguments", "message"),
    [
        (("--figure", "heads"), "there is no chart 'heads' of this result; choose from curve, exp"),
        (("--figure", "main", "-o", "x.gif"), "-o x.gif: the name must end in .png, .svg, .pdf"),
        (("-o", "x.png"), "-o x.png is the file of a figure; name it with --figure"),
        (("--figure", "main", "-o", "runs/sweep.png"), "is a directory"),
    ],
)
def test_bad_figures(arguments, message: str, tmp_path: Path, monkeypatch) -> None:
    run = unpack("sweep", tmp_path / "runs")
    (tmp_path / "runs" / "sweep.png").mkdir()
    monkeypatch.chdir(tmp_path)
    result = show(run, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_runs_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = unpack("sparse-law", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for path in (*(fresh / "parts").iterdir(), fresh / RESULTS):
        path.unlink()
    for name, words in {"nowhere": "nowhere", "empty": "not a run", "sparse-law": "no res"}.items():
        result = show(name, "--figure", "main")
        assert result.exit_code == 2, name
        assert words in " ".join(result.output.split()), name
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "sparse-law"}


@pytest.mark.parametrize("kind", RUNS)
def test_no_number_is_cut_on_a_narrow_terminal(kind: str, tmp_path: Path, monkeypatch) -> None:
    """Columns are left out, and named."""
    monkeypatch.setenv("COLUMNS", "60")
    for words in (["show", unpack(kind, tmp_path)], ["ls", tmp_path]):
        result = CliRunner().invoke(main, list(map(str, words)))
        assert result.exit_code == 0, result.output
        assert "…" not in result.output
        lines = [line for line in result.output.splitlines() if line.startswith(" ")]
        assert all(len(line) <= 60 for line in lines)
