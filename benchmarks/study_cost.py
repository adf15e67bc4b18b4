"""Core-hours of the published study (``esscher reproduce all --scale paper``), by extrapolation.

CPU seconds of single replicates and cells are measured on one thread at smaller sizes and scaled by
their work: pairs of tokens (n^2) for sweeps and single passes, tokens times replicates for the
supremum on a ball, replicates for hardmax. Sweeps are measured at two sizes; the exponent between
them, which should be 2, says how far the extrapolation can be trusted.

    python -m benchmarks.study_cost
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from esscher.studies.reproduce import (
    ablation,
    ball,
    gaussian,
    hardmax,
    onepass,
    sphere,
    universality,
)
from esscher.studies.reproduce.study import Study, geometric
from esscher.studies.sweep import SweepStudy, sweep, work
from esscher.studies.sweep.predictions import predict_scales

#: Largest sizes at which sweeps are measured.
SMALL, LARGE = 4_000, 8_000


def cpu(function, *arguments) -> float:
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def replicate_seconds(study: Study, largest: int) -> float:
    """CPU seconds of the second replicate; the first warms up."""
    seconds = []
    measure = work.measure_cell

    def timed(*arguments):
        start = time.process_time()
        part = measure(*arguments)
        seconds.append(time.process_time() - start)
        return part

    work.measure_cell = timed
    try:
        sizes = geometric(largest / 10, largest, len(study.sizes))
        options = {k: v for k, v in study.options.items() if k != "predict"}
        sweep(study.head, sizes, 3, 0, alpha=study.scales, progress=False, **options)
    finally:
        work.measure_cell = measure
    return min(seconds[1:])


def sweep_hours(study: Study) -> tuple[float, str]:
    """Core-hours of all replicates of a sweep, and how they were found."""
    small, large = (replicate_seconds(study, n) for n in (SMALL, LARGE))
    exponent = math.log(large / small) / math.log(LARGE / SMALL)
    one = large * (study.sizes[-1] / LARGE) ** 2
    hours = study.replicates * one / 3600
    how = (
        f"{study.replicates} x {one:.0f} s (n = {study.sizes[-1]}, {len(study.scales)} scales; "
        f"{large:.2f} s at n = {LARGE}, grows like n^{exponent:.2f})"
    )
    return hours, how


def prediction_hours(study: Study) -> float:
    one = SweepStudy(study.head, study.sizes, alpha=study.scales[:1]).filled()
    return cpu(predict_scales, study.head, one) * len(study.scales) / 3600


def main() -> None:
    torch.set_num_threads(1)
    total = 0.0

    def show(name: str, hours: float, how: str) -> None:
        nonlocal total
        total += hours
        print(f"| {name} | {hours:.2g} | {how} |", flush=True)

    published, line, eight, _ = gaussian.studies("paper")
    hours, how = sweep_hours(published)
    show("gaussian, published setting", hours, how)
    show("gaussian, d = 1", *sweep_hours(line))
    of_eight, how = sweep_hours(eight)
    show("gaussian, d = 8", of_eight, how)
    show("gaussian, decaying spectrum", of_eight, "as d = 8: the same sizes, scales and dimension")
    show("ablation", *sweep_hours(ablation.study("paper")))
    show("sphere", *sweep_hours(sphere.study("paper")))
    laws = {study.name: study for study in universality.studies("paper")}
    with_limit, how = sweep_hours(laws["gaussian"])
    show("universality, 5 laws with a limit", 5 * with_limit, f"5 x Gaussian: {how}")
    show("universality, Laplace and Student", 2 * with_limit, "as the others, per law")
    shown = gaussian.flat(50, line.sizes, gaussian.HORIZONS, 200)
    of_fifty, how = sweep_hours(shown)
    show("onepass, sweeps d = 50", of_fifty, how)
    show("onepass, sweeps d = 1 and 8", of_eight * 2, "as gaussian, d = 8 (an upper estimate)")
    key = {"d": 8, "H": 1.0, "n": LARGE // 2, "draw": 0, "seed": 0}
    onepass._measure(key)
    one = cpu(onepass._measure, key) * (16_000 / key["n"]) ** 2
    count = 3 * len(gaussian.HORIZONS) * 16
    show("onepass, passes", count * one / 3600, f"{count} x {one:.1f} s")
    sizes = np.array(geometric(100, 100_000, 8))
    seconds = 0.0
    for radius in (2.0, 32.0):
        key = {"d": ball.DIM, "T": radius, "n": 3_000, "replicates": 2, "seed": 0}
        seconds += cpu(ball._measure, key) / 2
    hours = seconds / (2 * 3_000) * sizes.sum() * 40 * 7 / 3600
    show("ball", hours, f"mean of T = 2 and 32: {seconds / 4:.2f} s a sample at n = 3000")
    seconds, how = 0.0, []
    sizes = [float(n) for n in np.geomspace(1e3, 1e12, 10).round()]
    for d in hardmax.DIMENSIONS:
        wanted = 400_000 if d == 1 else 1_000 * (2 if d >= 10 else 1)
        some = wanted // (100 if d == 1 else 4)  # fewer leave nothing but noise
        key = {"d": d, "sizes": sizes, "replicates": some, "seed": 0}
        all_of_them = cpu(hardmax._measure, key) * wanted / some
        seconds += all_of_them
        how.append(f"d = {d}: {all_of_them:.0f} s")
    show("hardmax", seconds / 3600, ", ".join(how))
    hours = 8 * prediction_hours(eight)
    show("predictions (on the driver)", hours, "d = 8: one scale times 7, taken for 8 sweeps")
    print(f"| all | {total:.3g} | |")


if __name__ == "__main__":
    main()
