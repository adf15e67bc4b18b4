"""The result on a page of a report: the best patterns, verdicts, and a table of all heads."""

from __future__ import annotations

from typing import Any

from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import ends_of
from esscher.show.numbers import between, shown
from esscher.studies.sparse.charts import best_pattern
from esscher.studies.sparse.result import RANDOM, Sparse, count_heads, rate_words, student
from esscher.studies.sparse.verdicts import MARGIN, NEVER, UNDECIDED

#: Relative error for which budgets are asked, as the study has it.
TARGET = "10%"


def summary(found: Sparse, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    tables = [_verdicts(found, name)] if found.patterns else []
    tables += [_heads(found, name)] if found.heads else []
    cards = _cards(found) if found.patterns else []
    return Summary("Sparse attention patterns", found.subject, cards, tables)


def _cards(found: Sparse) -> list[Card]:
    patterns, largest = found.patterns, found.budgets[-1]
    base = patterns[RANDOM].fit.map
    last = {name: p.curve.dense.map.mean[-1] for name, p in patterns.items()}
    best, second = sorted(last, key=lambda name: last[name])[:2] if len(last) > 1 else (RANDOM, "")
    after = f", next is {second} with {last[second]:.3g}" if second not in ("", RANDOM) else ""
    noise = patterns[best].curve.dense.map.standard_error
    spread = "" if noise is None else f" ± {student(found) * noise[-1]:.2g}"
    out = [
        Card(shown(base.exponent, "d3"), "exponent of random selection",
             f"map error, 95% interval {shown(base.interval[0], 'd3')} to "
             f"{shown(base.interval[1], 'd3')}: {rate_words(base.interval)}"),
        Card(best, f"smallest mean error at r = {largest:,}",
             f"map error {last[best]:.3g}{spread}; random {last[RANDOM]:.3g}{after}"),
    ]  # fmt: skip
    reached = {
        name: p.break_even.for_target for name, p in patterns.items()
        if p.break_even.for_target.budget is not None
    }  # fmt: skip
    if reached:
        cheapest = min(reached, key=lambda name: reached[name].budget or 0.0)
        low, high = reached[cheapest].interval
        out.append(
            Card(between(reached[cheapest].budget, None, "n0"),
                 f"keys for {TARGET} map error, at least",
                 f"with {cheapest}; 95% interval {shown(low, 'n0')} to "
                 f"{shown(high, 'n0', 'beyond the grid')}")
        )  # fmt: skip
    never, unknown = (sum(p.verdict == v for p in patterns.values()) for v in (NEVER, UNDECIDED))
    out.append(Card(f"{never} of {len(patterns)}",
                    "patterns do not converge to dense on these budgets",
                    f"{unknown} undecided"))  # fmt: skip
    out.append(Card(f"{found.visible:,.0f}", "keys that a query sees", "dense attention, mean"))
    return out


def _verdicts(found: Sparse, name: str) -> Table:
    patterns = found.patterns.values()
    fits = [p.fit.map for p in patterns]
    low, high = ends_of(fit.interval for fit in fits)
    versus = [None if p.versus_random is None else p.versus_random.map for p in patterns]
    ratio_low, ratio_high = ends_of(None if v is None else v.ratio_interval for v in versus)
    gap_low, gap_high = ends_of(
        None if v is None else v.exponent_difference_interval for v in versus
    )
    target = [p.break_even.for_target for p in patterns]
    keys_low, keys_high = ends_of(t.interval if t.state == "inside" else None for t in target)
    said = {"above": "error is above it everywhere", "below": "error is below it everywhere"}
    return Table(
        title="Verdicts",
        name=f"{name}-verdicts",
        columns=[
            Column("pattern", "pattern"),
            Column("verdict", "verdict"),
            Column("exponent", "exponent, map", "d3", "low", "high"),
            Column("difference", "minus that of random", "d3", "difference_low", "difference_high",
                   help="difference of exponents, both resampled together"),
            Column("ratio", "error / random", "s3", "ratio_low", "ratio_high",
                   help="geometric mean over the budgets of the map error over that of random "
                   "selection"),
            Column("keys", f"keys for {TARGET}", "n0", "keys_low", "keys_high",
                   missing="not on this grid", last=True),
            Column("evidence", "evidence"),
            Column("target", "the error asked for", shown=False),
        ],
        data={
            "pattern": list(found.patterns),
            "title": [p.title for p in patterns],
            "verdict": [p.verdict for p in patterns],
            "exponent": [fit.exponent for fit in fits],
            "low": low,
            "high": high,
            "difference": [None if v is None else v.exponent_difference for v in versus],
            "difference_low": gap_low,
            "difference_high": gap_high,
            "ratio": [None if v is None else v.ratio for v in versus],
            "ratio_low": ratio_low,
            "ratio_high": ratio_high,
            "keys": [t.budget for t in target],
            "keys_low": keys_low,
            "keys_high": keys_high,
            "target": [said.get(t.state, "reached") for t in target],
            "evidence": [p.evidence for p in patterns],
        },
        caption="Does the map error of a pattern fall as fast as that of random selection? Yes if "
        f"the interval of the difference of exponents is within {MARGIN:g} of 0, no if it is "
        "outside, undecided otherwise.",
    )  # fmt: skip


def _heads(found: Sparse, name: str) -> Table:
    heads, largest = found.heads, found.budgets[-1]
    data: dict[str, list[Any]] = {
        "layer": [unit.layer for unit in heads],
        "head": [unit.head for unit in heads],
        "best": [best_pattern(unit) for unit in heads],
    }
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        Column(
            "best",
            "smallest error",
            help="pattern with the smallest mean map error; not tested against the next one",
        ),
    ]
    for pattern in found.patterns:
        own = [unit.patterns[pattern] for unit in heads]
        low, high = ends_of(one.map.interval for one in own)
        data |= {
            f"{pattern}_exponent": [one.map.exponent for one in own],
            f"{pattern}_low": low,
            f"{pattern}_high": high,
            f"{pattern}_error": [one.map.error[-1] for one in own],
            f"{pattern}_keys": [one.budget for one in own],
        }
        columns += [
            Column(f"{pattern}_exponent", f"exponent, {pattern}", "d2", f"{pattern}_low",
                   f"{pattern}_high", shown=pattern == RANDOM),
            Column(f"{pattern}_error", f"error, {pattern}", "s3",
                   help=f"map error at r = {largest:,}"),
            Column(f"{pattern}_keys", f"keys for {TARGET}, {pattern}", "n0",
                   missing="not on this grid", last=True, shown=False),
        ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data,
        caption=f"Map errors at r = {largest:,}. {_counted(found)} The CSV file also has the "
        "exponents of all patterns, with intervals over passages (not adjusted for the number of "
        "heads).",
        sort=(f"{RANDOM}_error", True),
    )


def _counted(found: Sparse) -> str:
    """In how many heads each pattern is better than random selection, as a sentence."""
    parts = []
    for name in found.patterns:
        if name != RANDOM:
            counts = count_heads(found.heads, name)
            parts.append(f"{name} {counts['better']} / {counts['worse']} / {counts['undecided']}")
    return (
        "Heads in which a pattern is better than random selection / worse / undecided: "
        f"{', '.join(parts)} (paired over passages, adjusted over heads by Holm)."
    )
