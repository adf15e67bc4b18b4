"""``python -m tests.soak``: rounds of faults against a sweep, or a probe made of cells."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.soak.driver import a_probe, a_sweep, soak

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Rounds of faults against a run.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", action="store_true", help="a probe instead of a sweep")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        count = chosen.rounds * 4 + 20
        subject = a_probe(Path(name), count) if chosen.cells else a_sweep(count)
        soak(subject, Path(name), chosen.rounds, chosen.seed, say=True)
