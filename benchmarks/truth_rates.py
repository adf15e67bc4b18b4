"""Claims that are rates: power, false alarms, coverage, agreement. Part of ``truth.py``.

What is stated comes from the project: the power that a test says it has, the level of an interval,
the kappa of two halves. What is simulated is how often it comes true on data made here in plain
numpy, where the truth is known by construction:

* errors whose law is known: norms of the mean of the first n of i.i.d. normal vectors, which are a
  power law exactly, nested along n as real sizes are; with a constant added, or turned to 1/ln n;
* attention received by autoregressive tokens, whose k is ``H^2/(1 + H^2)``;
* clouds with one planted direction, judged on independent samples;
* errors of passages with several draws, skewed, of known growth and exponent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.claims import Row, average, share
from esscher.math.statistics import find_sinks, received_khat, resample, select_law
from esscher.math.tails.cloud import QUICK, cloud_tails
from esscher.math.tails.verdict import KINDS, half_verdicts, kappa_estimate, kind_of, verdict_table
from esscher.studies.deep.combine import fitted, growth_factors, independent_errors

#: Seed of every simulation, apart from those of ``truth.py``.
SEED = 7000
SIZES = np.array([32.0, 64, 128, 256, 512, 1024])
REPLICATES = 64
LEVEL = 0.95
#: Blocks of tokens that stand for passages.
BLOCKS = np.arange(2048) // 64


# Item 13: laws of curves.


def walks(count: int, rng: np.random.Generator) -> Any:
    """Absolute means of n normal numbers, of expectation ``n^-1/2``: [replicate, size]."""
    steps = np.sqrt(np.diff(SIZES, prepend=0.0))
    means = np.cumsum(rng.standard_normal((count, len(SIZES))) * steps, axis=1) / SIZES
    return np.abs(means) / np.sqrt(2 / np.pi)


def curve(truth: str, errors: Any) -> Any:
    """Errors of another law: a floor as large as the power part at the end, or ``1/ln n``."""
    last = SIZES[-1] ** -0.5
    if truth == "floor":
        return errors + last
    if truth == "small floor":
        return errors + last / 4
    return errors * SIZES**0.5 / np.log(SIZES) if truth == "1/ln n" else errors


def laws(scale: float) -> Iterator[Row]:
    """Selection of laws: what its tests see, what they say they see, and the limit of the floor."""
    rng = np.random.default_rng(SEED)
    curves = int(scale * 400)
    words = {"floor": "a floor of half the last error", "1/ln n": "1/ln n"}
    names = {"floor": "floor", "1/ln n": "logarithmic"}
    covered: dict[str, list[bool]] = {}
    for truth in ("power", "small floor", "floor", "1/ln n"):
        results = []
        for seed in range(curves):
            errors = curve(truth, walks(REPLICATES, rng))
            results.append(select_law(resample(errors, SIZES, seed), SIZES**-0.5))
        bent = share(one.law != "power" for one in results)
        against = [one.predicted for one in results if one.predicted is not None]
        if truth == "power":
            yield Row(
                "laws of curves", "a power law is called bent (5%, both ways)", 0.025, 0.0, *bent
            )
            left = share(one.leaves for one in against)
            yield Row("laws of curves", "a power law leaves its prediction", 0.05, 0.0, *left)
        if truth in words:
            stated = average(one.power[names[truth]] for one in results)
            yield Row("laws of curves", f"{words[truth]} is found", *stated, *bent)
        if truth == "floor":
            stated = average(one.floor_power for one in against)
            left = share(one.leaves for one in against)
            yield Row(
                "laws of curves", f"{words[truth]} is found against the prediction", *stated, *left
            )
        at = {"power": 0.0, "small floor": 0.2, "floor": 0.5}
        if truth in at:
            covered[truth] = [(one.floor_share or 0.0) >= at[truth] for one in results]
    for truth, size in (("small floor", "a fifth"), ("floor", "half")):
        yield Row(
            "laws of curves",
            f"limit of a floor of {size} of the last error covers",
            LEVEL,
            0.0,
            *share(covered[truth]),
        )


# Item 14: the tail of received attention.


def received(dim: int, correlation: float, h: float, rng: np.random.Generator) -> Any:
    """Attention that 3,000 autoregressive normal tokens receive from each other."""
    x = rng.standard_normal((3000, dim))
    for i in range(1, len(x)):
        x[i] = correlation * x[i - 1] + np.sqrt(1 - correlation**2) * x[i]
    x = x.astype(np.float32)
    logits = (np.float32(h) * x) @ x.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)).sum(axis=0, dtype=np.float64)


def khat(scale: float) -> Iterator[Row]:
    """Coverage of k-hat's interval."""
    rng = np.random.default_rng(SEED + 1)
    passes = int(scale * 300)
    for dim, correlation, h in (
        (1, 0.0, 1.0),
        (1, 0.5, 1.0),
        (1, 0.9, 2.0),
        (1, 0.95, 1.0),
        (4, 0.0, 1.0),
        (4, 0.95, 2.0),
        (1, 0.99, 1.0),
    ):
        drawn = (received(dim, correlation, h, rng) for _ in range(passes))
        intervals = [received_khat(values, find_sinks(values)) for values in drawn]
        k = h * h / (1 + h * h)
        inside = [low <= k <= high for _, low, high in intervals]
        where = f"AR(1) {correlation:g}, d = {dim}, H = {h:g}, n = 3,000"
        yield Row("k-hat", f"k-hat's 95% interval covers, {where}", LEVEL, 0.0, *share(inside))


