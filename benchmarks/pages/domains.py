"""The page on domains: what changes between corpora, made from stored runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from msgspec import structs

from benchmarks.finding import Finding, markdown_table
from esscher.core.errors import InputError
from esscher.runs.registry import load
from esscher.show.content import Plot
from esscher.studies.domains import Domains
from esscher.studies.domains.decided import DIFFERENCE, FACTOR
from esscher.studies.domains.records import Correction, RankPair, TransferPair, shares_of
from esscher.studies.domains.statistics import BY_NAME

#: How the counts are to be read.
CAVEAT = (
    "**How to read the counts.** A head that was not found to differ is not the same for that: it "
    "is the same only if all pairs of corpora differ by less than a margin beyond chance (a factor "
    f"of {FACTOR:g}, or {DIFFERENCE:g} for k-hat, exponents and shares), and undecided otherwise."
)


def domains_finding(runs: Sequence[Path]) -> Finding:
    """Make the page from stored runs of ``esscher domains``.

    Parameters
    ----------
    runs
        Directories of runs, one per model. Those with too little to compare anything are an error;
        incomplete ones are used and named.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give directories of esscher domains")
    sections, trouble = [], []
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Plot] = {}
    for folder in runs:
        found = load(folder)
        if not isinstance(found, Domains):
            raise InputError(f"{folder} holds a run of {found.study.name}, not of domains")
        if not found.blocks:
            raise InputError(f"{folder}: {found.headline} Run its command again.")
        name = _name(found, set(figures))
        if not found.complete:
            trouble.append(f"{name} is incomplete: {found.cells} blocks are there.")
        sections.append(_section(found))
        tables |= {
            f"{name}-corpora": found.medians(),
            f"{name}-tests": found.table(),
            f"{name}-pairs": _pairs(found),
            f"{name}-variance": found.variance_table(),
            f"{name}-ranks": _ranks(found),
            f"{name}-plans": pd.DataFrame(_plans(found)),
        }
        figures[name] = found.plot()
    return Finding(
        "domains",
        "Domains: what changes between corpora, and what does not",
        "\n\n".join([CAVEAT, *sections]),
        tables,
        figures,
        tuple(trouble),
    )


def _name(found: Domains, taken: set[str]) -> str:
    """Name of a run's tables and figure: the model, numbered if it occurs twice."""
    subject = found.study.model_record.name
    plain = "domains-" + re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    return name


def _section(found: Domains) -> str:
    study, test = found.study, found.correction
    assert test is not None
    level = 100 * study.fdr
    parts = [
        f"## {study.model_record.name}",
        f"**{found.headline}**",
        f"{len(found.units)} heads, {len(found.corpora)} corpora, {found.blocks} "
        f"blocks of {study.block_tokens:,} tokens each, {study.mode} mode, "
        f"seed {study.seed}. All corpora: permutation test with "
        f"{test.permutations:,} permutations of the blocks; {test.omnibus_found:,} of "
        f"{test.omnibus_tests:,} heads and statistics differ at a false discovery rate of "
        f"{level:g}%, {test.omnibus_found_holm:,} family-wise (Holm). Pairs: Welch's t; "
        f"{test.pairs_found:,} of {test.pair_tests:,} differ, "
        f"{test.pairs_found_holm:,} family-wise." + _check(test, study.fdr),
        "Medians over the heads, with the interval over blocks:",
        markdown_table(_medians(found)),
        f"The largest differences between two corpora, with intervals of which {100 - level:g}% "
        "hold (ratios of b to a, or differences b - a of k-hat and of shares):",
        markdown_table(_strongest(found)),
        "Where the variance comes from, in percent with standard errors over blocks; how many heads"
        " differ, are the same within a margin, and are undecided; and whether heads keep their "
        "ranks (mean Spearman correlation of half the blocks with the other half of the same "
        "corpus, and with as many of another):",
        markdown_table(_variance(found)),
        "Tokens for 10% error: ratio of b to a over all heads (simultaneous interval), and the "
        "share of heads that need at least twice as many on one of the two; the largest ten:",
        markdown_table(_plan_table(found)),
    ]
    return "\n\n".join(parts)


