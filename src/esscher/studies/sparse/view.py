"""The result in a terminal."""

from __future__ import annotations

from typing import Any

from esscher.core.shown import plain_count, with_interval
from esscher.math.statistics import Rate
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import ends_of
from esscher.show.numbers import between, shown
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.sparse.charts import best_pattern
from esscher.studies.sparse.result import (
    MARGIN,
    NEVER,
    RANDOM,
    UNDECIDED,
    BiasCurve,
    Crossing,
    RandomKeys,
    Reached,
    Sparse,
    SparsePattern,
    count_heads,
    rate_words,
    spoken,
    student,
)


def print_result(found: Sparse, console: PlainConsole) -> None:
    """Print what became of every pattern."""
    state = "" if found.complete else " (not complete)"
    console.say(f"{found.subject}{state}")
    if not found.patterns:
        return
    first, last = found.budgets[0], found.budgets[-1]
    table = PlainTable(
        f"Error against dense attention, r = {first} to {last} keys",
        least=("cov", "mean", "bias", f"r={last}"),
    )
    for name in ("pattern", "map", "mean", "cov", f"r={last}", "x random", "bias"):
        left = name == "pattern"
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for name, entry in found.patterns.items():
        table.add_row(
            name,
            *(_exponent(entry.fit[metric]) for metric in ("map", "mean", "cov")),
            f"{100 * entry.curve.dense.map.mean[-1]:.3g}%",
            _ratio(entry),
            _bias(entry.bias),
        )
    console.print(table)
    console.explain(
        "map, mean, cov: exponents of error ~ C r^-beta, errors divided by sqrt(1 - r/N); in "
        "brackets half the width of the 95% interval (last digits); * not to be trusted or not a "
        "power law (--json says why). r=: relative map error. x random: map error over that of "
        "random selection, mean over budgets. bias: share of the squared map error that averaging "
        "does not remove, at the largest budget. Intervals are over replicates (passages of a "
        "model), which are what is independent.",
    )
    for name, entry in found.patterns.items():
        console.print()
        more = f" {_heads_sentence(found, name)}" if found.heads and entry.versus_random else ""
        console.say(f" {_sentence(entry, first, last)}{more}", lead=name)


def _heads_sentence(found: Sparse, name: str) -> str:
    """In how many heads a pattern beats random selection, as a sentence."""
    counts = count_heads(found.heads, name)
    return (
        f"With {found.budgets[-1]} keys better than random selection in {counts['better']} of "
        f"{len(found.heads)} heads, worse in {counts['worse']}, undecided in "
        f"{counts['undecided']} (after Holm over the heads)."
    )


def _sentence(entry: SparsePattern, first: float, last: float) -> str:
    """Verdict, evidence and break-even budgets in words."""
    even = entry.break_even
    target = even.for_target
    needed = _keys(target.budget, target, first, last)
    rows = [f"{spoken(entry.verdict)}: {entry.evidence}."]
    if even.crossing is not None and even.as_random is not None:
        verdicts = {m: entry.verdicts[m].verdict for m in ("mean", "cov")}
        rows += [f"Its {m} {spoken(v)}." for m, v in verdicts.items() if v != entry.verdict]
        rows.append(f"{even.crossing.says.capitalize()}{_where(even.crossing)}.")
        worth = _keys(even.as_random.random_keys, even.as_random, first, last)
        rows.append(f"{even.as_random.keys:.0f} keys are worth {worth} random ones.")
        others = (even.against or {}).values()
        rows += [f"{x.says.capitalize()}{_where(x)}." for x in others if x.budget is not None]
    return " ".join([*rows, f"10% relative error takes {needed} keys."])


def _where(crossing: Crossing) -> str:
    if crossing.budget is None:
        return ""
    low, high = (f"{end:.0f}" if end else "?" for end in crossing.interval)
    return f": r = {crossing.budget:.0f} ({low} to {high})"


def _exponent(fit: Rate) -> str:
    low, high = fit.interval
    mark = "" if fit.trusted and fit.law == "power" else "*"
    if low is None or high is None:
        return f"{fit.exponent:.2f}{mark}"
    return f"{fit.exponent:.2f}({max(1, round(50 * (high - low)))}){mark}"


def _ratio(entry: SparsePattern) -> str:
    if entry.versus_random is None:
        return "1"
    versus = entry.versus_random.map
    low, high = versus.ratio_interval
    if versus.ratio is None:
        return "-"
    if low is None or high is None:
        return f"{versus.ratio:.3g}"
    return with_interval(versus.ratio, (low, high))


def _bias(bias: BiasCurve) -> str:
    if bias.share is None or bias.square is None or bias.standard_error is None:
        return ""
    if bias.square[-1] <= 2 * bias.standard_error[-1]:
        return "none seen"
    return f"{100 * bias.share[-1]:.0f}%"


def _keys(value: float | None, found: Reached | RandomKeys, first: float, last: float) -> str:
    """A number of keys with its interval, whose ends may lie beyond the budgets measured."""
    below, above = f"<{plain_count(first)}", f">{plain_count(last)}"
    low, high = (f"{end:.0f}" if end else "" for end in found.interval)
    if value is not None:
        return f"{value:.0f} ({low or below} to {high or above})"
    known = f" (from {low})" if low else f" (up to {high})" if high else ""
    return f"{below if found.state == 'below' else above}{known}"


# The result on a page of a report: the best patterns, verdicts, and a table of all heads.

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
        Card(
            shown(base.exponent, "d3"),
            "exponent of random selection",
            f"map error, 95% interval {shown(base.interval[0], 'd3')} to "
            f"{shown(base.interval[1], 'd3')}: {rate_words(base.interval)}",
        ),
        Card(
            best,
            f"smallest mean error at r = {largest:,}",
            f"map error {last[best]:.3g}{spread}; random {last[RANDOM]:.3g}{after}",
        ),
    ]
    reached = {
        name: p.break_even.for_target
        for name, p in patterns.items()
        if p.break_even.for_target.budget is not None
    }
    if reached:
        cheapest = min(reached, key=lambda name: reached[name].budget or 0.0)
        low, high = reached[cheapest].interval
        out.append(
            Card(
                between(reached[cheapest].budget, None, "n0"),
                f"keys for {TARGET} map error, at least",
                f"with {cheapest}; 95% interval {shown(low, 'n0')} to "
                f"{shown(high, 'n0', 'beyond the grid')}",
            )
        )
    never, unknown = (sum(p.verdict == v for p in patterns.values()) for v in (NEVER, UNDECIDED))
    out.append(
        Card(
            f"{never} of {len(patterns)}",
            "patterns do not converge to dense on these budgets",
            f"{unknown} undecided",
        )
    )
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
            Column(
                "keys",
                f"keys for {TARGET}",
                "n0",
                "keys_low",
                "keys_high",
                missing="not on this grid",
                last=True,
            ),
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
    )


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
            Column(
                f"{pattern}_exponent",
                f"exponent, {pattern}",
                "d2",
                f"{pattern}_low",
                f"{pattern}_high",
                shown=pattern == RANDOM,
            ),
            Column(
                f"{pattern}_error", f"error, {pattern}", "s3", help=f"map error at r = {largest:,}"
            ),
            Column(
                f"{pattern}_keys",
                f"keys for {TARGET}, {pattern}",
                "n0",
                missing="not on this grid",
                last=True,
                shown=False,
            ),
        ]
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
