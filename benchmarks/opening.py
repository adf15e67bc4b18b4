"""A report of 270 heads: CPU seconds to write it, and to open it in Chromium up to its charts.

The probe has 30 layers of 9 heads, as many as SmolLM2, made from a small one (``tests/runs/made``),
so that no model has to be probed. What a page costs are CPU seconds of the browser's main thread
from the start to the first charts: on a shared machine the clock on the wall tells of the others.

    python -m benchmarks.opening            # both, and the clock beside them
    python -m benchmarks.opening --only page
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

#: Openings of the page, each in a fresh profile, and times that it is written.
OPENED, WRITTEN = 7, 3
FIRST = "performance.getEntriesByName('esscher-first-chart')[0].startTime"


def written(folder: Path, times: int) -> tuple[Path, list[float]]:
    """The report, and CPU seconds of ``esscher report``."""
    from tests.runs.made import wide_probe

    source, page = folder / "wide.json", folder / "report.html"
    wide_probe().save(source)
    words = [sys.executable, "-m", "esscher", "report", str(source), "-o", str(page)]
    seconds = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return page, seconds


def opened(page: Path) -> tuple[float, float]:
    """CPU seconds of the main thread, and seconds by the clock to the first chart."""
    from tests.show.browser import chromium

    results = []
    with chromium() as browser:
        for _ in range(OPENED):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            window = context.new_page()
            session = context.new_cdp_session(window)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            window.goto(page.as_uri())
            window.wait_for_selector("html[data-ready]", state="attached")
            metrics = session.send("Performance.getMetrics")["metrics"]
            spent = {one["name"]: one["value"] for one in metrics}["TaskDuration"]
            results.append((spent, window.evaluate(FIRST) / 1000))
            context.close()
    cpu, clock = np.median(results, axis=0)
    return float(cpu), float(clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("report", "page"), help="print these seconds alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = 1 if options.only else WRITTEN
        page, seconds = written(Path(folder), times)
        if options.only == "report":
            print(seconds[0])
            return
        cpu, clock = opened(page)
        if options.only == "page":
            print(cpu)
            return
        print(
            f"esscher report: {np.median(seconds):.2f} s of CPU time, {page.stat().st_size} bytes"
        )
        print(f"opened: {cpu:.2f} s of CPU time of the main thread, {clock:.2f} s by the clock")


if __name__ == "__main__":
    main()
