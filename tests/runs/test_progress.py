"""How far a run is: lines of its log, and a bar."""

from __future__ import annotations

from pathlib import Path

import pytest

from esscher.runs.progress import Reporter


def test_a_line_a_minute_and_a_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    with Reporter(log, bar=True, interval=0.02) as reporter:
        reporter.expect(10, 4)
        for _ in range(3):
            reporter.advance()
        while log.read_text().count("7 of 10") < 2:
            pass
    lines = log.read_text().splitlines()
    assert lines[0].endswith("started: 4 of 10 replicates are there")
    assert "7 of 10 replicates" in lines[-1]
    assert "a minute" in lines[-1]
    assert "left" in lines[-1]
    assert "7/10" in capsys.readouterr().err


def test_rates_of_progress_are_plain_numbers(monkeypatch):
    clock = iter([0.0, 0.0, 60.0])
    monkeypatch.setattr("esscher.runs.progress.time.monotonic", lambda: next(clock))
    reporter = Reporter(None, bar=False)
    reporter.expect(5000, 0)
    for _ in range(1320):
        reporter.advance()
    assert "1,320 a minute" in reporter.status()
