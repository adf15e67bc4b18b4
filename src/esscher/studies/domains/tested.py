"""All tests of a comparison, corrected for their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.statistics.intervals import discoveries, family_wise, selected_level
from esscher.studies.domains.comparison import Pairs, compare_pairs, halves_check, omnibus
from esscher.studies.domains.decided import (
    blocks_for,
    classify,
    head_counts,
    least_blocks,
    margin,
    power,
)
from esscher.studies.domains.records import (
    Correction,
    Difference,
    HeadCounts,
    Omnibus,
    Pair,
    PerHead,
    StatisticTests,
)
from esscher.studies.domains.statistics import Statistic

#: Digits of numbers that are listed by the thousand.
DIGITS = 5
#: Share by which a count of tests may be rounded up.
ROUNDING = 1e-9
#: Differences that are listed for each statistic.
LISTED = 3


@dataclass(frozen=True)
class AllTests:
    """Tests by statistic, heads that differ, all tests together, and the largest differences."""

    tests: dict[str, StatisticTests]
    counts: dict[str, HeadCounts]
    correction: Correction
    strongest: tuple[Difference, ...]


def run_tests(
    values: dict[str, Array],
    used: Sequence[Statistic],
    names: Sequence[str],
    units: NDArray[np.int64],
    fdr: float,
    seed: int,
    permutations: int,
) -> AllTests:
    """All tests, corrected for their number: one family of all corpora, one of pairs."""
    whole = np.concatenate([values[s.name] for s in used])
    count = len(units)
    overall = omnibus(whole, fdr, seed, permutations)
    rate, wise = discoveries(overall.p), family_wise(overall.p)
    pairs = compare_pairs(whole)
    pair_rate, pair_wise = discoveries(pairs.p), family_wise(pairs.p)
    made = int(np.count_nonzero(np.isfinite(pairs.p)))
    selected = int(np.count_nonzero(pair_rate <= fdr))
    level = selected_level(selected, max(made, 1), fdr)
    low, high = pairs.intervals(level)
    rejected, halves = halves_check(whole, fdr, seed)
    tested = int(np.count_nonzero(np.isfinite(overall.p)))
    found = int(np.count_nonzero(rate <= fdr))
    # a p-value is a discovery if it is at most this: Benjamini and Hochberg's line
    cut = 1 - selected_level(found, max(tested, 1), fdr)
    margins = np.repeat([margin(s) for s in used], count)
    classes = classify(rate, whole, pairs, margins, fdr)
    powers = power(whole, margins, cut, overall.smallest)
    tests: dict[str, StatisticTests] = {}
    strongest: list[Difference] = []
    for i, s in enumerate(used):
        rows = slice(i * count, (i + 1) * count)
        tests[s.name] = StatisticTests(
            omnibus=Omnibus(
                p=_listed(overall.p[rows]),
                adjusted=_listed(rate[rows]),
                holm=_listed(wise[rows]),
                share=_listed(overall.share[rows]),
            ),
            pairs=tuple(
                Pair(
                    a=names[a],
                    b=names[b],
                    heads=int(np.count_nonzero(pair_rate[rows, j] <= fdr)),
                    heads_holm=int(np.count_nonzero(pair_wise[rows, j] <= fdr)),
                    effect=_listed(s.backward(pairs.difference[rows, j])),
                    low=_listed(s.backward(low[rows, j])),
                    high=_listed(s.backward(high[rows, j])),
                    adjusted=_listed(pair_rate[rows, j]),
                )
                for j, (a, b) in enumerate(pairs.pairs)
            ),
            classes=tuple(classes[rows]),
            margin=_digits(s.backward(np.array(margin(s)))),
            power=_listed(powers[rows]),
            blocks_needed=blocks_for(whole[rows], margins[rows], cut),
        )
        strongest += _strongest(s, pairs, rows, low, high, pair_rate, pair_wise, names, units)
    correction = Correction(
        omnibus_tests=tested,
        omnibus_found=found,
        omnibus_found_holm=int(np.count_nonzero(wise <= fdr)),
        permutations=overall.permutations,
        smallest_p=overall.smallest,
        pair_tests=made,
        pairs_found=selected,
        pairs_found_holm=int(np.count_nonzero(pair_wise <= fdr)),
        interval_level=level,
        halves_rejected=rejected / halves if halves else None,
        halves_tests=halves,
        least_found=math.ceil(tested * overall.smallest / fdr * (1 - ROUNDING)),
        blocks_for_any=least_blocks(len(names), fdr),
        blocks_for_one=least_blocks(len(names), fdr / max(tested, 1)),
    )
    return AllTests(tests, _counts(used, classes, wise <= fdr), correction, tuple(strongest))


def _counts(
    used: Sequence[Statistic], classes: Sequence[str], sure: NDArray[np.bool_]
) -> dict[str, HeadCounts]:
    """Heads of each class, by statistic and over all of them."""
    count = len(classes) // len(used)
    grid = [classes[i * count : (i + 1) * count] for i in range(len(used))]
    wise = sure.reshape(len(used), count)
    out = {s.name: head_counts([grid[i]], int(wise[i].sum())) for i, s in enumerate(used)}
    return out | {"any": head_counts(grid, int(wise.any(axis=0).sum()))}


def _strongest(
    s: Statistic,
    pairs: Pairs,
    rows: slice,
    low: Array,
    high: Array,
    rate: Array,
    wise: Array,
    names: Sequence[str],
    units: NDArray[np.int64],
) -> list[Difference]:
    """The largest differences of a statistic by the near end of their interval, one per head."""
    near = np.maximum(np.maximum(low[rows], -high[rows]), 0.0)
    near = np.where(np.isfinite(near), near, 0.0)
    best = near.argmax(axis=1)
    size = near.max(axis=1)
    found = []
    for h in np.argsort(-size, kind="stable")[:LISTED]:
        if size[h] <= 0:
            break
        j, at = int(best[h]), rows.start + int(h)
        a, b = pairs.pairs[j]
        found.append(
            Difference(
                statistic=s.name,
                layer=int(units[h, 0]),
                head=int(units[h, 1]),
                a=names[a],
                b=names[b],
                effect=_digits(s.backward(pairs.difference[at, j])),
                interval=(_digits(s.backward(low[at, j])), _digits(s.backward(high[at, j]))),
                adjusted=_digits(rate[at, j]),
                holm=_digits(wise[at, j]),
            )
        )
    return found


def rounded(value: Any) -> float | None:
    """A number with five digits; None if it is not finite."""
    return _digits(value) if np.isfinite(float(value)) else None


def _digits(value: Any) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def _listed(values: Array) -> PerHead:
    return tuple(rounded(value) for value in values)
