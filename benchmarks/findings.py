"""Findings on real models and corpora: run what is missing, write the pages of docs/findings.

    python -m benchmarks.findings DATA [--runs FOLDER] [--only sparse,tails] [--pages]

DATA is a folder with the corpora named in ``CORPORA`` (plain text files); those that are missing
are left out, and the page says so by what it shows. Runs are resumed where they were stopped, and
nothing is run twice. With ``--pages`` nothing is run: pages are made from the runs that are there,
those on caches otherwise from the results that lie beside them.
On 2 cores everything takes several hours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.finding import Finding
from benchmarks.pages.budgets import budgets_finding
from benchmarks.pages.cache import cache_finding
from benchmarks.pages.cache_lengths import lengths_finding
from benchmarks.pages.cache_rows import ROWS
from benchmarks.pages.cache_tasks import tasks_finding
from benchmarks.pages.manyheads import manyheads_finding
from benchmarks.pages.sparse import sparse_finding
from benchmarks.pages.tails import tails_finding

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
PAGES = Path(__file__).parents[1] / "docs" / "findings"


#: Probes, for every page that is made of them.
PROBES = {
    "probe-minilm": ["probe", "demo:minilm"],
    "probe-smollm2": [
        *("probe", "demo:smollm2", "--mode", "context"),
        *("--context", "1024", "--tokens", "2048"),
    ],
}


def commands(data: Path) -> dict[str, dict[str, list[str]]]:
    """The command line of every run, by finding and name."""
    return {
        "sparse": {
            "sparse-gaussian": ["sparse-law", "gaussian", "--horizon", "0.7", "--dim", "8"],
            "sparse-ar1": [
                *("sparse-law", "gaussian", "--horizon", "0.7", "--dim", "8"),
                *("--correlation", "0.9"),
            ],
            "sparse-minilm": ["sparse", "demo:minilm"],
            "sparse-smollm2": ["sparse", "demo:smollm2", "--context", "2048"],
        },
        "tails": {f"tails-{name}": ["tails", model] for name, model in MODELS.items()},
        "manyheads": PROBES,
    }


def studies(data: Path) -> dict[str, dict[str, list[str]]]:
    """The same for studies that have scripts of their own."""
    script = ["-m", "benchmarks.budgets"]
    cache = ["-m", "benchmarks.cache", str(data), "--model", MODELS["smollm2"]]
    return {
        "budgets": {"budgets-smollm2": [*script, str(data), MODELS["smollm2"]]},
        "cache": {"cache-smollm2": [*cache, "--part", "curves,ablation,small"]},
        # measured once, from a file that does not come with Esscher
        "cache-gemma3": {},
        "cache-lengths": {"cache-smollm2": [*cache, "--part", "lengths"]},
        "cache-tasks": {"cache-smollm2": [*cache, "--part", "tasks"]},
    }


WRITERS: dict[str, Callable[[Sequence[Path]], Finding]] = {
    "sparse": sparse_finding,
    "tails": tails_finding,
    "manyheads": manyheads_finding,
    "budgets": budgets_finding,
    "cache": cache_finding,
    "cache-gemma3": partial(cache_finding, name="cache-gemma3"),
    "cache-lengths": lengths_finding,
    "cache-tasks": tasks_finding,
}


def main() -> None:
    """Run, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the corpora")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--only", help="findings, such as sparse,tails")
    parser.add_argument("--pages", action="store_true", help="write pages, run nothing")
    options = parser.parse_args()
    every = {
        finding: {name: ["-m", "esscher", *command, "--json"] for name, command in wanted.items()}
        for finding, wanted in commands(options.data).items()
    } | studies(options.data)
    chosen = list(every) if options.only is None else options.only.split(",")
    for finding in chosen:
        folders = []
        for name, command in every[finding].items():
            folder = options.runs / name
            if not options.pages:
                line = [sys.executable, *command, "--out", str(folder)]
                subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            if any(folder.rglob("results.json")):
                folders.append(folder)
        if options.pages and not folders and any((PAGES / finding).glob(f"*{ROWS}.csv")):
            folders = [PAGES / finding]
        if folders:
            page = WRITERS[finding](folders).write(PAGES / finding, formats=("png",))
            print(page)


if __name__ == "__main__":
    main()
