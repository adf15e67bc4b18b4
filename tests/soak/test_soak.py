"""Rounds of faults: nothing that was stored is lost, and the end is as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.driver import soak
from tests.soak.faults import FAULTS, possible
from tests.soak.subjects import a_probe, a_sweep

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="looks at processes in /proc"
)
ROUNDS = int(os.environ.get("ESSCHER_SOAK_ROUNDS", "100"))
SEED = int(os.environ.get("ESSCHER_SOAK_SEED", "0"))


@pytest.mark.slow
def test_some_rounds_with_the_quick_faults(tmp_path: Path) -> None:
    found = soak(a_sweep(60), tmp_path, 8, SEED, quick=True)
    assert sum(tally.rounds for tally in found.tallies.values()) == 8


@pytest.mark.slow
def test_a_sweep_under_faults(tmp_path: Path) -> None:
    """Also alone: ``ESSCHER_SOAK_ROUNDS=1000 ESSCHER_SOAK_SEED=5 pytest tests/soak -k sweep``."""
    found = soak(a_sweep(ROUNDS * 4 + 20), tmp_path, ROUNDS, SEED)
    print(found.table())
    assert sum(tally.rounds for tally in found.tallies.values()) == ROUNDS
    if ROUNDS >= 100:
        assert set(found.tallies) == {f.name for f in FAULTS if possible(f, found)}


@pytest.mark.slow
def test_a_run_made_of_cells_under_faults(tmp_path: Path) -> None:
    rounds = max(1, ROUNDS // 5)
    found = soak(a_probe(tmp_path, 40), tmp_path, rounds, SEED)
    print(found.table())
    assert sum(tally.rounds for tally in found.tallies.values()) == rounds
