"""Plans at three budgets, calibrated on half an encyclopedia, checked on the other half and more.

    python benchmarks/budgets.py DATA MODEL --out RUN

DATA is a folder with wikipedia-en.txt and biomedical-en.txt; code comes with Esscher. Resumes where
it was stopped. On 2 cores demo:smollm2 takes half an hour, demo:minilm ten minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from esscher.engine.text import TextSource
from esscher.studies.reproduce.budgets import budget_study

CALIBRATION, OTHER = "wikipedia-en.txt", "biomedical-en.txt"


def halves(path: Path) -> tuple[str, str]:
    """A text cut at the blank line behind its middle."""
    text = path.read_text(encoding="utf-8")
    cut = text.index("\n\n", len(text) // 2)
    return text[:cut], text[cut:]


def main() -> None:
    """Run the study of one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the texts")
    parser.add_argument("model", help="model, such as demo:smollm2")
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    options = parser.parse_args()
    first, second = halves(options.data / CALIBRATION)
    checks: dict[str, TextSource] = {
        "encyclopedia": [second],
        "biomedical": options.data / OTHER,
        "code": "demo:code",
    }
    budget_study(options.model, [first], checks, out=options.out)


if __name__ == "__main__":
    main()
