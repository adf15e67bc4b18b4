"""``esscher report`` as a user meets it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.printed import run

SWEEP = "sweep gaussian --horizon 0.5 --sizes 20,40,80 --replicates 4 --no-predict --out"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        result = run(*SWEEP.split(), folder / name)
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


def test_a_report_is_written_where_it_was_asked_for(place: Path) -> None:
    path = place / "deeper" / "page.html"
    result = run("report", place / "runs" / "one", "-o", path)
    assert result.exit_code == 0, result.output
    assert f"Report: {path}" in result.output
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "the error of the mean output falls with exponent" in text
    assert "esscher sweep gaussian --horizon 0.5" in text
    # again, over itself
    assert run("report", place / "runs" / "one", "-o", path).exit_code == 0


def test_other_files_are_not_overwritten(place: Path) -> None:
    path = place / "notes.html"
    path.write_text("mine")
    refused(run("report", place / "runs" / "one", "-o", path), "is not an Esscher report")
    assert path.read_text() == "mine"
    refused(run("report", place / "runs" / "one", "-o", place), "is a directory")


def test_what_is_no_run(place: Path) -> None:
    path = place / "page.html"
    (place / "empty").mkdir()
    (place / "file.txt").write_text("text")
    refused(run("report", place / "nowhere", "-o", path), "nowhere", "does not exist")
    refused(run("report", place / "empty", "-o", path), "empty", "not a run")
    refused(run("report", place / "file.txt", "-o", path), "file.txt", "damaged")
    refused(run("report", "-o", path), "RUN")
    # one bad run among good ones: nothing is written
    refused(run("report", place / "runs" / "one", place / "empty", "-o", path), "empty")
    assert not path.exists()


def test_a_run_without_results_does_not_keep_others_from_their_report(place: Path) -> None:
    path, two = place / "page.html", place / "runs" / "two"
    for part in (two / "parts").iterdir():
        part.unlink()
    result = run("report", place / "runs", "-o", path)
    assert result.exit_code == 0, result.output
    assert f"Left out: {two} has no results yet" in result.stderr
    assert path.read_text("utf-8").count('<article class="run"') == 1
    # if there is nothing else, it is an error; so is one that was asked for by name
    shutil.rmtree(place / "runs" / "one")
    path.unlink()
    refused(run("report", place / "runs", "-o", path), "no results yet")
    refused(run("report", two, "-o", path), "no results yet")
    assert not path.exists()
