"""All tests of a comparison, corrected for their number, as plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.validation import Array
from esscher.math.statistics.multiple import discoveries, family_wise, selected_level
from esscher.studies.domains.comparison import Pairs, compare_pairs, halves_check, omnibus
from esscher.studies.domains.statistics import Statistic

#: Digits of numbers that are listed by the thousand.
DIGITS = 5
#: Differences that are listed for each statistic.
LISTED = 3


def run_tests(
    values: dict[str, Array],
    used: list[Statistic],
    names: list[str],
    units: Any,
    alpha: float,
    seed: int,
) -> dict[str, Any]:
    """All tests, corrected for their number: one family of all corpora, one of pairs."""
    whole = np.concatenate([values[s.name] for s in used])
    count = len(units)
    overall = omnibus(whole, alpha, seed)
    rate, wise = discoveries(overall.p), family_wise(overall.p)
    pairs = compare_pairs(whole)
    pair_rate, pair_wise = discoveries(pairs.p), family_wise(pairs.p)
    made = int(np.count_nonzero(np.isfinite(pairs.p)))
    selected = int(np.count_nonzero(pair_rate <= alpha))
    level = selected_level(selected, max(made, 1), alpha)
    low, high = pairs.intervals(level)
    rejected, halves = halves_check(whole, alpha, seed)
    tests: dict[str, Any] = {}
    strongest: list[dict[str, Any]] = []
    for i, s in enumerate(used):
        rows = slice(i * count, (i + 1) * count)
        tests[s.name] = {
            "omnibus": {
                "p": rounded_list(overall.p[rows]),
                "adjusted": rounded_list(rate[rows]),
                "holm": rounded_list(wise[rows]),
                "share": rounded_list(overall.share[rows]),
            },
            "pairs": [
                {
                    "a": names[a],
                    "b": names[b],
                    "heads": int(np.count_nonzero(pair_rate[rows, j] <= alpha)),
                    "heads_holm": int(np.count_nonzero(pair_wise[rows, j] <= alpha)),
                    "effect": rounded_list(s.backward(pairs.difference[rows, j])),
                    "low": rounded_list(s.backward(low[rows, j])),
                    "high": rounded_list(s.backward(high[rows, j])),
                    "adjusted": rounded_list(pair_rate[rows, j]),
                }
                for j, (a, b) in enumerate(pairs.pairs)
            ],
        }
        strongest += _strongest(s, pairs, rows, low, high, pair_rate, pair_wise, names, units)
    return {
        "tests": tests,
        "counts": _counts(used, rate, wise, count, alpha),
        "correction": {
            "omnibus_tests": int(np.count_nonzero(np.isfinite(overall.p))),
            "omnibus_found": int(np.count_nonzero(rate <= alpha)),
            "omnibus_found_holm": int(np.count_nonzero(wise <= alpha)),
            "permutations": overall.permutations,
            "smallest_p": overall.smallest,
            "pair_tests": made,
            "pairs_found": selected,
            "pairs_found_holm": int(np.count_nonzero(pair_wise <= alpha)),
            "interval_level": level,
            "halves_rejected": rejected / halves if halves else None,
            "halves_tests": halves,
        },
        "strongest": strongest,
    }


def _counts(
    used: list[Statistic], rate: Array, wise: Array, count: int, alpha: float
) -> dict[str, Any]:
    """Heads in which corpora differ, by statistic and in any."""
    grids = [grid.reshape(len(used), count) <= alpha for grid in (rate, wise)]
    out = {
        s.name: {"heads": int(grids[0][i].sum()), "heads_holm": int(grids[1][i].sum())}
        for i, s in enumerate(used)
    }
    out["any"] = {
        "heads": int(grids[0].any(axis=0).sum()),
        "heads_holm": int(grids[1].any(axis=0).sum()),
    }
    return out


def _strongest(
    s: Statistic,
    pairs: Pairs,
    rows: slice,
    low: Array,
    high: Array,
    rate: Array,
    wise: Array,
    names: list[str],
    units: Any,
) -> list[dict[str, Any]]:
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
            {
                "statistic": s.name,
                "layer": int(units[h, 0]),
                "head": int(units[h, 1]),
                "a": names[a],
                "b": names[b],
                "effect": rounded(s.backward(pairs.difference[at, j])),
                "interval": [rounded(s.backward(ends[at, j])) for ends in (low, high)],
                "adjusted": rounded(rate[at, j]),
                "holm": rounded(wise[at, j]),
            }
        )
    return found


def rounded(value: Any) -> float | None:
    """A number as JSON holds it, with five digits; None if it is not finite."""
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if np.isfinite(number) else None


def rounded_list(values: Array) -> list[float | None]:
    """Numbers as JSON holds them, None for those that are not finite."""
    return [rounded(value) for value in values]
