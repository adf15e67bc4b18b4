"""Where the variance of a statistic comes from: heads, corpora, both together, blocks.

``y[h, c, b] = mu + head[h] + corpus[c] + both[h, c] + block[c, b] + rest[h, c, b]``: a block is
one text that all heads read, so it has an effect common to them, and every head its own. The
expected mean squares of this balanced design, solved for the components (negative ones are 0):

    rest      s_e
    block     s_e + H s_b
    both      s_e + B s_hc
    corpus    s_e + H s_b + B s_hc + H B s_c
    head      s_e + B s_hc + C B s_h
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.studies.domains.records import Shares, Variance

#: Order of the components: the fields of ``Shares``.
SOURCES = ("head", "corpus", "both", "block", "rest")


@dataclass(frozen=True)
class Components:
    """Components of variance in the order of ``SOURCES``, with their standard errors.

    Attributes
    ----------
    variance
        The components.
    share, share_error
        The same as shares of their sum; standard errors by leaving out one block of every corpus
        at a time (heads and corpora are taken as they are).
    ratio, ratio_interval
        How much more the head matters than the corpus: ``s_h / (s_c + s_hc)``; infinite if corpora
        do not matter. The interval is of level 95%.
    """

    variance: tuple[float, ...]
    share: tuple[float, ...]
    share_error: tuple[float, ...]
    ratio: float
    ratio_interval: tuple[float, float]

    def record(self) -> Variance:
        """Return what is stored; None stands for infinity."""
        low, high = (end if np.isfinite(end) else None for end in self.ratio_interval)
        return Variance(
            shares=Shares(**dict(zip(SOURCES, self.share, strict=True))),
            standard_errors=Shares(**dict(zip(SOURCES, self.share_error, strict=True))),
            head_over_corpus=self.ratio if np.isfinite(self.ratio) else None,
            head_over_corpus_interval=(low, high),
        )


def components(values: Array) -> Components | None:
    """Components of [head, corpus, block]; None with fewer than two heads or no variance."""
    heads, _, blocks = values.shape
    if heads < 2 or blocks < 2 or np.ptp(values) == 0:
        return None
    found = _solve(values)
    ratio = _ratio(found)
    left_out = np.array([_solve(np.delete(values, b, axis=2)) for b in range(blocks)])
    shares = left_out / left_out.sum(axis=1, keepdims=True)
    scale = (blocks - 1) ** 2 / blocks
    error = np.sqrt(scale * shares.var(axis=0, ddof=1))
    ratios = np.array([_ratio(row) for row in left_out])
    interval = (0.0, np.inf)
    if np.isfinite(ratio) and np.isfinite(ratios).all() and ratio > 0 and ratios.min() > 0:
        spread = float(np.sqrt(scale * np.log(ratios).var(ddof=1)))
        reach = float(np.exp(scipy.stats.t.ppf(0.975, blocks - 1) * spread))
        interval = (ratio / reach, ratio * reach)
    return Components(
        tuple(float(x) for x in found),
        tuple(float(x) for x in found / found.sum()),
        tuple(float(x) for x in error),
        ratio,
        interval,
    )


def _ratio(found: Array) -> float:
    corpus = float(found[1] + found[2])
    return float(found[0]) / corpus if corpus > 0 else float("inf")


def _solve(values: Array) -> Array:
    heads, corpora, blocks = values.shape
    mean = values.mean()
    head = values.mean(axis=(1, 2)) - mean
    corpus = values.mean(axis=(0, 2)) - mean
    both = values.mean(axis=2) - mean - head[:, None] - corpus[None]
    block = values.mean(axis=0) - mean - corpus[:, None]
    rest = values - mean - head[:, None, None] - corpus[None, :, None]
    rest = rest - both[:, :, None] - block[None]
    ms_head = corpora * blocks * np.sum(head**2) / (heads - 1)
    ms_corpus = heads * blocks * np.sum(corpus**2) / max(corpora - 1, 1)
    ms_both = blocks * np.sum(both**2) / max((heads - 1) * (corpora - 1), 1)
    ms_block = heads * np.sum(block**2) / (corpora * max(blocks - 1, 1))
    ms_rest = np.sum(rest**2) / ((heads - 1) * corpora * max(blocks - 1, 1))
    parts = [
        (ms_head - ms_both) / (corpora * blocks),
        (ms_corpus - ms_block - ms_both + ms_rest) / (heads * blocks),
        (ms_both - ms_rest) / blocks,
        (ms_block - ms_rest) / heads,
        ms_rest,
    ]
    found = np.maximum(np.array(parts), 0.0)
    return found if found.sum() > 0 else np.array([1.0, 0.0, 0.0, 0.0, 0.0])
