"""Plans at three budgets, calibrated on half an encyclopedia, checked on the other half and more.

    python -m benchmarks.budgets DATA MODEL --out FOLDER

DATA is a folder with wikipedia-en.txt and biomedical-en.txt; code comes with Esscher. Every plan is
a run of its own, FOLDER/TEXT/BUDGET, and resumes where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import esscher
from esscher.engine.models.choice import ModelLike
from esscher.engine.text.documents import TextSource

CALIBRATION, OTHER = "wikipedia-en.txt", "biomedical-en.txt"
BUDGETS = (0.125, 0.25, 0.5)


def make_plans(
    model: ModelLike,
    text: TextSource,
    checks: Mapping[str, TextSource],
    out: Path,
    budgets: Sequence[float] = BUDGETS,
    **options: Any,
) -> None:
    """Plan at every budget, and check each plan on every text.

    Parameters
    ----------
    model, text, options
        As for :func:`esscher.plan`.
    checks
        Unseen texts, by name.
    out
        Folder of the runs.
    budgets
        Shares of the tokens kept.
    """
    for name, other in checks.items():
        for budget in budgets:
            place = out / name / f"{budget:g}"
            esscher.plan(model, text, check=other, budget=budget, out=place, **options)


def halves(path: Path) -> tuple[str, str]:
    """A text cut at the blank line behind its middle."""
    text = path.read_text(encoding="utf-8")
    cut = text.index("\n\n", len(text) // 2)
    return text[:cut], text[cut:]


def main() -> None:
    """Make the plans of one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the texts")
    parser.add_argument("model", help="model, such as demo:smollm2")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    options = parser.parse_args()
    first, second = halves(options.data / CALIBRATION)
    checks: dict[str, TextSource] = {
        "encyclopedia": [second],
        "biomedical": options.data / OTHER,
        "code": "demo:code",
    }
    make_plans(options.model, [first], checks, options.out)


if __name__ == "__main__":
    main()
