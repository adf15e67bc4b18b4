"""Rounds of faults: nothing that was stored is lost, and the end is as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.driver import a_probe, a_sweep, soak
from tests.soak.faults import FAULTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc"),
]
ROUNDS = int(os.environ.get("ESSCHER_SOAK_ROUNDS", "60"))
SEED = int(os.environ.get("ESSCHER_SOAK_SEED", "0"))


def test_a_sweep_under_faults(tmp_path: Path) -> None:
    """Also alone: ``ESSCHER_SOAK_ROUNDS=1000 ESSCHER_SOAK_SEED=5 pytest tests/soak -k sweep``."""
    codes = soak(a_sweep(ROUNDS * 4 + 20), tmp_path, ROUNDS, SEED).codes
    assert len(FAULTS) > ROUNDS or set(codes) == {fault.name for fault in FAULTS}


def test_a_run_made_of_cells_under_faults(tmp_path: Path) -> None:
    soak(a_probe(tmp_path, 40), tmp_path, max(1, ROUNDS // 5), SEED)
