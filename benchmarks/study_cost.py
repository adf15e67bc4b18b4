"""What ``esscher paper`` costs at a scale: CPU seconds of a part of it, and what all would take.

Of every measurement one unit of each kind is measured, with few replicates or passages; the rest
follows by their number.

    python -m benchmarks.study_cost --scale paper
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from esscher.runs.executors import call_alone
from esscher.studies.paper.claims import MEASUREMENTS
from esscher.studies.paper.heads import loaded_model
from esscher.studies.paper.study import PaperStudy

RESULTS = Path(__file__).parent / "results" / "study_cost.json"
#: Options that tell units apart only by their number, not by their cost.
NUMBERS = ("first", "part", "head", "layer", "passage", "start")
#: What is measured of a unit instead of all: its cost is proportional to these.
FEW = {"replicates": 2, "passages": 6}


def kind(unit: dict[str, Any]) -> str:
    """What a unit's cost depends on."""
    return json.dumps({key: value for key, value in unit.items() if key not in NUMBERS})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="paper", choices=("quick", "standard", "paper"))
    parser.add_argument("--only", nargs="*", default=list(MEASUREMENTS))
    asked = parser.parse_args()
    settings = PaperStudy(scale=asked.scale).known()
    loaded_model(settings.encoder), loaded_model(settings.decoder)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked.only:
        units = list(MEASUREMENTS[name].units(settings))
        kinds: dict[str, list[dict[str, Any]]] = {}
        for unit in units:
            kinds.setdefault(kind(unit), []).append(unit)
        seconds = 0.0
        for same in kinds.values():
            unit = dict(same[0])
            share = 1.0
            for option, few in FEW.items():
                if unit.get(option, 0) > few:
                    share = unit[option] / few
                    unit[option] = few
            start = time.process_time()
            call_alone(MEASUREMENTS[name].measure, unit, settings)
            seconds += (time.process_time() - start) * share * len(same)
        known.setdefault(asked.scale, {})[name] = {
            "units": len(units),
            "cpu_hours": round(seconds / 3600, 3),
        }
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{name}: {len(units)} units, {seconds / 3600:.2f} CPU hours", flush=True)


if __name__ == "__main__":
    main()
