"""Check that a change of the code leaves every number where it was.

Quick runs of every kind with fixed seeds are made by two revisions; every cell then has to be equal
to the bit, and every field of the results equal in value:

    git worktree add /tmp/before REVISION
    PYTHONPATH=/tmp/before/src python benchmarks/same_numbers.py make /tmp/a
    python benchmarks/same_numbers.py make /tmp/b
    python benchmarks/same_numbers.py compare /tmp/a /tmp/b

Both must be made on one machine: sums depend on the processor's instructions in their last bits.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import esscher

#: Runs with a directory: their cells and results are compared.
RUNS = {
    "sweep": "sweep gaussian --dim 3 --horizon 0.8 --alpha 0.5:1:2 --sizes 100:2000:5 "
    "--replicates 12",
    "sweep-precision": "sweep sphere --dim 4 --horizon 1 --sizes 50:1000:4 --precision 0.1 "
    "--replicates 8",
    "sweep-population": "sweep gaussian --dim 2 --horizon 0.5 --sizes 100:1000:4 --replicates 8 "
    "--queries population --query-count 200",
    "sweep-reference": "sweep student --dim 2 --horizon 0.5 --sizes 100:800:4 --replicates 6 "
    "--reference-tokens 4000 --dtype float64",
    "probe": "probe demo:minilm --tokens 1500 --layers 0,2 --heads 0-2 --replicates 8",
    "probe-context": "probe demo:smollm2 --mode context --tokens 2000 --layers 0 --heads 0-3",
    "plan": "plan demo:smollm2 --budget 0.25 --prefix 256 --passages 2 --check demo:code "
    "--check-passages 2",
    "plan-encoder": "plan demo:minilm --budget 0.5 --prefix 128 --passages 2 --check demo:code "
    "--check-passages 3",
    "context": "context demo:smollm2 --context 512 --passages 2",
    "tails": "tails demo:minilm --tokens 2100 --layers 0,3 --heads 0,5",
    "tails-decoder": "tails demo:smollm2 --tokens 2100 --layers 0 --heads 0,5",
    "sparse-law": "sparse-law gaussian --horizon 0.5 --dim 2 --tokens 512 --replicates 8 "
    "--query-count 64 --budgets 16,32,64",
    "sparse-model": "sparse demo:minilm --layers 0 --heads 0,1 --context 256 --passages 3 "
    "--query-count 32 --budgets 16:128:4",
    "deep-stack": "deep-stack --depth 2 --dim 2 --horizon 0.4 --sizes 32:256:4 --replicates 6",
    "deep-model": "deep demo:minilm --passages 2 --draws 3",
    "domains": "domains demo:minilm --text docs=demo:docs --text code=demo:code "
    "--layers 0 --heads 0-2 --blocks 3 --block-tokens 1024",
}  # fmt: skip
#: Words of these commands that were others before studies were of types, to run such a revision.
RENAMED: dict[str, dict[str, str]] = {
    "sparse-law": {"sparse-law": "sparse", "--query-count": "--queries"},
    "sparse-model": {"--query-count": "--queries"},
    "deep-stack": {"deep-stack": "deep gaussian"},
    "context": {"context": "plan", "--context": "--context --prefix"},
}
#: Commands that only print: what they print as JSON is compared.
PRINTED = {
    "theory": "theory --horizon 1.5 --sizes 1e3:1e8 --queries population --json",
    "theory-spectrum": "theory --spectrum 1.5,0.7,0.2 --tau 0.3 --sizes 1e2:1e5 "
    "--queries population --json",
    "hardmax": "hardmax --dim 3 --sizes 1e2:1e4 --json",
    "reproduce": "reproduce hardmax --scale quick --json",
}
#: Fields that were added, and such that follow from others; the rest has to be where it was.
ADDED = {
    "cells", "kind", "headline", "law", "predictions", "run", "configuration.replicates",
    "configuration.precision", "configuration.max_replicates", "configuration.predict",
    "configuration.exponents", "configuration.permutations", "limit", "eligible", "terciles",
    "configuration.queries",
}  # fmt: skip
DERIVED = {
    "configuration.sizes", "configuration.length", "configuration.draws",
    "configuration.keeping.sinks", "configuration.keeping.recent",
}  # fmt: skip
#: Fields that are gone.
GONE = {"configuration.layout", "configuration.stack", "configuration.engine"}
#: Fields that moved: where a value stands now, and where it stood.
MOVED = {
    "configuration.model.weight_hash": "configuration.weight_hash",
    "configuration.model.weight_sample": "configuration.weight_sample",
    "configuration.text.source": "configuration.text",
    "configuration.text.hash": "configuration.text_hash",
    "configuration.texts": "configuration.corpora",
    "configuration.fdr": "alpha",
    "configuration.sampled": "configuration.measure",
    "configuration.query_count": "configuration.queries",
}
#: A plan had records of its texts before the others did.
TEXTS = {f"configuration.text.{name}": f"configuration.text.{name}" for name in ("source", "hash")}
#: The same in one run only.
MOVED_IN = {
    "plan": TEXTS,
    "plan-encoder": TEXTS,
    "deep-model": {
        "sizes": "budgets",
        "configuration.sizes": "configuration.budgets",
        "configuration.keys": "configuration.modes",
        "terciles.keys": "terciles.mode",
    },
}
#: Values that are written in another way now.
WRITTEN = {
    ("kind", "sparse-law"): "sparse",
    ("kind", "deep-stack"): "deep",
    ("configuration.keys", "both"): ["independent", "shared"],
}
#: Fields that say when and where, not what.
PASSING = {
    "schema", "created",
    "git_revision", "command", "versions", "seconds", "out", "folder", "sha256",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    make = steps.add_parser("make", help="make the runs")
    make.add_argument("folder", type=Path)
    make.add_argument("--only", help="names, with commas")
    compare = steps.add_parser("compare", help="compare two folders")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.step == "make":
        return make_runs(asked.folder, asked.only)
    return compare_runs(asked.before, asked.after)


def make_runs(folder: Path, only: str | None) -> int:
    """Run every command; return how many failed."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = None if only is None else set(only.split(","))
    failed = 0
    for name, words in (RUNS | PRINTED).items():
        printed = folder / f"{name}.json"
        if printed.exists() or (wanted is not None and name not in wanted):
            continue
        before = {} if hasattr(esscher, "load") else RENAMED.get(name, {})
        asked = " ".join(before.get(word, word) for word in words.split())
        command = [sys.executable, "-m", "esscher", *asked.split()]
        if name in RUNS:
            command += ["--out", str(folder / name), "--json"]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(f"{name}: exit {done.returncode}, {time.monotonic() - start:.0f} s", flush=True)
        if done.returncode:
            print(done.stderr[-2000:], flush=True)
            failed += 1
        else:
            printed.write_text(done.stdout)
    return failed


