"""Check that a change of the code leaves every number where it was.

Small runs of every study with fixed seeds: laws, a tiny encoder and a tiny decoder with grouped
queries. Every value of their results is stored by its path; after a change each one has to be equal
to the bit. Values that are no longer there, and new ones, are listed by path; a number with many
digits that stands at another path now has moved.

    python -m benchmarks.same_numbers store before.json.xz    # with the old code
    python -m benchmarks.same_numbers compare before.json.xz  # with the new code

``benchmarks/results/same_numbers.json.xz`` is what both do without a file. Sums depend on the
processor's instructions and the number of threads in their last bits: on another machine, or with
another OMP_NUM_THREADS, store first.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.runs.made import random_text, wrapped

import esscher
from esscher.cli import main as program

REFERENCE = Path(__file__).parent / "results" / "same_numbers.json.xz"
#: Fields that say when and where, not what.
PASSING = {"schema", "created", "git_revision", "command", "versions", "seconds", "out", "folder"}
#: How many paths of a kind are printed.
SHOWN = 40


def encoder() -> Any:
    return wrapped("bert", "bert")


def decoder(positions: int = 160, strength: float = 12.0) -> Any:
    return wrapped("llama", "llama", max_position_embeddings=positions, strength=strength)


def printed(words: str) -> Any:
    """What a command prints with ``--json``."""
    done = CliRunner().invoke(program, [*words.split(), "--json"], catch_exceptions=False)
    if done.exit_code:
        raise RuntimeError(f"esscher {words}: {done.output}")
    return json.loads(done.stdout)


def resumed(out: Path) -> Any:
    """A run of two workers in a directory, read back."""
    options = {"context": 62, "layers": [0, 2], "heads": [1], "tokens": 600}
    esscher.tails(encoder(), random_text(), workers=2, out=out, **options)
    return esscher.load(out)


#: The runs by name: each returns a result, or what a command printed.
RUNS: dict[str, Callable[[Path], Any]] = {
    "theory": lambda _: printed("theory --horizon 1.5 --sizes 1e3:1e8 --queries population"),
    "theory-tokens": lambda _: printed("theory --horizon 0.8 --dim 3 --sizes 1e2:1e4"),
    "theory-spectrum": lambda _: printed(
        "theory --spectrum 1.5,0.7 --tau 0.3 --sizes 1e2:1e4 --queries population"
    ),
    "theory-sphere": lambda _: printed("theory --law sphere --dim 4 --horizon 1 --sizes 1e2:1e4"),
    "sweep": lambda _: esscher.sweep(
        esscher.gaussian_head(0.8, 3), (100, 200, 400, 800), 8, alpha=(0.5, 1.0), predict=True
    ),
    "sweep-sphere": lambda _: esscher.sweep(
        esscher.law_head(esscher.laws.Sphere(4), horizon=1.0), (50, 150, 400), 8
    ),
    "sweep-population": lambda _: esscher.sweep(
        esscher.gaussian_head(0.5, 2), (100, 300, 900), 6, queries="population", query_count=100
    ),
    "sweep-reference": lambda _: esscher.sweep(
        esscher.law_head(esscher.laws.StudentT(2, 6.0), horizon=0.5),
        (100, 300, 900),
        4,
        reference_tokens=2000,
        dtype="float64",
    ),
    "paper": lambda _: esscher.paper(("limit", "moments", "reference"), progress=False),
    "probe-encoder": lambda _: esscher.probe(
        encoder(),
        random_text(),
        tokens=600,
        context=62,
        layers=[0, 2],
        heads=[0, 1],
        replicates=6,
        sizes=(16, 32, 64, 128),
    ),
    "probe-decoder": lambda _: esscher.probe(
        decoder(),
        random_text(),
        tokens=300,
        context=150,
        layers=[1],
        sizes=(8, 16, 32, 64),
        replicates=6,
        mode="context",
    ),
    "probe-predicted": lambda _: esscher.probe(
        decoder(),
        random_text(),
        tokens=600,
        context=150,
        layers=[0],
        mode="pooled",
        predict=True,
        sizes=(16, 32, 64),
    ),
    "sparse-law": lambda _: esscher.sparse_law(
        "gaussian",
        horizon=0.5,
        dim=2,
        tokens=256,
        replicates=8,
        query_count=16,
        budgets=[16, 32, 64],
    ),
    "sparse-encoder": lambda _: esscher.sparse(
        encoder(),
        random_text(),
        context=72,
        passages=4,
        query_count=8,
        budgets=[8, 16, 32],
        layers=[0],
        heads=[0, 1],
        patterns="window,corrected,topk,linformer",
    ),
    "sparse-decoder": lambda _: esscher.sparse(
        decoder(),
        random_text(),
        context=72,
        passages=4,
        query_count=8,
        budgets=[8, 16, 32],
        layers=[0],
        heads=[0, 1],
        patterns="all",
    ),
    "deep-stack": lambda _: esscher.deep_stack(
        depth=2, dim=2, horizon=0.4, sizes=[32, 64, 128], replicates=6
    ),
    "deep-encoder": lambda _: esscher.deep(
        encoder(), random_text(), context=48, passages=2, draws=2, sizes=[4, 10, 28]
    ),
    "deep-decoder": lambda _: esscher.deep(
        decoder(),
        random_text(),
        context=48,
        passages=2,
        draws=2,
        sizes=[4, 10, 28],
        terciles="layer",
    ),
    "tails-encoder": resumed,
    "tails-decoder": lambda _: esscher.tails(
        decoder(), random_text(), tokens=600, context=150, layers=[0], heads=[0, 3]
    ),
    "domains-encoder": lambda _: esscher.domains(
        encoder(),
        {"one": random_text(1), "two": random_text(2)},
        blocks=6,
        block_tokens=120,
        context=62,
        layers=[0],
        heads=[0, 3],
    ),
    "domains-decoder": lambda _: esscher.domains(
        decoder(),
        {"one": random_text(1), "two": random_text(2)},
        blocks=6,
        context=100,
        layers=[0, 1],
        heads=[0, 3],
        mode="context",
    ),
    "context-decoder": lambda _: esscher.context(
        decoder(512), random_text(), context=128, passages=2, query_count=8
    ),
    "plan-decoder": lambda _: esscher.plan(
        decoder(),
        random_text(1),
        check=random_text(2),
        budget=0.5,
        prefix=120,
        query_count=12,
        passages=2,
        check_passages=3,
    ),
    "plan-tasks": lambda _: esscher.plan(
        decoder(600, 6.0),
        random_text(1),
        check=random_text(2),
        budget=0.25,
        prefix=224,
        query_count=12,
        passages=3,
        check_passages=2,
        against="snapkv,adakv,streaming,kvzip",
        tasks="values,needle",
        task_items=2,
    ),
    "plan-topk": lambda _: esscher.plan(
        decoder(),
        random_text(1),
        check=random_text(2),
        budget=0.5,
        prefix=120,
        query_count=12,
        passages=2,
        check_passages=2,
        selection="topk",
        score="last",
    ),
    "plan-repeat": lambda _: esscher.plan(
        decoder(320),
        random_text(1),
        check=random_text(2),
        tolerance=0.3,
        prefix=120,
        query_count=12,
        passages=2,
        check_passages=2,
        score="repeat",
        selection="sample",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["store", "compare"])
    parser.add_argument("file", type=Path, nargs="?", default=REFERENCE)
    parser.add_argument("--only", help="names of runs, with commas")
    given = parser.parse_args()
    names = list(RUNS) if given.only is None else given.only.split(",")
    after = {name: leaves_of(name) for name in names}
    if given.step == "store":
        given.file.write_bytes(lzma.compress(json.dumps(after).encode(), preset=9))
        print(f"{sum(map(len, after.values()))} values, {given.file.stat().st_size} bytes")
        return 0
    before = json.loads(lzma.decompress(given.file.read_bytes()))
    return compare({name: before.get(name, {}) for name in names}, after)


def leaves_of(name: str) -> dict[str, Any]:
    """Make a run; return its values by path."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        result = RUNS[name](Path(place) / "run")
    tree = result.to_dict() if hasattr(result, "to_dict") else result
    # as JSON has it, so that what is stored and what is new are of the same types
    measured = dict(leaves(json.loads(json.dumps(tree))))
    print(f"{name}: {len(measured)} values, {time.monotonic() - start:.1f} s", flush=True)
    return measured


def leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a JSON tree with its path."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name not in PASSING:
                yield from leaves(value, f"{place}.{name}" if place else name)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{place}[{index}]")
    else:
        yield place, tree


def compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> int:
    """Print what differs, has moved, is gone and is new; return 1 if a value differs."""
    changed = 0
    for name, old in before.items():
        new = after[name]
        other = [p for p in old.keys() & new.keys() if not same(old[p], new[p])]
        equal = len(old.keys() & new.keys()) - len(other)
        print(f"{name}: {equal} of {len(old)} values equal, {len(other)} different")
        show("different", [f"{p}: {old[p]!r} before, {new[p]!r} after" for p in sorted(other)])
        numbers = {value for value in new.values() if isinstance(value, float)}
        gone = old.keys() - new.keys()
        moved = {p for p in gone if telling(old[p]) and old[p] in numbers}
        show("moved", kinds(moved))
        show("removed", kinds(gone - moved))
        show("new", kinds(new.keys() - old.keys()))
        changed += len(other)
    print("every value that is still there is equal" if not changed else f"{changed} differ")
    return min(changed, 1)


def telling(value: Any) -> bool:
    """Whether a value is a number with so many digits that no other one equals it by chance."""
    return isinstance(value, float) and len(repr(value).strip("-0.").replace(".", "")) > 8


def kinds(paths: set[str]) -> list[str]:
    """Paths without their indices, with how many there are of each."""
    counts = Counter(re.sub(r"\[\d+\]", "[]", path) for path in paths)
    return [f"{path} ({count})" for path, count in sorted(counts.items())]


def show(what: str, lines: list[str]) -> None:
    for line in lines[:SHOWN]:
        print(f"  {what} {line}")
    if len(lines) > SHOWN:
        print(f"  and {len(lines) - SHOWN} more {what}")


def same(one: Any, two: Any) -> bool:
    """Whether two values of JSON are equal."""
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return type(one) is type(two) and bool(one == two)


if __name__ == "__main__":
    sys.exit(main())
