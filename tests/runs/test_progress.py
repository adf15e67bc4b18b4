"""How far a run is: lines of its log, and a bar."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from esscher.runs.progress import Reporter


def test_lines_of_the_log_and_a_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()  # a second each time that it is looked at
    time = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("esscher.runs.progress.time", time)
    log = tmp_path / "run.log"
    with Reporter(log, bar=True) as reporter:
        reporter.expect(5000, 4)
        for _ in range(120):
            reporter.advance()
    first, *lines, last = log.read_text().splitlines()
    assert first.endswith("started: 4 of 5000 replicates are there")
    assert len(lines) == 1  # in two minutes
    assert "64 of 5000 replicates, 57.1 a minute, 86 min left" in lines[0]
    assert "ended: 124 of 5000 replicates" in last
    assert "124/5000" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    with Reporter(tmp_path, bar=False) as reporter:
        reporter.expect(2, 0)
        reporter.advance()
