"""Whether heads keep their order between corpora, and a plan made on one is right on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.studies.domains.comparison import half_splits
from esscher.studies.domains.records import Ends, RankPair, Ranks, Transfer, TransferPair

#: A head that needs this many times the tokens that a plan gives it is counted.
TWICE = 2.0


def spearman(first: Array, second: Array) -> float:
    """Rank correlation; ``nan`` if one side is constant."""
    a, b = scipy.stats.rankdata(first), scipy.stats.rankdata(second)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else float("nan")


def rank_agreement(values: Array, names: Sequence[str], seed: int) -> Ranks | None:
    """Rank correlation of the heads between corpora, from [head, corpus, block].

    Intervals by leaving out one block of both corpora at a time, on Fisher's scale. Noise of the
    blocks makes ranks differ even within a corpus: ``within`` and ``between`` are the mean
    correlation of half the blocks with the other half of the same corpus, and with as many blocks
    of another one, so that they can be compared. None with fewer than 4 heads.
    """
    heads, corpora, blocks = values.shape
    if heads < 4:
        return None
    middle = values.mean(axis=2)
    left_out = np.array([np.delete(values, b, axis=2).mean(axis=2) for b in range(blocks)])
    pairs = []
    for a, b in combinations(range(corpora), 2):
        found = spearman(middle[:, a], middle[:, b])
        others = np.array([spearman(part[:, a], part[:, b]) for part in left_out])
        pairs.append(
            RankPair(
                a=names[a],
                b=names[b],
                spearman=_plain(found),
                interval=_fisher(found, others),
            )
        )
    within, between = _halves(values, seed, spearman)
    known = [pair.spearman for pair in pairs if pair.spearman is not None]
    return Ranks(
        median=_plain(float(np.median(known))) if known else None,
        within=_plain(within),
        between=_plain(between),
        pairs=tuple(pairs),
    )


def _fisher(found: float, left_out: Array) -> Ends:
    """95% interval by the jackknife on the scale atanh(r)."""
    count = len(left_out)
    if not np.isfinite(found) or not np.isfinite(left_out).all():
        return None, None
    z = np.arctanh(np.clip(left_out, -0.999999, 0.999999))
    spread = float(np.sqrt((count - 1) ** 2 / count * z.var(ddof=1)))
    centre = float(np.arctanh(np.clip(found, -0.999999, 0.999999)))
    half = float(scipy.stats.t.ppf(0.975, count - 1)) * spread
    return float(np.tanh(centre - half)), float(np.tanh(centre + half))


def _halves(
    values: Array, seed: int, measure: Callable[[Array, Array], float]
) -> tuple[float, float]:
    """A measure of two columns of heads, between halves of a corpus and between corpora."""
    corpora = values.shape[1]
    within, between = [], []
    for side, rest in half_splits(values.shape[2], seed):
        one, two = values[:, :, side].mean(axis=2), values[:, :, rest].mean(axis=2)
        for a in range(corpora):
            within.append(measure(one[:, a], two[:, a]))
            between += [measure(one[:, a], two[:, b]) for b in range(corpora) if b != a]
    return _mean(within), _mean(between)


def plan_transfer(logs: Array, names: Sequence[str], fdr: float, seed: int) -> Transfer:
    """How wrong tokens planned on one corpus are on another, from ln(tokens) [head, corpus, block].

    ``factor``: by how much the number of tokens of a typical head (the median) is off, up or down,
    between half the blocks of a corpus and half of another; ``factor_within``: of the same corpus.
    Every pair: ratio of the geometric means over heads with an interval (Welch's, over blocks,
    Bonferroni over the pairs), and the share of heads that need at least twice the tokens on one
    that they need on the other.
    """
    _, corpora, blocks = logs.shape
    within, between = _halves(logs, seed, lambda a, b: float(np.median(np.abs(b - a))))
    middle = logs.mean(axis=2)
    texts = logs.mean(axis=0)
    pairs = []
    count = corpora * (corpora - 1) // 2
    for a, b in combinations(range(corpora), 2):
        one, two = texts[a].var(ddof=1) / blocks, texts[b].var(ddof=1) / blocks
        total = one + two
        freedom = (blocks - 1) * total**2 / (one**2 + two**2) if total > 0 else blocks - 1
        half = scipy.stats.t.ppf(1 - fdr / (2 * count), freedom) * np.sqrt(total)
        ratio = texts[b].mean() - texts[a].mean()
        single = middle[:, b] - middle[:, a]
        pairs.append(
            TransferPair(
                a=names[a],
                b=names[b],
                ratio=float(np.exp(ratio)),
                interval=(float(np.exp(ratio - half)), float(np.exp(ratio + half))),
                typical_factor=float(np.exp(np.median(np.abs(single)))),
                twice_on_b=float(np.mean(single >= np.log(TWICE))),
                twice_on_a=float(np.mean(single <= -np.log(TWICE))),
            )
        )
    return Transfer(
        factor=float(np.exp(between)),
        factor_within=float(np.exp(within)),
        pairs=tuple(pairs),
    )


def _mean(values: list[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None
