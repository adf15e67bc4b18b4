"""Speed of the attention kernels, as ratios inside one run.

Absolute times on a shared machine mean little, so that every line is a ratio of two things timed
next to each other, repeated; the table shows the median and the quartiles. Flops of a pass over n
tokens are counted as 4 n^2 d. Every method computes the same statistics: mean and covariance of the
outputs in float64. ESSCHER_KERNEL=torch measures the kernel that is used where none is compiled.

    python -m benchmarks.kernels            # the table, and benchmarks/results/kernels.json
    python -m benchmarks.kernels --quick    # small sizes, a few seconds, no file
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from esscher.engine.attention import attention_statistics
from esscher.engine.attention.compiled.kernel import kernel_name

RESULTS = Path(__file__).parent / "results" / "kernels.json"
GEMM = 3072


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def moments(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = y.to(torch.float64)
    return y.mean(0), torch.cov(y.T, correction=0)


def geometric(low: int, high: int, count: int) -> list[int]:
    return [int(n) for n in np.unique(np.geomspace(low, high, count).round())]


def tokens(n: int, d: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, d, generator=generator) for _ in range(3)]


def esscher(x: list[torch.Tensor], sizes: list[int], scales: list[float] | None = None) -> object:
    return attention_statistics(*x, sizes=sizes, scales=scales or (1.0,))


def sdpa(x: list[torch.Tensor], sizes: list[int]) -> object:
    """One call per size, in the 4-D form that takes the fast path."""
    results = []
    for n in sizes:
        q, k, v = (t[:n][None, None] for t in x)
        results.append(moments(torch.nn.functional.scaled_dot_product_attention(q, k, v)[0, 0]))
    return results


def online_loop(x: list[torch.Tensor], sizes: list[int], block: int = 512) -> object:
    """The usual Python loop: running maximum, sum and weighted sum over blocks of keys."""
    results = []
    for n in sizes:
        q, k, v = (t[:n] for t in x)
        output = torch.empty_like(v)
        for i in range(0, n, block):
            tilt = q[i : i + block] / q.shape[1] ** 0.5
            peak = torch.full((len(tilt), 1), -torch.inf)
            total = torch.zeros(len(tilt), 1)
            sums = torch.zeros(len(tilt), v.shape[1])
            for j in range(0, n, block):
                logits = tilt @ k[j : j + block].T
                new = torch.maximum(peak, logits.amax(1, keepdim=True))
                weights = torch.exp(logits - new)
                shrink = torch.exp(peak - new)
                total = total * shrink + weights.sum(1, keepdim=True)
                sums = sums * shrink + weights @ v[j : j + block]
                peak = new
            output[i : i + block] = sums / total
        results.append(moments(output))
    return results


def textbook(x: list[torch.Tensor], sizes: list[int]) -> object:
    results = []
    for n in sizes:
        q, k, v = (t[:n] for t in x)
        results.append(moments(torch.softmax(q @ k.T / q.shape[1] ** 0.5, dim=1) @ v))
    return results


class Bench:
    """Collects ratios, prints them as they come."""

    def __init__(self, repeats: int, quick: bool) -> None:
        self.repeats, self.quick = repeats, quick
        self.rows: list[dict[str, object]] = []
        self.rates: list[float] = []
        square = torch.randn(2, GEMM, GEMM, generator=torch.Generator().manual_seed(1))
        self._square = square
        self.gemm()

    def gemm(self) -> float:
        """Flop rate of a square float32 product, now."""
        rate = 2 * GEMM**3 / timed(lambda: self._square[0] @ self._square[1])
        self.rates.append(rate)
        return rate

    def add(
        self, work: str, target: float | None, ratio: Callable[[], float], repeats: int
    ) -> None:
        """Measure one line of the table."""
        values = np.array([ratio() for _ in range(repeats)])
        target = None if self.quick else target  # the targets are for the sizes of a full run
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        row = {
            "work": work,
            "target": target,
            "median": round(float(median), 3),
            "quartiles": [round(float(low), 3), round(float(high), 3)],
            "repeats": repeats,
        }
        self.rows.append(row)
        wanted = "" if target is None else f"{target:6.2f}"
        print(f"{work:<66} {median:6.2f}  ({low:.2f}-{high:.2f})  {wanted}", flush=True)

    def against_gemm(
        self,
        work: str,
        target: float | None,
        n: int,
        d: int,
        method: Callable[[list[torch.Tensor], list[int]], object],
    ) -> None:
        """Flop rate of a method relative to that of the square product around it."""
        x = tokens(n, d)
        often = max(1, round(3e8 / n**2))
        method(x, [n])

        def ratio() -> float:
            before = self.gemm()
            seconds = timed(lambda: [method(x, [n]) for _ in range(often)]) / often
            return 4 * n**2 * d / seconds / ((before + self.gemm()) / 2)

        self.add(work, target, ratio, self.repeats * (3 if n < 10_000 else 1))

    def against(
        self,
        work: str,
        target: float | None,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        repeats: int | None = None,
        count: int = 1,
    ) -> None:
        """Time of another method, run so many times, relative to ours around it."""

        def ratio() -> float:
            before = timed(ours)
            other = count * timed(theirs)
            return other / ((before + timed(ours)) / 2)

        self.add(work, target, ratio, min(repeats or self.repeats, self.repeats))


def study(bench: Bench, shrink: int) -> None:
    """One replicate of the published Gaussian study, against the textbook form of every scale.

    The scripts of the study take 7 hours where it is to take 25 minutes: 17 times less. Of the 12
    scales in the textbook form one is timed, since all cost the same.
    """
    top = 30_000 // shrink
    if not bench.quick and os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < 16e9:
        print("(the published study is left out: its textbook form needs 16 GB)")
        return
    x, sizes = tokens(top, 50), geometric(1_000 // shrink, top, 12)
    tilts = [0.01 * x[0], x[0], x[0]]  # the tilt is a multiple of the token, keys are values
    scales = [float(a) for a in np.geomspace(0.05, 50.0, 12)]
    bench.against(
        f"12 scales x 12 sizes to {top:,}, d = 50, against the textbook form",
        17.0,
        lambda: attention_statistics(*tilts, sizes=sizes, scales=scales, factor=1.0),
        lambda: textbook(tilts, sizes),
        2,
        count=12,
    )


def run(repeats: int, quick: bool) -> Bench:
    bench = Bench(repeats, quick)
    print(f"{'work':<66} {'median':>6}  (quartiles)   target")
    shrink = 8 if quick else 1
    for n, target in ((1_000, None), (4_000, 0.70), (16_000, 0.80), (30_000, 0.80)):
        if n // shrink >= 500:
            name = f"one pass, d = 64, n = {n // shrink:,} / square GEMM"
            bench.against_gemm(name, target, n // shrink, 64, esscher)
    bench.against_gemm(
        f"(for comparison) SDPA, d = 64, n = {16_000 // shrink:,} / square GEMM",
        None,
        16_000 // shrink,
        64,
        sdpa,
    )
    top = 30_000 // shrink
    x, sizes = tokens(top, 50), geometric(1_000 // shrink, top, 12)
    name = f"12 nested sizes to {top:,}, d = 50, against"
    bench.against(f"{name} 12 SDPA runs", 2.2, lambda: esscher(x, sizes), lambda: sdpa(x, sizes))
    bench.against(
        f"{name} an online loop", 5.0, lambda: esscher(x, sizes), lambda: online_loop(x, sizes), 3
    )
    top = 16_000 // shrink
    y, fewer = tokens(top, 50), geometric(1_000 // shrink, top, 12)
    bench.against(
        f"12 nested sizes to {top:,}, d = 50, against the textbook form",
        10.0,
        lambda: esscher(y, fewer),
        lambda: textbook(y, fewer),
        3,
    )
    study(bench, shrink)
    n = 4_000 // shrink
    z = tokens(n, 64)
    for kind, grid in (
        ("equally spaced", [0.25 * (i + 1) for i in range(12)]),
        ("geometric", list(np.geomspace(0.1, 3.0, 12))),
    ):
        bench.against(
            f"12 {kind} scales, d = 64, n = {n:,}, against 12 passes",
            1.5,
            lambda grid=grid: esscher(z, [n], grid),
            lambda grid=grid: [esscher(z, [n], [alpha]) for alpha in grid],
        )
    return bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--repeats", type=int, default=None, help="default 7, quick 3")
    parser.add_argument("--out", type=Path, default=None, help=f"default {RESULTS}")
    parser.add_argument(
        "--threads", type=int, default=None, help="1 is fairest when others use the machine too"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    bench = run(options.repeats or (3 if options.quick else 7), options.quick)
    low, median, high = np.quantile(bench.rates, [0.1, 0.5, 0.9]) / 1e9
    loads = [round(load, 2), round(os.getloadavg()[0], 2)]
    threads = torch.get_num_threads()
    print(f"square GEMM {median:.0f} Gflop/s (10-90%: {low:.0f}-{high:.0f}), {threads} threads")
    print(f"load before and after {loads}; about {threads} of it is ours while this runs")
    out = options.out or (None if options.quick else RESULTS)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        machine = {
            "processor": processor(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "kernel": kernel_name(),
            "threads": threads,
            "torch": torch.__version__,
            "gemm_gflops": [round(float(r), 1) for r in (low, median, high)],
            "load": loads,
        }
        out.write_text(json.dumps({"machine": machine, "rows": bench.rows}, indent=2) + "\n")
        print(f"written to {out}")


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
