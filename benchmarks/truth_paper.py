"""Measurements of the paper's claims against exact expectations. Part of ``truth.py``.

The argmax of heads. What is stated comes from the project: errors of attention that takes the key
with the largest logit, among n keys that are drawn from a cloud of N with replacement. The exact
expectation is written here in plain numpy: the largest of the sample is the key of rank r among all
N with probability ``(1 - (r-1)/N)^n - (1 - r/N)^n``, query by query.

Constants against the size of the support. What is stated is ``n E|mean_n|^2`` as measured for the
claim. The truth is first order in 1/n: a token z moves the mean output by ``psi(z) = Gamma(z) +
E_x w_x(z) (z - Gamma(x))``, x the query and w its weights, of mean 1. On the sphere of R^3 with
logits ``<x, y>/sqrt(3)`` that is ``z (1 + L - L^2)``, L the mean cosine under the tilt; on the cube
it is a product over coordinates, each a one-dimensional integral.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.claims import Row, average
from esscher.studies.paper.heads import argmax_errors
from esscher.studies.paper.study import PaperStudy
from esscher.studies.paper.synthetic import measure_moments

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
    results = [argmax_errors(q, k, v, SIZES, REPLICATES, np.random.default_rng(s)) for s in seeds]
    for j, n in enumerate(SIZES):
        shift, square = truth[j]
        claim = f"argmax over a cloud of {len(k)} tokens, d = 6, n = {n}"
        seen = average(np.concatenate([one[0][:, j, 0] for one in results]))
        yield Row("argmax", f"{claim}: shift of the mean output", *seen, float(shift[0]), 0.0)
        seen = average(np.concatenate([one[1][:, j] for one in results]))
        yield Row("argmax", f"{claim}: squared map error", *seen, square, 0.0)
    # squared z-scores of every seed: of the shift's coordinates and of the squares
    scores = []
    for shifts, squares in results:
        z = []
        for j in range(len(SIZES)):
            for values, expected in ((shifts[:, j], truth[j][0]), (squares[:, j], truth[j][1])):
                spread = values.std(axis=0, ddof=1) / np.sqrt(REPLICATES)
                z.append(np.atleast_1d((values.mean(axis=0) - expected) / spread))
        scores.append(float(np.mean(np.concatenate(z) ** 2)))
    # Student's t with R - 1 degrees of freedom has a variance of (R - 1)/(R - 3)
    stated = np.sqrt((REPLICATES - 1) / (REPLICATES - 3))
    level, noise = average(scores)
    yield Row(
        "argmax",
        f"argmax, rms z-score over {len(results)} seeds",
        float(stated),
        0.0,
        float(np.sqrt(level)),
        float(noise / (2 * np.sqrt(level))),
    )


def moments(scale: float) -> Iterator[Row]:
    """Squared error of the mean of tokens on a sphere and in a cube, for several sizes R."""
    n, replicates, nodes, weights = 2_000, int(scale * 400), *np.polynomial.legendre.leggauss(400)
    for law, radii in (("sphere", (0.5, 2.0, 8.0)), ("cube", (0.5, 1.0, 2.0))):
        unit = {"law": law, "radii": radii, "sizes": [n], "first": 0, "replicates": replicates}
        errors = measure_moments(unit, PaperStudy(("moments",), seed=SEED).known()).error
        means = errors.sel(law=law, metric="mean", size=n)
        for radius in radii:
            if law == "sphere":
                s = radius**2 / 3**0.5
                cosine = 1 / np.tanh(s) - 1 / s
                truth = float(radius**2 * (1 + cosine - cosine**2) ** 2)
            else:
                half = radius / 3**0.5
                z, share = half * nodes, weights / 2
                tilted = np.exp(np.outer(z, z) / 3**0.5)  # [query, key]
                tilted /= (tilted @ share)[:, None]
                gamma = tilted @ (share * z)
                received = share @ tilted
                moved = share @ (tilted * (z[None] - gamma[:, None]))
                truth = 3 * float(
                    share @ gamma**2
                    + 2 * (share @ (gamma * moved))
                    + (share @ moved**2) * (share @ received**2) ** 2
                )
            result = average((n * means.sel(radius=radius) ** 2).values)
            claim = f"n times squared error of the mean, {law} of size R = {radius:g}, n = {n}"
            yield Row("moments", claim, *result, truth, 0.0)
