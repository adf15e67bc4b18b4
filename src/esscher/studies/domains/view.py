"""Corpora compared, as people see it: the tables and the sentences."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from esscher.core.shown import rounded
from esscher.core.variables import var
from esscher.runs.result import Result
from esscher.show.table_view import TableView
from esscher.studies.domains.compare import DIFFERS, smallest_p
from esscher.studies.domains.study import STATISTICS, DomainsData, DomainsSettings

TITLE = "Heads on several corpora"
#: Variables that only tables show.
STATISTIC = var("", "statistic", name="title", kind="U")
DIFFER = var("", "heads that differ", "n0", name="differ", kind="i", terminal="differ")


def tokens(result: Result[DomainsSettings]) -> xr.Dataset:
    """Return the comparison of the tokens that heads need."""
    return result.data.sel(statistic="tokens")


def statistics(result: Result[DomainsSettings]) -> xr.Dataset:
    """Return the medians of every statistic, and how many heads differ in it."""
    data = result.data
    differ = (data["verdict"] == DIFFERS).sum(["layer", "head"])
    titles = [STATISTICS[name] for name in data["statistic"].values]
    return data[["median"]].assign(
        title=("statistic", np.array(titles, dtype=np.str_)),
        differ=differ,
    )


def corpora(result: Result[DomainsSettings]) -> xr.Dataset:
    """Return means over the blocks of each corpus."""
    return result.data[["length", "distinct", "unknown"]].mean("block")


_TEST = (DomainsData.verdict, DomainsData.adjusted_p, DomainsData.p, DomainsData.share)
TABLES = (
    TableView(
        "heads",
        f"All heads: {STATISTICS['tokens']}",
        ("layer", "head"),
        (*_TEST, DomainsData.effect),
        tokens,
        sort="share",
        page=False,
    ),
    TableView(
        "statistics",
        "Medians over heads, and heads that differ",
        ("statistic",),
        (DIFFER, DomainsData.median, STATISTIC),
        statistics,
    ),
    TableView(
        "corpora",
        "Corpora: means over blocks",
        ("corpus",),
        (DomainsData.length, DomainsData.distinct, DomainsData.unknown),
        corpora,
    ),
    TableView(
        "tests",
        "All heads",
        ("statistic", "layer", "head", "pair"),
        (*_TEST, DomainsData.effect),
        caption="Permutation test of the blocks, exact if blocks of one corpus are exchangeable, "
        "adjusted over the heads. Effects have 95% intervals over blocks.",
        most=0,
    ),
)


def subject(result: Result[DomainsSettings]) -> str:
    """Return what was measured, in a line."""
    setup, settings = result.setup, result.setup.settings
    return (
        f"{setup.model.name} on {len(setup.records['texts'])} corpora, {settings.blocks} blocks of "
        f"{settings.block_tokens:,} tokens each, {settings.mode}"
    )


def headline(result: Result[DomainsSettings]) -> str:
    """Say in how many heads corpora differ, as far as the blocks can tell."""
    data, fdr = DomainsData(tokens(result)), result.setup.settings.fdr
    heads, differ = data.p.size, int((data.verdict == DIFFERS).sum())
    medians = [
        f"{rounded(value)} ({rounded(low)} to {rounded(high)}) on {name}"
        for name, (value, low, high) in zip(
            data.median["corpus"].values.tolist(), data.median.values.tolist(), strict=True
        )
        if not math.isnan(value)
    ]
    text = (
        f"The tokens that a head needs for 10% output error differ between corpora beyond chance "
        f"in {differ} of {heads} heads (false discovery rate {100 * fdr:g}%); {heads - differ} are "
        f"undecided. The median head needs {', '.join(medians) or 'more than can be said'}."
    )
    blocks = result.data.sizes["block"]
    smallest = smallest_p(result.data.sizes["corpus"], blocks)
    together = math.ceil(int(data.p.notnull().sum()) * smallest / fdr * (1 - 1e-9))
    if together > max(differ, 1):
        text += (
            f" With {blocks} blocks no p-value is below {smallest:.2g}: fewer than {together} "
            "heads that differ cannot be found."
        )
    return text if result.complete else f"{text} So far from {blocks} blocks of every corpus."


def notes(result: Result[DomainsSettings]) -> list[str]:
    """Return what is said below the tables of a terminal."""
    names = result.data["statistic"].values.tolist()
    return ["; ".join(f"{name}: {STATISTICS[name]}" for name in names) + "."]
