"""How a pooled probe grows with the number of tokens N, and its reference against all pairs.

Every row is one ``esscher probe`` of MiniLM on Python's standard library, in a process of its own:
wall and CPU time, peak memory (all of it, and without pages of mapped files, which the system takes
back when it needs them), size of the cloud on disk, and the standard error of the reference.

The comparison takes the clouds of a few layers at N = 50,000 and computes the reference both ways,
by two levels at linear cost and from all N^2 pairs: the difference should be as large as the
standard error says.

    python -m benchmarks.scale --out FOLDER [--tokens 10000,100000,1000000] [--layers 0-5]
        [--no-comparison]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

MODEL, TEXT = "demo:minilm", "demo:code"
TOKENS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
COMPARED, LAYERS, CONTEXT = 50_000, (0, 3, 5), 512
RESULTS = Path(__file__).parent / "results" / "scale.json"


def anonymous_memory(pid: int) -> int:
    """Bytes of a process that belong to no file."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def watched(command: list[str]) -> tuple[float, float, int, int]:
    """Run a command: seconds of wall and CPU time, peak of all and of anonymous memory."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peak = [0]
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(0.2):
                peak[0] = max(peak[0], anonymous_memory(process.pid))

        watcher = threading.Thread(target=look)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        stop.set()
        watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    seconds = time.perf_counter() - start
    return seconds, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss, peak[0]


def row(tokens: int, layers: str, folder: Path) -> dict[str, object]:
    """One probe."""
    out = folder / f"probe-{tokens}"
    esscher = str(Path(sys.executable).with_name("esscher"))
    command = [
        esscher,
        "probe",
        MODEL,
        "--text",
        TEXT,
        "--tokens",
        str(tokens),
        "--layers",
        layers,
        "--out",
        str(out),
    ]
    wall, cpu, memory, anonymous = watched(command)
    results = json.loads((out / "results.json").read_text())
    heads = results["heads"]
    error = [h["reference"]["standard_error"]["mean"] / h["curve"]["norm"] for h in heads]
    share = [max(h["reference"]["share"].values()) for h in heads]
    width = [np.diff(h["fit"]["mean"]["interval"])[0] / 2 for h in heads]
    tail = [np.diff(h["khat"]["interval"])[0] / 2 for h in heads]
    return {
        "tokens": tokens,
        "layers": layers,
        "heads": len(heads),
        "minutes": wall / 60,
        "cpu_minutes": cpu / 60,
        "peak_memory_gb": memory / 1e9,
        "peak_anonymous_gb": anonymous / 1e9,
        "cloud_gb": 4 * tokens * len(results["layers"]) * 32 * 36 / 1e9,
        "reference_error_median": float(np.median(error)),
        "reference_error_largest": float(np.max(error)),
        "reference_share_median": float(np.median(share)),
        "reference_share_largest": float(np.max(share)),
        "flagged": sum(any(f["flag"] == "reference" for f in h["flags"]) for h in heads),
        "exponent_half_width_median": float(np.median(width)),
        "khat_half_width_median": float(np.median(tail)),
    }


def comparison(folder: Path) -> dict[str, object]:
    """The reference by two levels against all pairs."""
    from esscher.core.streams import random_stream
    from esscher.engine.models.load import load_model
    from esscher.engine.sampled.pooled import pooled_reference
    from esscher.engine.text.collect import collect_cloud
    from esscher.engine.text.packing import read_passages

    loaded = load_model(MODEL)
    text = read_passages(loaded, TEXT, tokens=COMPARED, context=CONTEXT)
    cloud = collect_cloud(loaded, text, tokens=COMPARED, layers=LAYERS, folder=folder / "cloud")
    seconds: dict[bool, float] = {True: 0.0, False: 0.0}
    mean_ratios, covariance_ratios, gains = [], [], []
    for layer in LAYERS:
        view, result = cloud.layer(layer), {}
        for two_levels in (True, False):
            start = time.perf_counter()
            rng = random_stream(0, "scale", layer)
            result[two_levels] = pooled_reference(
                view, rng, whole=0 if two_levels else view.q.shape[1]
            )
            seconds[two_levels] += time.perf_counter() - start
        fast, exact = result[True], result[False]
        mean = fast.mean - exact.mean
        covariance = fast.covariance - exact.covariance
        d = len(mean) // len(view.heads)
        queries = len(fast.queries)
        for h in range(len(view.heads)):
            own = slice(h * d, (h + 1) * d)
            mean_ratios.append(np.linalg.norm(mean[own]) / fast.mean_error[h])
            gap = np.linalg.norm(covariance[own, own])
            covariance_ratios.append(gap / fast.covariance_error[h])
            spread = np.trace(exact.covariance[own, own])
            alone = np.sqrt(spread / queries * (1 - queries / COMPARED))
            gains.append(alone / fast.mean_error[h])
    return {
        "tokens": COMPARED,
        "layers": list(LAYERS),
        "heads": len(mean_ratios),
        "seconds_two_levels": seconds[True],
        "seconds_all_pairs": seconds[False],
        # root mean squares of difference over standard error: 1 if the standard error is right
        "mean_rms": float(np.sqrt(np.mean(np.square(mean_ratios)))),
        "mean_largest": float(np.max(mean_ratios)),
        "covariance_rms": float(np.sqrt(np.mean(np.square(covariance_ratios)))),
        "covariance_largest": float(np.max(covariance_ratios)),
        # how many times larger the error of the same queries without the coarse level is
        "gain_median": float(np.median(gains)),
        "gain_smallest": float(np.min(gains)),
        "gain_largest": float(np.max(gains)),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the runs go (27 GB for a million tokens)")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--layers", default="0-5")
    parser.add_argument("--no-comparison", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scale-", dir=chosen.out) as place:
        folder = Path(place)
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        stored |= {
            "model": MODEL,
            "text": TEXT,
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
        }
        if not chosen.no_comparison:
            stored["comparison"] = comparison(folder)
            print(json.dumps(stored["comparison"], indent=1))
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
        rows = {(r["tokens"], r["layers"]): r for r in stored.get("rows", [])}
        for tokens in map(int, chosen.tokens.split(",")):
            result = rows[tokens, chosen.layers] = row(tokens, chosen.layers, folder)
            print(json.dumps(result), flush=True)
            stored["rows"] = [rows[key] for key in sorted(rows)]
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