def _check(test: Correction, fdr: float) -> str:
    if test.halves_rejected is None:
        return ""
    return (
        f" Between halves of the same corpus Welch's p is below {fdr:g} in "
        f"{100 * test.halves_rejected:.1f}% of {test.halves_tests:,} tests, where nothing "
        "differs."
    )


def _medians(found: Domains) -> pd.DataFrame:
    rows = []
    for corpus in found.corpora:
        row = {"corpus": corpus.name, "unknown tokens": f"{100 * corpus.unknown:.1f}%"}
        for name, median in corpus.median.items():
            low, high = median.interval
            row[BY_NAME[name].short] = f"{_three(median.value)} ({_three(low)} to {_three(high)})"
        rows.append(row)
    return pd.DataFrame(rows)


def _strongest(found: Domains) -> pd.DataFrame:
    rows = []
    for row in found.strongest_table().to_dict("records"):
        interval = f"{_three(row['low'])} to {_three(row['high'])}"
        shown = {key: row[key] for key in ("statistic", "head", "a", "b")}
        shown |= {"b to a": _three(row["effect"]), "interval": interval}
        rows.append(shown | {"adjusted p": f"{row['adjusted_p']:.1g}"})
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["statistic"])


def _variance(found: Domains) -> pd.DataFrame:
    rows = []
    for name, parts in found.variance.items():
        if parts is None:
            continue
        row = {"of": BY_NAME[name].title}
        errors = shares_of(parts.standard_errors)
        for source, share in shares_of(parts.shares).items():
            row[source] = f"{100 * share:.1f} +- {100 * errors[source]:.1f}"
        rank = found.rank[name]
        row |= {
            "heads that differ": str(found.counts[name].heads),
            "the same": _count(found.counts[name].same),
            "undecided": _count(found.counts[name].undecided),
            "Holm": str(found.counts[name].heads_holm),
            "rank within": "" if rank is None else _three(rank.within),
            "rank between": "" if rank is None else _three(rank.between),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _count(number: int | None) -> str:
    """A count of heads; results of earlier versions do not have it."""
    return "" if number is None else str(number)


def _pairs(found: Domains) -> pd.DataFrame:
    """Heads that differ, by statistic and pair; every single head is in the stored run."""
    rows = []
    for name, test in found.tests.items():
        for pair in test.pairs:
            kept = {key: getattr(pair, key) for key in ("a", "b", "heads", "heads_holm")}
            rows.append({"statistic": name} | kept)
    return pd.DataFrame(rows)


def _ranks(found: Domains) -> pd.DataFrame:
    rows = []
    for name, ranks in found.rank.items():
        for pair in ranks.pairs if ranks else ():
            rows.append({"statistic": name} | _with_ends(pair))
    return pd.DataFrame(rows)


def _plans(found: Domains) -> list[dict[str, Any]]:
    assert found.transfer is not None
    return [_with_ends(pair) for pair in found.transfer.pairs]


def _with_ends(pair: RankPair | TransferPair) -> dict[str, Any]:
    """The fields of a pair, with the ends of its interval for the interval."""
    row = structs.asdict(pair)
    low, high = row.pop("interval")
    return row | {"low": low, "high": high}


def _plan_table(found: Domains) -> pd.DataFrame:
    rows = sorted(_plans(found), key=lambda row: -max(row["twice_on_a"], row["twice_on_b"]))
    return pd.DataFrame(
        [
            {
                "a": row["a"],
                "b": row["b"],
                "tokens on b / on a": f"{_three(row['ratio'])} ({_three(row['low'])} to "
                f"{_three(row['high'])})",
                "typical head off by": _three(row["typical_factor"]),
                "twice on b": f"{100 * row['twice_on_b']:.0f}%",
                "twice on a": f"{100 * row['twice_on_a']:.0f}%",
            }
            for row in rows[:10]
        ]
    )


def _three(value: float | None) -> str:
    """Three digits, large numbers with commas."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
