"""Times of commands: how a run is compared with the stored one."""

from __future__ import annotations

import json
import sys

import pytest
from benchmarks.waiting import RESULTS, ROWS, Measured, Row, compared, read_stored, spent


def measured(*ratios: float) -> Measured:
    row = Row([sys.executable, "-c", "pass"])
    return Measured.of(row, [(2 * ratio, 50.0) for ratio in ratios], reference=2.0)


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ((1.4, 1.3), "SLOWER"),
        ((1.4, 1.15), "as stored"),  # within the spread of both
        ((0.9, 1.05), "as stored"),
        ((0.8, 0.9), "faster"),
    ],
)
def test_slower_means_beyond_the_spread_of_both_runs(ratios, message) -> None:
    assert compared("x", measured(*ratios), {"x": measured(1.0, 1.1, 1.2)}).startswith(message)
    assert compared("y", measured(*ratios), {"x": measured(1.0)}) == "not stored"


def test_seconds_are_those_of_the_command(tmp_path) -> None:
    """A command that works for long has more of them than one that does nothing."""
    work = "sum(i * i for i in range(3_000_000)); bytearray(60_000_000)"
    (few, small), (many, large) = (
        spent([sys.executable, "-c", code], str(tmp_path)) for code in ("pass", work)
    )
    assert 0 < few < many
    assert large > small + 50
    with pytest.raises(SystemExit, match="no-such"):
        spent([sys.executable, "-c", "raise SystemExit('no-such')"], str(tmp_path))


def test_stored_rows_are_rows_of_today() -> None:
    stored = read_stored(RESULTS)
    assert set(stored) <= set(ROWS)
    for name, row in stored.items():
        assert row.command.split()[1:] == list(ROWS[name].words[1:])
        # each is rounded to three digits behind the point
        again = [seconds / row.reference for seconds in row.seconds]
        assert row.ratios == pytest.approx(again, rel=0.01, abs=0.001)
    assert json.loads(RESULTS.read_text())["machine"]["threads"] == 1
