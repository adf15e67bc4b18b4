"""The result in a terminal."""

from __future__ import annotations

from statistics import median

from esscher.core.codec import Estimate
from esscher.core.shown import with_error
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.domains.decided import WANTED
from esscher.studies.domains.records import shares_of
from esscher.studies.domains.result import Domains
from esscher.studies.domains.statistics import BY_NAME
from esscher.studies.domains.variance import SOURCES

#: Statistics of the table of corpora, as many as a terminal has room for.
SHOWN = ("tokens", "ess", "khat", "horizon")


def print_result(found: Domains, console: PlainConsole, everything: bool = False) -> None:
    """Print the corpora, what differs, and where the variance comes from."""
    if not found.blocks:
        return
    _print_corpora(console, found, everything)
    _print_differences(console, found)
    _print_variance(console, found)
    _print_classes(console, found)
    _print_notes(console, found)


def _print_corpora(console: PlainConsole, found: Domains, everything: bool) -> None:
    study = found.study
    table = PlainTable(
        f"{study.model_record.name}, {study.mode} mode, "
        f"{found.blocks} blocks of {study.block_tokens:,} tokens: medians over heads",
        least=("unknown",),
    )
    shown = [name for name in found.statistics if everything or name in SHOWN]
    table.add_column("corpus")
    table.add_column("unknown", justify="right", no_wrap=True)
    for name in shown:
        table.add_column(BY_NAME[name].short, justify="right", no_wrap=True)
    for corpus in found.corpora:
        numbers = [corpus.median[name] for name in shown]
        table.add_row(corpus.name, f"{corpus.unknown:.1%}", *(short(n) for n in numbers))
    console.print(table)


def _print_differences(console: PlainConsole, found: Domains) -> None:
    assert found.correction is not None
    rows, count = found.strongest, found.correction.pairs_found
    table = PlainTable(
        f"Largest differences between two corpora (of {count:,} found)", least=("p",)
    )
    for name in ("of", "head", "a", "b", "b / a or b - a", "p"):
        last = name in ("head", "b / a or b - a", "p")
        table.add_column(name, justify="right" if last else "left", no_wrap=last or name == "of")
    for row in rows:
        statistic = BY_NAME[row.statistic]
        low, high = row.interval
        signs = "" if statistic.logarithmic else "+"
        effect = f"{row.effect:{signs}.2f} ({low:{signs}.2f}, {high:{signs}.2f})"
        where = f"{row.layer}.{row.head}"
        table.add_row(statistic.short, where, row.a, row.b, effect, f"{row.adjusted:.1g}")
    if rows:
        console.print(table)
    else:
        console.say(
            f"No two corpora differ in any head beyond chance, in {found.correction.pair_tests:,} "
            "tests: that does not make them the same, see the classes below."
        )


def _print_variance(console: PlainConsole, found: Domains) -> None:
    table = PlainTable(
        "Where the variance comes from (%), heads that differ, and their ranks",
        least=("Holm", "rank"),
    )
    for name in ("", *SOURCES, "differ", "Holm", "rank"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, parts in found.variance.items():
        cells = [""] * len(SOURCES)
        if parts is not None:
            shares, errors = shares_of(parts.shares), shares_of(parts.standard_errors)
            cells = [_percent(shares[source], errors[source]) for source in shares]
        rank = found.rank[name]
        median = None if rank is None else rank.median
        table.add_row(
            BY_NAME[name].short,
            *cells,
            str(found.counts[name].heads),
            str(found.counts[name].heads_holm),
            "" if median is None else f"{median:.2f}",
        )
    console.print(table)


def _print_classes(console: PlainConsole, found: Domains) -> None:
    """Heads that differ, are the same within the margin or undecided, and the power of the test."""
    if not all(test.classes for test in found.tests.values()):
        return  # a result of an earlier version
    table = PlainTable("Do corpora differ? Heads by class", least=("blocks", "margin"))
    for name in ("", "differs", "the same", "undecided", "margin", "power", "blocks"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, test in found.tests.items():
        count, limit = found.counts[name], test.margin
        known = [value for value in test.power if value is not None]
        table.add_row(
            BY_NAME[name].short,
            str(count.heads),
            str(count.same),
            str(count.undecided),
            "" if limit is None else f"{'x' if BY_NAME[name].logarithmic else '+-'}{limit:g}",
            f"{median(known):.0%}" if known else "",
            "" if test.blocks_needed is None else str(test.blocks_needed),
        )
    console.print(table)


def _print_notes(console: PlainConsole, found: Domains) -> None:
    test, fdr = found.correction, found.study.fdr
    assert test is not None
    notes = [
        f"differ: of {len(found.units)} heads, those in which corpora differ (permutation "
        f"test, {test.omnibus_tests:,} of them, false discovery rate {100 * fdr:g}%; Holm: "
        f"family-wise). Pairs: Welch's t, {test.pair_tests:,} tests, intervals of level "
        f"{100 * test.interval_level:.3g}%, so that {100 - 100 * fdr:g}% of those "
        "found hold; p is adjusted. In brackets: half the interval, or the standard error, in last "
        "digits. both: heads that react to a corpus in their own way; block: text within a corpus. "
        "rank: median Spearman correlation of the heads between two corpora."
    ]
    if test.halves_rejected is not None:
        notes.append(
            f"Check: between halves of the same corpus Welch's p is below {fdr:g} in "
            f"{test.halves_rejected:.1%} of {test.halves_tests:,} tests."
        )
    if all(found.tests[name].classes for name in found.tests):
        notes.append(
            "the same: all pairs of corpora differ by less than the margin, beyond chance; "
            "undecided: neither. power: with which a shift of one corpus by the margin is found in "
            "the median head (up to 7 points too large); blocks: as many take that to "
            f"{WANTED:.0%}."
        )
    if test.smallest_p * test.omnibus_tests > fdr:
        notes.append(
            f"With these blocks no permutation p-value is below {test.smallest_p:.2g}, so the "
            f"family-wise count must be 0: that takes {test.takes(found.blocks)}."
        )
    for note in notes:
        console.say(note)


def short(number: Estimate) -> str:
    """A number with half its interval in brackets, in units of the last digit."""
    value, (low, high) = number.value, number.interval
    if value is None or low is None or high is None:
        return ""
    return with_error(value, (high - low) / 2, 0 if value >= 100 else 1 if value >= 10 else 2)


def _percent(share: float, error: float) -> str:
    return with_error(100 * share, 100 * error, 0)
