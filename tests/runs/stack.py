"""A run without a model, here or as a command: ``python -m tests.runs.stack stack --out RUN``.

Its replicates take some 20 ms each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

import esscher
from esscher.cli import main

REPLICATES = 60
#: Commands import Esscher and these tests from where this process has them.
PLACES = (Path(esscher.__file__).parents[1], Path(__file__).parents[2])
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(map(str, PLACES)),
    "OMP_NUM_THREADS": "1",
}


def run_stack(out: Path | None = None, replicates: int = REPLICATES, **options: Any) -> Any:
    """Measure a small stack of layers."""
    sizes = [50, 200, 1500]
    return esscher.deep_stack(
        depth=3, dim=4, horizon=0.4, sizes=sizes, replicates=replicates, seed=7, out=out, **options
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path))
@click.option("--workers", type=int, default=1)
@click.option("--replicates", type=int, default=REPLICATES)
@click.option("--scheduler")
def stack(out: Path | None, workers: int, replicates: int, scheduler: str | None) -> None:
    """Measure a small stack of layers, and print nothing."""
    from esscher.runs.executors import chosen_executor

    with chosen_executor(workers, scheduler=scheduler) as executor:
        run_stack(out, replicates, executor=executor)


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runs.stack", "stack", "--out", str(out), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(out.parent)},
        start_new_session=True,
    )


def stored(out: Path) -> dict[str, bytes]:
    """Return the cells of a run as they are stored, by the names of their files."""
    return {path.name: path.read_bytes() for path in (out / "parts").glob("[!.]*")}


def wait_for_more(process: subprocess.Popen[str], out: Path, more: int = 1) -> None:
    """Wait until the command has stored some more cells, or has ended."""
    goal, end = len(stored(out)) + more, time.monotonic() + 120
    while len(stored(out)) < goal and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)


if __name__ == "__main__":
    main.add_command(stack)
    main(prog_name="esscher")
