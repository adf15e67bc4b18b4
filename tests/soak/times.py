"""``python -m tests.soak.times``: how long commands take from SIGTERM to their end.

Every command gets the signal five times (``--times``), at random moments of its work, and is
resumed in between; the table has the median and the longest. The demo models must be installed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from esscher.core.streams import random_stream
from esscher.runs.folder import is_locked
from tests.runs.processes import machines
from tests.soak.processes import ENVIRONMENT

#: The published setting: its replicates are the longest of any command.
LARGE = "sweep gaussian --dim 50 --horizon 2 --alpha 0.1:1:12 --sizes 100:30000:10 --no-predict"
SMALL = "sweep gaussian --dim 8 --horizon 1 --sizes 100:3000:6 --replicates 100000 --no-predict"
MODEL = "demo:minilm --text demo:docs"
#: What is measured: a name for the table, and the words of the command.
COMMANDS = {
    "`sweep`, n = 3,000": SMALL,
    "`sweep`, published setting, n = 30,000": LARGE,
    "`sweep --workers 2`, published setting": f"{LARGE} --workers 2",
    "`sweep --scheduler`": f"{SMALL} --scheduler ADDRESS",
    "`paper`": "paper reference --scale standard",
    "`probe`, pooled": f"probe {MODEL}",
    "`probe --mode context`": f"probe {MODEL} --mode context --tokens 20000",
    "`plan`": "plan demo:smollm2 --text demo:docs --budget 0.25",
}


def measure(
    words: list[str], out: Path, group: bool, rng: np.random.Generator
) -> tuple[float, int]:
    """Seconds from the signal to the end, and the exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "esscher", *words, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        if any(is_locked(lock.parent) for lock in out.rglob("lock")):
            break
        time.sleep(0.05)
    time.sleep(float(rng.uniform(2.0, 12.0)))
    start = time.monotonic()
    if process.poll() is None:
        (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
    error = process.communicate()[1].decode()
    if process.returncode != 75 or "Traceback" in error:
        print(f"exit code {process.returncode}: {error}", file=sys.stderr, flush=True)
    return time.monotonic() - start, process.returncode


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Seconds from SIGTERM to the end.")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="", help="commands whose name contains this")
    chosen = parser.parse_args()
    print("| command | median, s | longest, s | exit codes |\n|---|---|---|---|")
    for place, (name, text) in enumerate(COMMANDS.items()):
        if chosen.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            words = text.split()
            if "ADDRESS" in words:
                found = stack.enter_context(machines(Path(folder) / "machines"))
                found.scheduler()
                found.worker()
                words[words.index("ADDRESS")] = found.address
            seconds, codes = [], set()
            for turn in range(chosen.times):
                rng = random_stream(turn, "termination", place)
                taken, code = measure(words, Path(folder) / "run", "workers" in name, rng)
                seconds.append(taken)
                codes.add(code)
        shown = ", ".join(str(code) for code in sorted(codes))
        print(f"| {name} | {np.median(seconds):.1f} | {max(seconds):.1f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