def compare_runs(before: Path, after: Path) -> int:
    """Print every difference; return 1 if there are any."""
    names = [name for name in RUNS | PRINTED if (before / f"{name}.json").exists()]
    found = 0
    for name in names:
        if not (after / f"{name}.json").exists():
            print(f"{name}: not made after the change")
            found += 1
            continue
        differences = list(differences_of(name, before, after))
        print(f"{name}: {'the same' if not differences else f'{len(differences)} differences'}")
        for line in differences[:20]:
            print(f"  {line}")
        found += len(differences)
    return min(found, 1)


def differences_of(name: str, before: Path, after: Path) -> Iterator[str]:
    """Differences of one run: what it printed, its results, its cells."""
    moved = MOVED | MOVED_IN.get(name, {})

    def compare(left: Path, right: Path, place: str) -> Iterator[str]:
        return trees(read(left, {}), read(right, moved), place)

    yield from compare(before / f"{name}.json", after / f"{name}.json", "printed")
    if name not in RUNS:
        return
    one, two = before / name, after / name
    yield from compare(one / "results.json", two / "results.json", "results")
    if (one / "limit.npz").exists() and (two / "parts" / "limit.json").exists():
        yield from sweep_differences(one, two)
        return
    cells = sorted(path.name for path in (one / "parts").iterdir())
    others = sorted(path.name for path in (two / "parts").iterdir())
    if cells != others:
        yield f"cells {cells} and {others}"
        return
    for cell in cells:
        left, right = one / "parts" / cell, two / "parts" / cell
        if cell.endswith(".parquet"):
            if not pd.read_parquet(left).equals(pd.read_parquet(right)):
                yield f"{cell}: other numbers"
        else:
            yield from compare(left, right, cell)


