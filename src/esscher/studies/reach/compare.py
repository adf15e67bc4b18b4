"""What was predicted against what was measured; budgets by k-hat; scales on held-out items."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from esscher.core.codec import Estimate
from esscher.math.statistics.means import wilson
from esscher.studies.reach.heads import Items, estimate
from esscher.studies.reach.records import (
    ARMS,
    CheckCell,
    Compared,
    Coverage,
    HeadReach,
    ScaleCheck,
    Score,
    WeightCheck,
)

#: Ends of the ranges of k-hat: a half (finite variance), 0.7 (the rule of importance sampling), 1.
TAILS = (None, 0.5, 0.7, 1.0, None)
#: Fewest held-out items of which a scale is judged: an interval of two or three numbers rests on
#: their being normal, and there are eight comparisons at every length.
FEWEST = 4


def compared(difference: Estimate, lower_is_better: bool, enough: bool = True) -> Compared:
    """Judge a difference by its interval; without one, or enough items, nothing is decided."""
    low, high = difference.interval
    if not enough or low is None or high is None or low <= 0 <= high:
        return "undecided"
    return "better" if (high < 0) == lower_is_better else "worse"


def scores(items: Items) -> tuple[Score, ...]:
    """Answers of the model at every length, measured, predicted, and unchanged."""
    if not items.lengths:
        return ()
    found = []
    first = items.abouts[items.lengths[0]]
    place = {n: i for i, n in enumerate(items.lengths)}
    for n in items.lengths:
        own = items.abouts[n]
        start = [first[i] for i in items.first[n]]
        right = sum(one.right for one in own)
        found.append(
            Score(
                length=n,
                items=len(own),
                right=right / len(own),
                right_interval=wilson(right, len(own)),
                log_probability=estimate(
                    np.array([one.log_probability for one in own]), highest=0.0
                ),
                predicted=estimate(
                    np.array([one.predicted[place[n]] for one in start]), highest=0.0
                ),
                unchanged=float(np.mean([one.log_probability for one in start])),
            )
        )
    return tuple(found)


def weight_checks(retrieving: Sequence[HeadReach]) -> tuple[WeightCheck, ...]:
    """Compare weights of retrieving heads beyond the shortest length.

    Heads whose weight is 0 at a length have no ratio there and are left out.
    """
    found = []
    lengths = [one.length for one in retrieving[0].lengths] if retrieving else []
    for i, n in enumerate(lengths[1:], 1):
        logs, unchanged = [], []
        for head in retrieving:
            measured, start = head.lengths[i].weight.value, head.lengths[0].weight.value
            predicted = head.lengths[i].predicted
            if measured and start and predicted > 0:
                logs.append(np.log(predicted / measured))
                unchanged.append(np.log(start / measured))
        if not logs:
            continue
        ratio, same = np.array(logs), np.array(unchanged)
        difference = estimate(np.abs(ratio) - np.abs(same))
        low, high = np.exp(np.quantile(ratio, [0.25, 0.75]))
        found.append(
            WeightCheck(
                length=n,
                heads=len(logs),
                median_ratio=float(np.exp(np.median(ratio))),
                quartiles=(float(low), float(high)),
                error=float(np.abs(ratio).mean()),
                error_unchanged=float(np.abs(same).mean()),
                difference=difference,
                verdict=compared(difference, lower_is_better=True),
            )
        )
    return tuple(found)


def coverages(heads: Sequence[HeadReach]) -> tuple[Coverage, ...]:
    """Coverage of budgets for heads with k-hat in each range; ranges without heads are left out."""
    found = []
    for low, high in itertools.pairwise(TAILS):
        own = [
            head for head in heads
            if head.tail is not None and (low is None or head.tail >= low)
            and (high is None or head.tail < high)
        ]  # fmt: skip
        if own:
            found.append(
                Coverage(
                    tail=(low, high),
                    heads=len(own),
                    coverage=estimate(np.array([head.coverage for head in own]), 0.0, 1.0),
                    coverage_top=estimate(np.array([head.coverage_top for head in own]), 0.0, 1.0),
                )
            )
    return tuple(found)


def scale_checks(cells: Sequence[CheckCell]) -> tuple[ScaleCheck, ...]:
    """Every scale at every length against none, paired: texts by texts, answers by items.

    Items of the same number have the same text, in which different needles are hidden: what a scale
    does to it is seen once, however many items there are.
    """
    found = []
    for n in sorted({cell.length for cell in cells}):
        own = [cell for cell in cells if cell.length == n]
        base = [cell.arms["none"] for cell in own]
        for arm in ARMS:
            scored = [cell.arms[arm] for cell in own]
            changes: dict[int, list[float]] = {}
            for cell, a, b in zip(own, scored, base, strict=True):
                changes.setdefault(cell.number, []).append(a.surprise - b.surprise)
            surprise = estimate(np.array([np.mean(same) for same in changes.values()]))
            answer = estimate(
                np.array(
                    [a.log_probability - b.log_probability
                     for a, b in zip(scored, base, strict=True)]
                )
            )  # fmt: skip
            found.append(
                ScaleCheck(
                    arm=arm,
                    length=n,
                    items=len(own),
                    surprise=float(np.mean([one.surprise for one in scored])),
                    log_probability=float(np.mean([one.log_probability for one in scored])),
                    right=float(np.mean([one.right for one in scored])),
                    surprise_change=surprise,
                    log_probability_change=answer,
                    perplexity_verdict=compared(surprise, True, len(changes) >= FEWEST),
                    needle_verdict=compared(answer, False, len(own) >= FEWEST),
                )
            )
    return tuple(found)