# Item 15: tails.


def planted(kind: str, rng: np.random.Generator, count: int = 2048, dim: int = 8) -> Any:
    """Normal tokens, but for one direction: a mixture, Laplace's law, or normal too."""
    x = rng.standard_normal((count, dim))
    if kind == "mixture":
        x[:, 0] = rng.standard_normal(count) + 4 * (rng.random(count) < 0.1)
    if kind == "Laplace":
        x[:, 0] = rng.laplace(size=count)
    turn, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    return x @ turn


def cohen(table: Any) -> float:
    """Cohen's kappa of a table."""
    p = table / table.sum()
    chance = p.sum(axis=1) @ p.sum(axis=0)
    return float((np.trace(p) - chance) / (1 - chance))


def tails(scale: float) -> Iterator[Row]:
    """Kappa of two halves of one text against that of independent texts; its interval."""
    rng = np.random.default_rng(SEED + 2)
    kinds = ["mixture", "Laplace", "normal"] * int(scale * 50)
    texts = [
        [cloud_tails(planted(kind, rng), BLOCKS, effort=QUICK, seed=seed)[0] for kind in kinds]
        for seed in (0, 1)
    ]
    stated, low, high = kappa_estimate(verdict_table(map(half_verdicts, texts[0])), 0)
    # a half of one text and a half of the other have nothing in common
    pairs = np.array(
        [[KINDS.index(kind_of(half_verdicts(cloud)[0])) for cloud in text] for text in texts]
    )

    def kappa_of(rows: Any) -> float:
        table = np.zeros((3, 3))
        np.add.at(table, (pairs[0, rows], pairs[1, rows]), 1.0)
        return cohen(table)

    drawn = [kappa_of(rng.integers(len(kinds), size=len(kinds))) for _ in range(2000)]
    yield Row(
        "tails",
        f"kappa of two halves of a text, {len(kinds)} heads of three kinds",
        stated,
        (high - low) / 3.92,
        kappa_of(np.arange(len(kinds))),
        float(np.std(drawn)),
    )
    margins = np.array([0.5, 0.3, 0.2])
    for heads, kappa in ((24, 0.2), (72, 0.2), (72, 0.7)):
        law = kappa * np.diag(margins) + (1 - kappa) * np.outer(margins, margins)
        inside = []
        for seed in range(int(scale * 400)):
            table = rng.multinomial(heads, law.ravel()).reshape(3, 3).astype(float)
            _, low, high = kappa_estimate(table, seed)
            inside.append(low <= kappa <= high)
        yield Row(
            "tails",
            f"kappa's 95% interval covers, {heads} heads, kappa = {kappa:g}",
            LEVEL,
            0.0,
            *share(inside),
        )


# Item 17: passages with several draws.


def deep(scale: float) -> Iterator[Row]:
    """Coverage of growth factors and exponents over passages with several draws."""
    rng = np.random.default_rng(SEED + 3)
    studies = int(scale * 400)
    for passages, draws in ((8, 4), (4, 2), (16, 1)):
        inside: dict[str, list[bool]] = {"a growth factor": [], "an exponent": []}
        for seed in range(studies):
            # Gamma factors of mean 1, two thirds of the variance the passage's, apart for each
            # layer and size
            of_passage = rng.gamma(25.0, 1 / 25.0, size=(passages, 1, 4))
            noise = (of_passage * rng.gamma(50.0, 1 / 50.0, size=(passages, draws, 4))).reshape(
                -1, 4
            )
            errors = independent_errors(1.3 ** np.arange(4) * noise, draws)
            _, (_, low, high) = growth_factors(errors, seed)
            inside["a growth factor"].append(bool(low <= 1.3 <= high))
            sizes = [64, 128, 256, 512]
            rate = fitted(independent_errors(np.array(sizes) ** -0.45 * noise, draws), sizes, seed)
            assert rate is not None
            inside["an exponent"].append(_within(rate.interval, 0.45))
        for words, hits in inside.items():
            yield Row(
                "deep",
                f"95% interval of {words} covers, {passages} passages, {draws} draws",
                LEVEL,
                0.0,
                *share(hits),
            )


def _within(ends: Any, truth: float) -> bool:
    low, high = ends
    return (low is None or low <= truth) and (high is None or truth <= high)
