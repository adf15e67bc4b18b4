"""The result in a terminal, and on a page of a report."""

from __future__ import annotations

from typing import Any

from esscher.core.shown import shown, with_error, with_interval
from esscher.math.statistics import Rate
from esscher.math.statistics.records import rate_words
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.sparse.charts import best_pattern, subject
from esscher.studies.sparse.result import MARGIN, NEVER, RANDOM, UNDECIDED, Sparse

#: How verdicts are made, below tables.
RULE = (
    "verdict: whether the 95% interval of the exponent of the map minus that of random selection "
    f"lies within {MARGIN:g} of 0, or beyond; replicates (passages of a model) are independent, "
    "and one exponent stands for these budgets"
)


def print_result(result: Sparse, console: PlainConsole) -> None:
    """Print one row per pattern."""
    if not result.patterns:
        console.say(subject(result))
        return
    first, last = result.budgets[0], result.budgets[-1]
    table = PlainTable(
        f"{subject(result)}{'' if result.complete else ' (not complete)'}: error against dense "
        f"attention, r = {first} to {last} keys",
        least=("cov", "mean", f"r={last}", "x random"),
    )
    for name in ("pattern", "verdict", "map", "- random", "x random", f"r={last}", "mean", "cov"):
        words = name in ("pattern", "verdict")
        table.add_column(name, justify="left" if words else "right", no_wrap=name != "verdict")
    for name, pattern in result.patterns.items():
        compared = ["0", "1"]
        if pattern.difference is not None and pattern.ratio is not None:
            compared = []
            for estimate in (pattern.difference.map, pattern.ratio.map):
                value, (low, high) = estimate.value, estimate.interval
                if value is None:
                    compared.append("-")
                elif low is None or high is None:
                    compared.append(f"{value:.3g}")
                else:
                    compared.append(with_interval(value, (low, high)))
        table.add_row(
            name,
            pattern.verdict,
            _exponent(pattern.fit.map),
            *compared,
            f"{100 * pattern.curve.map.mean[-1]:.3g}%",
            _exponent(pattern.fit.mean),
            _exponent(pattern.fit.cov),
        )
    console.print(table)
    console.explain(
        "map, mean, cov: exponents of error ~ C r^-beta, errors divided by sqrt(1 - r/N); in "
        "brackets half the width of the 95% interval (last digits); * not to be trusted or not a "
        "power law (--json says why). - random: exponent of the map minus that of random "
        "selection; x random: its error over that of random selection, mean over budgets. r=: "
        f"relative map error. {RULE[0].upper()}{RULE[1:]}."
    )


def _exponent(fit: Rate) -> str:
    low, high = fit.interval
    half = None if low is None or high is None else (high - low) / 2
    mark = "" if fit.trusted and fit.law == "power" else "*"
    return with_error(fit.exponent, half, 2) + mark


def summary(result: Sparse, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    cards: list[Card] = []
    tables: list[Table] = []
    if result.patterns:
        cards = _cards(result)
        tables.append(_verdicts(result, name))
    if result.heads:
        tables.append(_heads(result, name))
    return Summary("Sparse attention patterns", subject(result), cards, tables)


def _cards(result: Sparse) -> list[Card]:
    patterns = result.patterns
    base = patterns[RANDOM].fit.map
    last = {name: pattern.curve.map.mean[-1] for name, pattern in patterns.items()}
    best = min(last, key=lambda name: last[name])
    ends = patterns[best].curve.map.interval[-1]
    interval = "" if ends is None else f" ({ends[0]:.3g} to {ends[1]:.3g})"
    never, unknown = (sum(p.verdict == v for p in patterns.values()) for v in (NEVER, UNDECIDED))
    return [
        Card(
            shown(base.exponent, "d3"),
            "exponent of random selection",
            f"map error, 95% interval {shown(base.interval[0], 'd3')} to "
            f"{shown(base.interval[1], 'd3')}: {rate_words(base.interval)}",
        ),
        Card(
            best,
            f"smallest mean error at r = {result.budgets[-1]:,}",
            f"map error {last[best]:.3g}{interval}; random {last[RANDOM]:.3g}",
        ),
        Card(
            f"{never} of {len(patterns)}",
            "patterns do not converge to dense on these budgets",
            f"{unknown} undecided",
        ),
        Card(f"{result.visible:,.0f}", "keys that a query sees", "dense attention, mean"),
    ]


def _verdicts(result: Sparse, name: str) -> Table:
    table = result.table()
    return Table(
        title="Verdicts",
        name=f"{name}-verdicts",
        columns=[
            Column("pattern", "pattern"),
            Column("verdict", "verdict"),
            Column("exponent", "exponent, map", "d3", "low", "high"),
            Column(
                "difference",
                "minus that of random",
                "d3",
                "difference_low",
                "difference_high",
                help="difference of exponents, both resampled together",
            ),
            Column(
                "ratio",
                "error / random",
                "s3",
                "ratio_low",
                "ratio_high",
                help="geometric mean over the budgets of the map error over that of random "
                "selection",
            ),
            Column("last_error", f"error at r = {result.budgets[-1]:,}", "s3"),
        ],
        data=data_of(table[table["metric"] == "map"]),
        caption=f"{RULE[0].upper()}{RULE[1:]}.",
    )


def _heads(result: Sparse, name: str) -> Table:
    heads = result.heads
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
    for pattern in result.patterns:
        curves = [unit.patterns[pattern] for unit in heads]
        ends = [curve.exponent.interval or (None, None) for curve in curves]
        data |= {
            f"{pattern}_exponent": [curve.exponent.value for curve in curves],
            f"{pattern}_low": [low for low, _ in ends],
            f"{pattern}_high": [high for _, high in ends],
            f"{pattern}_error": [curve.error[-1] for curve in curves],
        }
        columns += [
            Column(
                f"{pattern}_exponent",
                f"exponent, {pattern}",
                "d2",
                f"{pattern}_low",
                f"{pattern}_high",
                shown=pattern == RANDOM,
            ),
            Column(f"{pattern}_error", f"error, {pattern}", "s3"),
        ]
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data,
        caption=f"Map errors at r = {result.budgets[-1]:,}. The CSV file also has the exponents of "
        "all patterns, with intervals over passages (not adjusted for the number of heads).",
        sort=(f"{RANDOM}_error", True),
    )
