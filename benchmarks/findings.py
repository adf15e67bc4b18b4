"""Redo docs/findings.md: run what is missing, write its tables to benchmarks/results.

    python -m benchmarks.findings DATA [--runs FOLDER] [--only sparse,tails]

DATA is a folder with the corpora named in ``CORPORA`` (plain text files); those that are missing
are left out. Runs are resumed where they were stopped, and nothing is run twice. On 2 cores
everything takes several hours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import esscher

#: Names of corpora and their files.
CORPORA = {
    "encyclopedia": "wikipedia-en.txt",
    "biomedical": "biomedical-en.txt",
    "novel": "novel-en.txt",
    "german": "technical-de.txt",
    "french": "technical-fr.txt",
    "japanese": "technical-ja.txt",
    "chinese": "technical-zh_CN.txt",
}
MODELS = {"minilm": "demo:minilm", "smollm2": "demo:smollm2"}
RESULTS = Path(__file__).parent / "results"


def studies(data: Path) -> dict[str, Callable[..., Any]]:
    """Return every study of the page by name, as a function of the folder of its run."""
    texts = {name: data / file for name, file in CORPORA.items() if (data / file).exists()}
    texts["code"] = "demo:code"
    return {
        "sparse-gaussian": partial(esscher.sparse_law, "gaussian", horizon=0.7, dim=8),
        "sparse-minilm": partial(esscher.sparse, "demo:minilm"),
        "sparse-smollm2": partial(esscher.sparse, "demo:smollm2", context=2048),
        "deep-gaussian": partial(esscher.deep_stack, depth=24),
        **{f"deep-{name}": partial(esscher.deep, model) for name, model in MODELS.items()},
        **{f"tails-{name}": partial(esscher.tails, model) for name, model in MODELS.items()},
        "manyheads-minilm": partial(esscher.probe, "demo:minilm"),
        "manyheads-smollm2": partial(
            esscher.probe, "demo:smollm2", mode="context", context=1024, tokens=2048
        ),
        **{
            f"domains-{name}": partial(esscher.domains, model, texts)
            for name, model in MODELS.items()
        },
    }


def scripts(data: Path, runs: Path) -> dict[str, list[list[str]]]:
    """Return the scripts that measure plans, by name."""
    cache = runs / "cache-smollm2"
    return {
        "budgets": [["benchmarks.budgets", str(data), "demo:smollm2", "--out", str(runs / "b")]],
        "cache": [
            ["benchmarks.texts", str(data), str(runs / "texts")],
            [
                "benchmarks.cache",
                str(runs / "texts"),
                "--model",
                "demo:smollm2",
                "--out",
                str(cache),
            ],
            ["benchmarks.cache_tables", str(cache)],
        ],
    }


def main() -> None:
    """Run everything, or what was named; write tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the corpora")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--only", help="beginnings of names, such as sparse,tails")
    options = parser.parse_args()
    wanted = tuple((options.only or "").split(","))
    for name, study in studies(options.data).items():
        if name.startswith(wanted):
            result = study(out=options.runs / name)
            path = RESULTS / f"{name}.csv"
            table = result.table("layers" if name.startswith("manyheads") else None)
            table.to_csv(path, index=False, lineterminator="\n", float_format="%.6g")
            print(path)
    for name, lines in scripts(options.data, options.runs).items():
        if name.startswith(wanted):
            for line in lines:
                subprocess.run([sys.executable, "-m", *line], check=True)


if __name__ == "__main__":
    main()
