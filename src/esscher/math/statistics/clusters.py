"""How many independent values a tail is worth: large values of a sequence come in clusters.

Neighbouring tokens of a text depend on each other, so that the largest of them stand close
together, and m values of a tail say less than m independent ones. Clusters are found without a
length to be chosen (Ferro and Segers, Inference for clusters of extreme values, J. R. Statist. Soc.
B 65, 2003): the gaps between values of the tail are those of a Poisson process of clusters with
probability theta, and 0 else, which gives theta; the largest gaps, as many as theta says, are those
between clusters.

Values of one cluster are counted as one value repeated, which is what they are at worst: a tail of
clusters of sizes s is worth ``(sum s)^2 / sum s^2`` independent values. Measured on Gaussian heads
over autoregressive tokens (n = 3,000, d = 1 to 4, H = 0.5 to 2; ``benchmarks/calibration.py``),
this covers where less does not: a sandwich over clusters, with their scores in place of their
sizes, covers 65 to 88% at a correlation of 0.95.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.statistics.tail import tail_count


@dataclass(frozen=True)
class Clusters:
    """Clusters of the largest values of a sequence.

    Attributes
    ----------
    count
        Number of clusters.
    effective
        Number of independent values that the tail is worth.
    """

    count: int
    effective: float


def tail_clusters(values: Array) -> Clusters:
    """Clusters of the ``3 sqrt(n)`` largest values, which are in the order of the text."""
    n = len(values)
    size = tail_count(n)
    at = np.sort(np.argsort(values, kind="stable")[n - size :])
    labels = _labels(at)
    sizes = np.bincount(labels).astype(np.float64)
    return Clusters(len(sizes), float(size**2 / np.sum(sizes**2)))


def _labels(at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cluster of every place, given in increasing order."""
    gaps = np.diff(at)
    clusters = min(int(_extremal_index(gaps.astype(np.float64)) * len(at)) + 1, len(at))
    if clusters <= 1:
        return np.zeros(len(at), dtype=np.int64)
    # Gaps as long as the last that would be used are left out if there are too many of them.
    shortest = np.sort(gaps)[len(gaps) - (clusters - 1)]
    between = gaps > shortest if np.sum(gaps >= shortest) > clusters - 1 else gaps >= shortest
    return np.concatenate([[0], np.cumsum(between)])


def _extremal_index(gaps: Array) -> float:
    """Share of the gaps that are between clusters: the intervals estimator."""
    if gaps.max() <= 2:
        return min(1.0, float(2 * gaps.sum() ** 2 / (len(gaps) * np.sum(gaps**2))))
    longer = gaps - 1
    return min(1.0, float(2 * longer.sum() ** 2 / (len(gaps) * np.sum(longer * (gaps - 2)))))
