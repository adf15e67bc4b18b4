"""The argmax of heads against its exact expectation. Part of ``truth.py``.

What is stated comes from the project: errors of attention that takes the key with the largest
logit, among n keys that are drawn from a cloud of N with replacement. The exact expectation is
written here in plain numpy: the largest of the sample is the key of rank r among all N with
probability ``(1 - (r-1)/N)^n - (1 - r/N)^n``, query by query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.claims import Row, average
from esscher.studies.paper.heads import argmax_errors

#: Seed of the clouds, apart from those of ``truth.py``.
SEED = 9000
SIZES = (8, 32, 128)
REPLICATES = 64


def exact(queries: Any, keys: Any, values: Any, n: int) -> tuple[Any, float]:
    """Expected mean over queries of output less limit, and of its square."""
    count = len(keys)
    order = np.argsort(-(queries @ keys.T), axis=1)
    left = 1 - np.arange(count + 1) / count
    chance = left[:-1] ** n - left[1:] ** n
    gap = values[order] - values[order[:, :1]]  # [query, rank, coordinate]
    shift = np.einsum("r,qrd->d", chance, gap) / len(queries)
    return shift, float(np.einsum("r,qrd->", chance, gap**2) / len(queries))


def argmax(scale: float) -> Iterator[Row]:
    """Errors of one cloud, and z-scores of many seeds."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((700, 6)) * (1 + rng.random((700, 1)))
    matrix, mix = rng.standard_normal((2, 6, 6))
    q, k, v = (part.astype(np.float32) for part in (x @ matrix, x, x @ mix + 1))
    truth = [exact(q.astype(float), k.astype(float), v.astype(float), n) for n in SIZES]
    seeds = range(int(scale * 40))
    found = [argmax_errors(q, k, v, SIZES, REPLICATES, np.random.default_rng(s)) for s in seeds]
    for j, n in enumerate(SIZES):
        shift, square = truth[j]
        claim = f"argmax over a cloud of {len(k)} tokens, d = 6, n = {n}"
        seen = average(np.concatenate([one[0][:, j, 0] for one in found]))
        yield Row("argmax", f"{claim}: shift of the mean output", *seen, float(shift[0]), 0.0)
        seen = average(np.concatenate([one[1][:, j] for one in found]))
        yield Row("argmax", f"{claim}: squared map error", *seen, square, 0.0)
    # squared z-scores of every seed: of the shift's coordinates and of the squares
    scores = []
    for shifts, squares in found:
        z = []
        for j in range(len(SIZES)):
            for values, expected in ((shifts[:, j], truth[j][0]), (squares[:, j], truth[j][1])):
                spread = values.std(axis=0, ddof=1) / np.sqrt(REPLICATES)
                z.append(np.atleast_1d((values.mean(axis=0) - expected) / spread))
        scores.append(float(np.mean(np.concatenate(z) ** 2)))
    # Student's t with R - 1 degrees of freedom has a variance of (R - 1)/(R - 3)
    stated = np.sqrt((REPLICATES - 1) / (REPLICATES - 3))
    level, noise = average(scores)
    yield Row("argmax", f"argmax, rms z-score over {len(found)} seeds", float(stated), 0.0,
              float(np.sqrt(level)), float(noise / (2 * np.sqrt(level))))  # fmt: skip
