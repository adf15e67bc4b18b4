"""The result in a terminal."""

from __future__ import annotations

from esscher.core.shown import plain_count, with_interval
from esscher.math.statistics.records import FittedRate
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.sparse.records import (
    BiasCurve,
    Crossing,
    RandomKeys,
    Reached,
    SparsePattern,
)
from esscher.studies.sparse.result import Sparse, count_heads
from esscher.studies.sparse.verdicts import spoken


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
        more = f" {_heads(found, name)}" if found.heads and entry.versus_random else ""
        console.say(f" {_sentence(entry, first, last)}{more}", lead=name)


def _heads(found: Sparse, name: str) -> str:
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


def _exponent(fit: FittedRate) -> str:
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