def sweep_differences(one: Path, two: Path) -> Iterator[str]:
    """Differences of the cells of a sweep from those of before it was a study like others."""
    before = {f"replicate-{path.stem}": path for path in (one / "parts").iterdir()}
    after = {path.stem: path for path in (two / "parts").glob("replicate-*.parquet")}
    if before.keys() != after.keys():
        yield f"replicates {sorted(before)} and {sorted(after)}"
        return
    for name, path in before.items():
        if not pd.read_parquet(path).equals(pd.read_parquet(after[name])):
            yield f"{name}: other numbers"
    limit = np.load(one / "limit.npz")
    about = json.loads((two / "parts" / "limit.json").read_text())["about"]
    covariance = pd.read_parquet(two / "parts" / "limit.parquet")["covariance"].to_numpy()
    if not np.array_equal(limit["covariances"].ravel(), covariance):
        yield "limit: other covariances"
    for name in ("means", "methods", "mean_error", "cov_error"):
        if limit[name].tolist() != about[name]:
            yield f"limit: other {name}"
    predicted = json.loads((one / "predictions.json").read_text())["scales"]
    found = json.loads((two / "parts" / "predictions.json").read_text())["about"]["scales"]
    yield from trees(predicted, found, "predictions")


def read(path: Path, moved: dict[str, str]) -> Any:
    """Contents of a JSON file."""
    tree = json.loads(path.read_text())
    return flat(tree, moved) if isinstance(tree, dict) else tree


def flat(tree: dict[str, Any], moved: dict[str, str], place: str = "") -> dict[str, Any]:
    """Fields of nested objects by their path, as they were called before they moved."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{place}{name}"
        if name in PASSING:
            continue
        if isinstance(value, dict):
            found |= flat(value, moved, f"{path}.")
        elif path not in GONE:
            before = moved.get(path, path)
            parent, _, own = before.rpartition(".")
            taken = parent == place.rstrip(".") and own in tree  # another field has that name
            known = isinstance(value, str)
            written = WRITTEN.get((path, value), value) if known else value
            found[path if taken else before] = written
    return found


def trees(one: Any, two: Any, place: str) -> Iterator[str]:
    """Fields in which two JSON values differ; numbers must be equal to the bit."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            if key in PASSING:
                continue
            if key not in one and (key in ADDED or two[key] is None):
                continue
            if key not in two and (key in DERIVED or key in GONE):
                continue
            if key == "configuration.prefix" and one.get(key) == 0:
                continue  # of an encoder: its passage stood in length, and stands in prefix
            if key not in one or key not in two:
                yield f"{place}.{key} only {'before' if key in one else 'after'}"
            else:
                yield from trees(one[key], two[key], f"{place}.{key}")
    elif isinstance(one, list) and isinstance(two, list):
        if len(one) != len(two):
            yield f"{place} has {len(one)} entries before, {len(two)} after"
        for index, (left, right) in enumerate(zip(one, two, strict=False)):
            yield from trees(left, right, f"{place}[{index}]")
    elif not same(one, two):
        yield f"{place}: {one!r} before, {two!r} after"


def same(one: Any, two: Any) -> bool:
    """Whether two values of JSON are equal; 1 and 1.0 are."""
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return (type(one) is type(two) and one == two) or (
        isinstance(one, int | float) and isinstance(two, int | float) and float(one) == float(two)
        and not isinstance(one, bool) and not isinstance(two, bool)
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
