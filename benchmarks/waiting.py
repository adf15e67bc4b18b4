"""What people wait for: CPU seconds and peak memory of whole commands, and ratios inside one run.

Every command is run as a user runs it, in a process of its own, on one thread. Seconds are those of
the processor (user and system), and the more telling number is a ratio to something measured in the
same run:

* ``torch``: ``python -c 'import torch'``, which every command with attention waits for,
* ``textbook``: a straightforward script of the same sweep, which materialises the logits,
* ``gemm``: the flops of the passes, 4 n^2 d each, at the speed of a square float32 product.

A run is compared with the stored one: a row is slower if its smallest ratio is above the largest
stored one, so by more than the spread of both.

    python -m benchmarks.waiting                  # measure, compare with benchmarks/results
    python -m benchmarks.waiting --store          # and keep these rows as the stored ones
    python -m benchmarks.waiting --only help,sweep --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "waiting.json"
#: The sweep of the table: dimension, sizes and replicates.
DIM, SIZES, REPLICATES = 50, (500, 743, 1104, 1641, 2438, 3623, 5383, 8000), 10
#: Width of the square product whose speed is that of the machine.
GEMM = 2048


@dataclass(frozen=True)
class Row:
    """A command: its words, what its seconds are compared with, and how often it is run.

    ``told``: the command prints the seconds itself, of something that it measures.
    """

    words: Sequence[str]
    against: str = "torch"
    repeats: int = 5
    told: bool = False


def _esscher(line: str, **options: object) -> Row:
    return Row([sys.executable, "-m", "esscher", *line.split()], **options)  # type: ignore[arg-type]


def _opening(part: str) -> Row:
    """A report of 270 heads, written or opened."""
    words = [sys.executable, "-m", "benchmarks.opening", "--only", part]
    return Row(words, repeats=3, told=True)


SWEEP = f"sweep gaussian --dim {DIM} --horizon 1 --sizes 500:8000:8 --replicates {REPLICATES}"
#: What is measured, by name. Studies of models come with the peak of their memory.
ROWS = {
    "help": _esscher("--help"),
    "version": _esscher("--version"),
    "help of a command": _esscher("sweep --help"),
    "sweep": _esscher(SWEEP, against="textbook", repeats=3),
    "passes of the sweep": _esscher(SWEEP, against="gemm", repeats=3),
    "report": _opening("report"),
    "opening a report": _opening("page"),
    "probe of a layer": _esscher("probe demo:minilm --text demo:docs --layers 0", repeats=1),
    "probe": _esscher("probe demo:minilm --text demo:docs", repeats=1),
    "tails": _esscher("tails demo:minilm --text demo:docs", repeats=1),
    "context": _esscher("context demo:smollm2 --text demo:docs", repeats=1),
    "sparse": _esscher("sparse demo:minilm --text demo:docs", repeats=1),
    "deep": _esscher("deep demo:minilm --text demo:docs", repeats=1),
    "domains": _esscher(
        "domains demo:minilm --text prose=demo:docs --text code=demo:code", repeats=1
    ),
    "plan": _esscher(
        "plan demo:smollm2 --text demo:docs --budget 0.25 --prefix 2048 --passages 4", repeats=1
    ),
}


@dataclass(frozen=True)
class Measured:
    """Of one row: seconds of every run, what they are compared with, ratios, peak memory in MB."""

    command: str
    seconds: list[float]
    against: str
    reference: float
    ratios: list[float]
    peak: float
    date: str
    load: float

    @classmethod
    def of(cls, row: Row, runs: list[tuple[float, float]], reference: float) -> Measured:
        """From seconds and peaks of the runs."""
        seconds = [round(s, 3) for s, _ in runs]
        return cls(
            command=" ".join(["python", *row.words[1:]]),
            seconds=seconds,
            against=row.against,
            reference=round(reference, 3),
            ratios=[round(s / reference, 3) for s in seconds],
            peak=round(max(peak for _, peak in runs), 1),
            date=date.today().isoformat(),
            load=round(os.getloadavg()[0], 1),
        )


#: Starts a command and tells what it took. A process of its own, which is small: the system counts
#: the memory of whoever starts a command as the command's, until it begins.
WATCHED = """
import os, sys
folder, *words = sys.argv[1:]
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
places = {1: folder + "/out", 2: folder + "/err"}
files = [(os.POSIX_SPAWN_OPEN, number, place, flags, 0o600) for number, place in places.items()]
_, status, usage = os.wait4(os.posix_spawn(words[0], words, os.environ, file_actions=files), 0)
print(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""


def spent(words: Sequence[str], folder: str, prints: bool = False) -> tuple[float, float]:
    """CPU seconds and peak memory (MB) of a command and of the processes it waited for.

    ``prints``: the seconds are what it prints.
    """
    told = subprocess.run(
        [sys.executable, "-S", "-c", WATCHED, folder, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    status, seconds, peak = map(float, told.split())
    if status:
        said = Path(folder, "err").read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"{' '.join(words)} failed:\n{said}")
    if prints:
        seconds = float(Path(folder, "out").read_text(encoding="utf-8"))
    return seconds, peak / 1024


def textbook() -> None:
    """The sweep as one writes it down: all logits, softmax, product; every size by itself."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for _ in range(REPLICATES):
        x = torch.from_numpy(rng.standard_normal((SIZES[-1], DIM))).float()
        for n in SIZES:
            y = torch.softmax(x[:n] @ x[:n].T, dim=1) @ x[:n]
            float((y - x[:n]).square().sum(1).mean().sqrt())
            float(y.mean(0).norm())
            float((torch.cov(y.double().T) - torch.eye(DIM, dtype=torch.float64)).norm())


def gemm_seconds() -> float:
    """Seconds that the flops of the sweep's passes take as a square product."""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(GEMM, GEMM)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        a @ a
        seconds.append(time.process_time() - start)
    flops = REPLICATES * 4 * SIZES[-1] ** 2 * DIM
    return float(np.median(seconds)) * flops / (2 * GEMM**3)


def references(folder: str, repeats: int) -> dict[str, Callable[[], float]]:
    """How seconds of what rows are compared with are measured."""
    script = [sys.executable, "-m", "benchmarks.waiting", "--textbook"]

    def median(words: Sequence[str]) -> float:
        return float(np.median([spent(words, folder)[0] for _ in range(repeats)]))

    return {
        "torch": lambda: median([sys.executable, "-c", "import torch"]),
        "textbook": lambda: median(script),
        "gemm": gemm_seconds,
    }


def compared(name: str, result: Measured, stored: dict[str, Measured]) -> str:
    """What to say of a row: slower or faster than the stored one, by more than the spread."""
    before = stored.get(name)
    if before is None:
        return "not stored"
    if min(result.ratios) > max(before.ratios):
        return f"SLOWER than stored ({np.median(before.ratios):.3g})"
    if max(result.ratios) < min(before.ratios):
        return f"faster than stored ({np.median(before.ratios):.3g})"
    return "as stored"


def machine() -> dict[str, object]:
    """What was measured on."""
    import torch

    from benchmarks.kernels import processor
    from esscher.engine.attention.compiled.kernel import kernel_name

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": 1,
        "kernel": kernel_name(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }


def read_stored(path: Path) -> dict[str, Measured]:
    """Rows of an earlier run."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {name: Measured(**row) for name, row in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=None, help="rows, by their names, with commas")
    parser.add_argument(
        "--repeats", type=int, default=None, help="runs of every command, and of references"
    )
    parser.add_argument("--store", action="store_true", help=f"keep the rows in {RESULTS.name}")
    parser.add_argument("--textbook", action="store_true", help="run the textbook's sweep only")
    options = parser.parse_args()
    if options.textbook:
        textbook()
        return
    names = list(ROWS) if options.only is None else options.only.split(",")
    stored, result, known = read_stored(RESULTS), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        measure = references(folder, options.repeats or 3)
        for name in names:
            row = ROWS[name]
            if row.against not in known:
                known[row.against] = measure[row.against]()
            times = options.repeats or row.repeats
            runs = [spent(row.words, folder, row.told) for _ in range(times)]
            result[name] = one = Measured.of(row, runs, known[row.against])
            print(
                f"{name:20} {np.median(one.seconds):8.2f} s  {one.peak:7.0f} MB  "
                f"{np.median(one.ratios):6.3g} x {one.against:9} {compared(name, one, stored)}"
            )
    slower = [name for name in result if "SLOWER" in compared(name, result[name], stored)]
    print(f"slower than stored: {', '.join(slower) or 'nothing'}")
    if options.store:
        rows = {name: asdict(row) for name, row in (stored | result).items()}
        about = {"machine": machine(), "rows": rows}
        RESULTS.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
