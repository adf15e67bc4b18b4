"""From items to heads: means over items, intervals, and which heads retrieve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from esscher.core.codec import Estimate
from esscher.core.validation import Array
from esscher.math.statistics.means import LEVEL, mean_and_interval
from esscher.math.statistics.multiple import discoveries
from esscher.runs.cells import Cell, CellRun
from esscher.studies.reach.records import AtLength, HeadReach, ItemCell, Verdict

#: A head retrieves if its share of an item's positive contributions is positive at this false
#: discovery rate, and in the mean at least so large.
RATE, SHARE = 0.05, 0.01
#: Columns that every cell has; those of the shortest length predict as well.
COLUMNS = (
    "layer", "head", "weight", "contribution", "advantage", "spread", "distance", "entropy",
    "largest", "gap_1", "gap_2", "gap_4", "gap_8", "certified_0.01", "certified_0.05", "tail",
    "coverage", "sampled", "coverage_top",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Items:
    """Measured items by length; those of a length are in the order of the shortest one's.

    Attributes
    ----------
    lengths
        Lengths of which there are items that the shortest length has, too.
    abouts, columns
        By length: items, and numbers by name, [item, head].
    first
        By length: rows of the same items among those of the shortest length.
    places
        Layer and head.
    """

    lengths: tuple[int, ...]
    abouts: Mapping[int, list[ItemCell]]
    columns: Mapping[int, dict[str, Array]]
    first: Mapping[int, list[int]]
    places: list[tuple[int, int]]

    @classmethod
    def of(
        cls, lengths: Sequence[int], heads: int, cells: Mapping[str, Cell], run: CellRun
    ) -> Items:
        """Sort cells by their length.

        Raises
        ------
        InputError
            For a damaged cell.
        """
        abouts: dict[int, list[ItemCell]] = {n: [] for n in lengths}
        tables: dict[int, list[dict[str, Array]]] = {n: [] for n in lengths}
        places: list[tuple[int, int]] = []
        for name, cell in cells.items():
            about: ItemCell = cell.about
            shortest = about.length == lengths[0]
            wanted = COLUMNS + (tuple(predicted_columns(lengths)) if shortest else ())
            if about.length not in abouts or not set(wanted) <= set(cell.table.columns):
                raise run.damaged(name, "it is not an item of this run, or lacks columns")
            if len(about.predicted) != (len(lengths) if shortest else 0):
                raise run.damaged(name, "it does not predict all lengths")
            table = {column: cell.table[column].to_numpy(dtype=np.float64) for column in wanted}
            own = list(zip(*(table[c].astype(int).tolist() for c in ("layer", "head")),
                           strict=True))  # fmt: skip
            places = places or own
            if own != places or len(own) % heads:
                raise run.damaged(name, "its heads are not those of the others")
            abouts[about.length].append(about)
            tables[about.length].append(table)
        keys = [(one.task, one.number) for one in abouts[lengths[0]]]
        first, columns = {}, {}
        for n in lengths:
            there = [i for i, one in enumerate(abouts[n]) if (one.task, one.number) in keys]
            abouts[n] = [abouts[n][i] for i in there]
            if there:
                first[n] = [keys.index((one.task, one.number)) for one in abouts[n]]
                columns[n] = {
                    c: np.stack([tables[n][i][c] for i in there]) for c in tables[n][there[0]]
                }
        return cls(tuple(columns), abouts, columns, first, places)


def predicted_columns(lengths: Sequence[int]) -> list[str]:
    """Names of the columns that the shortest length has besides."""
    return [f"{kind}_{n}" for n in lengths for kind in ("predicted", "scale")]


def estimate(values: Array, lowest: float = -np.inf, highest: float = np.inf) -> Estimate:
    """Mean of a few values with Student's interval in their range; none for a single value."""
    found = mean_and_interval(np.asarray(values, dtype=np.float64)[:, None], lowest, highest)
    ends = found["interval"][0]
    low, high = (None, None) if ends is None else ends
    return Estimate(value=found["mean"][0], interval=(low, high))


