"""Corpora compared, as people see it: the tables, the cards and the sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import xarray as xr

from esscher.core.shown import about, shown
from esscher.core.variables import var
from esscher.runs.result import Result
from esscher.show.content import Card
from esscher.show.table_view import TableView
from esscher.studies.domains.compare import DIFFERS, smallest_p
from esscher.studies.domains.study import STATISTICS, DomainsData, DomainsSettings

TITLE = "Heads on several corpora"
#: Variables that only tables show.
STATISTIC = var("", "statistic", name="title", kind="U")
DIFFER = var("", "heads that differ", "n0", name="differ", kind="i", terminal="differ")
UNDECIDED = var("", "undecided", "n0", name="undecided", kind="i")


def measured(result: Result[DomainsSettings]) -> bool:
    """Tell whether there are enough blocks to compare anything."""
    return bool(result.data.sizes["block"])


def tokens(result: Result[DomainsSettings]) -> xr.Dataset:
    """Return the comparison of the tokens that heads need."""
    return result.data.sel(statistic="tokens")


def statistics(result: Result[DomainsSettings]) -> xr.Dataset:
    """Return the medians of every statistic, and how many heads differ in it."""
    data = result.data
    differ = (data["verdict"] == DIFFERS).sum(["layer", "head"])
    titles = [STATISTICS[name].title for name in data["statistic"].values]
    return data[["median"]].assign(
        title=("statistic", np.array(titles, dtype=np.str_)),
        differ=differ,
        undecided=data.sizes["layer"] * data.sizes["head"] - differ,
    )


def corpora(result: Result[DomainsSettings]) -> xr.Dataset:
    """Return means over the blocks of each corpus."""
    return result.data[["length", "distinct", "unknown"]].mean("block")


_TEST = (DomainsData.verdict, DomainsData.adjusted_p, DomainsData.p, DomainsData.share)
TABLES = (
    TableView(
        "heads",
        f"All heads: {STATISTICS['tokens'].title}",
        ("layer", "head"),
        (*_TEST, DomainsData.effect),
        tokens,
        sort="share",
        page=False,
    ),
    TableView(
        "statistics",
        "Medians over heads, and heads by verdict",
        ("statistic",),
        (DIFFER, UNDECIDED, DomainsData.median, STATISTIC),
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
    TableView(
        "blocks",
        "All blocks",
        ("corpus", "block", "layer", "head"),
        (DomainsData.number,),
        page=False,
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
    wanted, fdr = len(result.study.cells(result.setup)), result.setup.settings.fdr
    if not measured(result):
        return (
            f"{len(result.cells)} of {wanted} blocks are measured: too few to compare corpora yet."
        )
    data = DomainsData(tokens(result))
    heads, differ = data.p.size, int((data.verdict == DIFFERS).sum())
    text = (
        f"The tokens that a head needs for 10% output error differ between corpora beyond chance "
        f"in {differ} of {heads} heads (false discovery rate {100 * fdr:g}%); {heads - differ} are "
        "undecided."
    )
    medians = [
        f"{about(value)} ({about(low)} to {about(high)}) on {name}"
        for name, (value, low, high) in _medians(data)
        if not math.isnan(value)
    ]
    if medians:
        text += f" The median head needs {', '.join(medians)}."
    blocks = result.data.sizes["block"]
    smallest = smallest_p(result.data.sizes["corpus"], blocks)
    made = int(data.p.notnull().sum())
    together = math.ceil(made * smallest / fdr * (1 - 1e-9))
    if together > made:
        text += (
            f" {blocks} blocks are too few to find any difference: no p-value can be below "
            f"{smallest:.2g}."
        )
    elif together > 1 and differ < heads:
        text += (
            f" With {blocks} blocks no p-value is below {smallest:.2g}: fewer than {together} "
            "heads that differ cannot be found."
        )
    if not result.complete:
        text += f" So far from {blocks} blocks of every corpus."
    return text


def cards(result: Result[DomainsSettings]) -> list[Card]:
    """Return the numbers that matter."""
    if not measured(result):
        return []
    data = DomainsData(tokens(result))
    heads, differ = data.p.size, int((data.verdict == DIFFERS).sum())
    return [
        Card(
            f"{differ} of {heads}",
            "heads need another number of tokens",
            f"false discovery rate {result.setup.settings.fdr:.0%}",
        ),
        Card(f"{heads - differ} of {heads}", "heads are undecided"),
        *(
            Card(
                shown(value, "n3"),
                f"tokens for 10% output error on {name}",
                f"median head; 95% interval {shown(low, 'n3')} to {shown(high, 'n3')}",
            )
            for name, (value, low, high) in _medians(data)
        ),
    ]


def notes(result: Result[DomainsSettings]) -> list[str]:
    """Return what is said below the tables of a terminal."""
    names = result.data["statistic"].values.tolist()
    titles = "; ".join(f"{name}: {STATISTICS[name].title}" for name in names)
    return [f"{titles}."] if names else []


def _medians(data: DomainsData) -> Iterator[tuple[str, list[float]]]:
    """Corpora with their median and the ends of its interval."""
    return zip(data.median["corpus"].values.tolist(), data.median.values.tolist(), strict=True)
