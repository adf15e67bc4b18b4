"""What ``precision`` saves of the published Gaussian study, and whether the exponents stay.

The study (d = 50, 12 scales, 12 sizes over a factor 30) is run twice on the same seed: with a
precision, beginning with 16 replicates, and with all 200. Runs are stored, and resumed by the same
command. At the published sizes all 200 take most of an hour of CPU time: ``--without-all`` leaves
them out, and ``--largest 3000`` does both at a tenth of the sizes.

    python -m benchmarks.precision runs --without-all
    python -m benchmarks.precision runs --largest 3000 --seeds 0,1,2,3
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from esscher.studies.paper.synthetic import geometric, swept_head
from esscher.studies.sweep import Sweep, study, sweep
from esscher.studies.sweep.measure import METRICS

RESULTS = Path(__file__).parent / "results" / "precision.json"
#: Replicates of the published study, and those that a precision begins with.
ALL, FIRST = 200, 16


def run(
    folder: Path, largest: int, seed: int, precision: float | None
) -> tuple[Sweep, float | None]:
    """One sweep, and its CPU seconds; ``None`` if it was begun before."""
    begun = folder.exists()
    alphas = [float(alpha) for alpha in np.geomspace(0.05, 50, 12)]
    options: dict[str, Any] = {"predict": precision is not None}
    if precision is not None:
        options["precision"] = precision
        study.PATIENCE = ALL / FIRST
    start = time.process_time()
    result = sweep(
        swept_head("authors"),
        geometric(largest / 30, largest, 12),
        ALL if precision is None else FIRST,
        seed,
        alpha=alphas,
        out=folder,
        progress=False,
        **options,
    )
    return result, None if begun else round(time.process_time() - start, 1)


def told(result: Sweep) -> dict[str, Any]:
    """Replicates by the size they end at, and exponents with intervals by metric and scale."""
    depths = np.isfinite(result["replicate_error"].values[0, 0]).sum(axis=1)
    ends = Counter(result.data["size"].values[depths - 1].tolist())
    fits = {
        metric: [
            {
                "exponent": round(fit.exponent, 5),
                "interval": [end if end is None else round(end, 5) for end in fit.interval],
                "predicted": None if fit.predicted is None else round(fit.predicted, 5),
            }
            for alpha in result.data["alpha"].values
            for fit in [result.rate(metric, alpha)]
        ]
        for metric in METRICS
    }
    return {"replicates": {str(size): count for size, count in sorted(ends.items())}, "fits": fits}


def compared(early: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """By metric: how far exponents are apart, and how many intervals of the early one hold them."""
    results = {}
    for metric in METRICS:
        pairs = list(zip(early["fits"][metric], whole["fits"][metric], strict=True))
        apart = [one["exponent"] - other["exponent"] for one, other in pairs]
        inside = [
            one["interval"][0] <= other["exponent"] <= one["interval"][1] for one, other in pairs
        ]
        wider = [
            np.diff(one["interval"])[0] / np.diff(other["interval"])[0] for one, other in pairs
        ]
        results[metric] = {
            "largest difference": round(max(map(abs, apart)), 4),
            "inside": f"{sum(inside)} of {len(inside)}",
            "intervals wider by": round(float(np.median(wider)), 2),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the runs are stored")
    parser.add_argument("--largest", type=int, default=30_000, help="largest size")
    parser.add_argument("--precision", type=float, default=0.02)
    parser.add_argument("--seeds", default="0", help="with commas")
    parser.add_argument("--without-all", action="store_true", help="the early ending alone")
    options = parser.parse_args()
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for seed in map(int, options.seeds.split(",")):
        place = options.folder / f"{options.largest}-{seed}"
        result, seconds = run(place / "precision", options.largest, seed, options.precision)
        row: dict[str, Any] = {"precision": options.precision, "early": told(result)}
        row["early"]["cpu seconds"] = seconds
        if not options.without_all:
            whole, seconds = run(place / "all", options.largest, seed, None)
            row["all"] = told(whole) | {"cpu seconds": seconds}
            row["compared"] = compared(row["early"], row["all"])
        stored[f"{options.largest}, seed {seed}"] = row
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(options.largest, seed, row["early"]["replicates"], row.get("compared"))


if __name__ == "__main__":
    main()