def ratio_of_means(over: Array, under: Array) -> Estimate:
    """Ratio of two means over the same items; the interval by leaving out one item at a time."""
    if not (over.sum() > 0 and under.sum() > 0):
        return Estimate(value=None, interval=(None, None))
    log = math.log(over.sum() / under.sum())
    count = len(over)
    left = (over.sum() - over), (under.sum() - under)
    if count < 2 or min(part.min() for part in left) <= 0:
        return Estimate(value=math.exp(log), interval=(None, None))
    logs = np.log(left[0] / left[1])
    error = math.sqrt((count - 1) / count * float(((logs - logs.mean()) ** 2).sum()))
    half = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    ends = tuple(math.exp(min(x, 700.0)) for x in (log - half, log + half))
    return Estimate(value=math.exp(log), interval=(ends[0], ends[1]))


def head_records(items: Items) -> tuple[HeadReach, ...]:
    """Judge every head; contributions are those at the shortest length."""
    shortest, longest = items.lengths[0], items.lengths[-1]
    early, late = items.columns[shortest], items.columns[longest]
    effects = early["contribution"]
    verdicts = judge(effects)
    shares = shares_of(effects).mean(axis=0)
    found = []
    for i, (layer, head) in enumerate(items.places):
        tails = late["tail"][:, i]
        known = tails[np.isfinite(tails)]
        found.append(
            HeadReach(
                layer=layer,
                head=head,
                verdict=verdicts[i],
                contribution=estimate(effects[:, i]),
                share=float(shares[i]),
                tail=float(known.mean()) if len(known) else None,
                distance=float(late["distance"][:, i].mean()),
                coverage=float(late["coverage"][:, i].mean()),
                coverage_top=float(late["coverage_top"][:, i].mean()),
                sampled=float(late["sampled"][:, i].mean()),
                slope=_slope(items, i),
                lengths=tuple(_at_length(items, n, i) for n in items.lengths),
            )
        )
    return tuple(found)


def shares_of(effects: Array) -> Array:
    """Contributions as shares of all positive ones of the same item, [item, head]."""
    positive = np.maximum(effects, 0.0).sum(axis=1, keepdims=True)
    return np.asarray(effects / np.where(positive > 0, positive, 1.0))


def judge(effects: Array) -> list[Verdict]:
    """Whether heads retrieve, from their contributions [item, head].

    By shares, since tasks differ in how much there is to add. A head does not if the upper end of
    its interval is below the share that counts; with one item nothing is decided.
    """
    count, heads = effects.shape
    if count < 2:
        return ["undecided"] * heads
    shares = shares_of(effects)
    mean, error = shares.mean(axis=0), shares.std(axis=0, ddof=1) / math.sqrt(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, mean / error, np.where(mean > 0, np.inf, 0.0))
    p = discoveries(scipy.special.stdtr(count - 1, -t))
    upper = mean + scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2) * error
    return [
        "retrieves" if p[i] <= RATE and mean[i] >= SHARE
        else "does not" if upper[i] < SHARE else "undecided"
        for i in range(heads)
    ]  # fmt: skip


def _slope(items: Items, i: int) -> float | None:
    """Slope of the scale over ln(n/n_0), at the longest length that a scale reaches."""
    shortest = items.lengths[0]
    for n in reversed(items.lengths[1:]):
        scales = items.columns[shortest][f"scale_{n}"][:, i]
        known = scales[np.isfinite(scales)]
        if 2 * len(known) > len(scales):
            return float((np.median(known) - 1) / math.log(n / shortest))
    return None


def _at_length(items: Items, n: int, i: int) -> AtLength:
    shortest, own = items.lengths[0], items.columns[n]
    predicted = items.columns[shortest][f"predicted_{n}"][items.first[n], i]
    measured = own["weight"][:, i]
    gaps = [float(own[f"gap_{gap}"][:, i].mean()) for gap in (1, 2, 4, 8)]
    return AtLength(
        length=n,
        weight=estimate(measured, 0.0, 1.0),
        predicted=float(predicted.mean()),
        ratio=ratio_of_means(predicted, measured),
        advantage=float(own["advantage"][:, i].mean()),
        spread=float(own["spread"][:, i].mean()),
        entropy=float(own["entropy"][:, i].mean()),
        largest=float(own["largest"][:, i].mean()),
        gaps=(gaps[0], gaps[1], gaps[2], gaps[3]),
        certified=(
            int(own["certified_0.01"][:, i].max()), int(own["certified_0.05"][:, i].max())
        ),
    )  # fmt: skip
