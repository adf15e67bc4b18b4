"""Charts of corpora: layers, which heads differ and how, and where the variance comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
from altair.typing import ChartType

from esscher.show.cells import ROW, heatmap, matrix, picked_title, picking
from esscher.show.chart import Axis, Series, bars, figure, guides, panel, points, sheet
from esscher.show.content import Drawing, check_heads
from esscher.show.theme import BLUE, GREY, ORANGE, PALE, SHARES, VERMILION, limits
from esscher.studies.domains.records import shares_of
from esscher.studies.domains.result import Domains
from esscher.studies.domains.statistics import BY_NAME

#: Statistics in the order of what they say.
ORDER = ("tokens", "ess", "khat", "exponent", "horizon", "sinks", "frobenius", "tau", "delimiters")
#: How many of them the main chart has over layers, and the explorer for every pair of corpora.
MAIN, DETAILED = 6, 3
#: Where variance comes from.
PARTS = Series(
    "part", ("head", "head x corpus", "corpus", "block", "rest"),
    colours=(BLUE, ORANGE, VERMILION, GREY, PALE),
)  # fmt: skip
#: Points that a panel with names of pairs needs to stand beside another.
WIDE = 150.0
CHANCE = "×: no difference beyond chance was found (corpora may still differ)"


def domains(found: Domains) -> ChartType:
    """Draw layers by corpus, the heads that differ in two statistics, and the variance."""
    names = ordered(found)
    varying = [name for name in names if found.variance[name]] or names
    second = next((name for name in ("khat", "ess") if name in names), names[-1])
    below = [_shares(found, name) for name in dict.fromkeys((names[0], second))]
    parts = [
        figure([_layers(found, name) for name in varying[:MAIN]]),
        figure([*below, _variance(found, short=True)], apart=True),
    ]
    return sheet(parts, _title(found), note=CHANCE)


def layers(found: Domains) -> ChartType:
    """Draw every statistic over the layers, a point with its interval per corpus."""
    return figure([_layers(found, name) for name in ordered(found)], _title(found))


def heads(found: Domains) -> ChartType:
    """Draw the share of each head's variance over blocks that is between corpora."""
    panels = [_shares(found, name) for name in ordered(found)]
    return figure(panels, _title(found), note=CHANCE, apart=True)


def explorer(found: Domains, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw the shares of every head, and how corpora differ in the one that is picked."""
    names = ordered(found)
    pick = picking(*_chosen(found, heads))
    panels = [_shares(found, name, pick) for name in names]
    panels += [_effects(found, name, pick) for name in names[:DETAILED]]
    note = f"{CHANCE}; hollow: the two may differ by chance"
    return figure(panels, _title(found), note=note, least=WIDE, apart=True, pick=pick)


def variance(found: Domains) -> ChartType:
    """Draw where the variance of every statistic comes from."""
    return figure([_variance(found)], _title(found))


def pairs(found: Domains) -> ChartType:
    """Draw how many heads tell two corpora apart."""
    names = [corpus.name for corpus in found.corpora]
    x, y = Axis("across", "corpus", names=names), Axis("down", "against", names=names)
    panels = []
    for name in ordered(found):
        rows = []
        for pair in found.tests[name].pairs:
            first, second = sorted((pair.a, pair.b), key=names.index)
            rows.append({"down": first, "across": second, "heads": pair.heads})
            rows.append({"down": second, "across": first, "heads": pair.heads_holm})
        panels.append(matrix(rows, x, y, "heads", BY_NAME[name].title, len(found.units)))
    note = (
        f"heads of {len(found.units)} in which two corpora differ; above the diagonal: false "
        f"discovery rate {found.study.fdr:g}, below: family-wise (Holm)"
    )
    return figure(panels, _title(found), note=note, least=90.0 + ROW * len(names))


def _no_blocks(found: Domains) -> str | None:
    return None if found.blocks else "too few blocks are measured to compare anything"


def _no_variance(found: Domains) -> str | None:
    known = any(part is not None for part in found.variance.values())
    return _no_blocks(found) or (None if known else "every statistic is a constant of most heads")


DRAWINGS = (
    Drawing("domains", "layers by corpus, heads, and variance", domains, missing=_no_variance),
    Drawing(
        "layers", "every statistic over layers, by corpus", layers, missing=_no_blocks,
        heading="Layers by corpus",
        caption="Typical head of each layer, by corpus, with 95% intervals over blocks.",
    ),
    Drawing("heads", "variance between corpora, layer by head", heads, missing=_no_blocks),
    Drawing(
        "explorer", "the same, and how corpora differ in one of the heads (--head)", explorer,
        heads=True, missing=_no_blocks,
        heading="Which heads differ",
        caption="Colours: how much of a head's variance over blocks lies between corpora. Click a "
        "cell, or move with the arrow keys, to compare corpora in that head: the ratio (or "
        "difference) of the first to the second. Intervals are adjusted for the number of "
        "discoveries.",
    ),
    Drawing(
        "variance", "where the variance comes from", variance, missing=_no_variance,
        heading="Where the variance comes from",
        caption="Variance between heads, between corpora, of both together, between blocks of a "
        "corpus, and the rest; intervals are in the table below.",
    ),
    Drawing(
        "pairs", "how many heads tell two corpora apart", pairs, missing=_no_blocks,
        heading="Pairs of corpora",
        caption="Number of heads in which two corpora differ.",
    ),
)  # fmt: skip


def ordered(found: Domains) -> list[str]:
    """Return the statistics in the order of what they say."""
    return sorted(found.statistics, key=ORDER.index)


def _layers(found: Domains, name: str) -> ChartType:
    log = BY_NAME[name].logarithmic
    rows = [
        {"corpus": corpus, "layer": str(at.layer), "value": at.value, "low": at.low,
         "high": at.high}
        for corpus, means in found.layers[name].items()
        for at in means
    ]  # fmt: skip
    there = sorted({layer for layer, _ in found.units})
    ends = limits([row[key] for row in rows for key in ("value", "low", "high")], log=log)
    series = Series("corpus", [corpus.name for corpus in found.corpora])
    x = Axis("layer", "layer", names=[str(layer) for layer in there])
    y = Axis("value", log=log, limits=ends)
    return panel(points(rows, x, y, series, beside=True), title=BY_NAME[name].title)


def _shares(found: Domains, name: str, pick: alt.Parameter | None = None) -> ChartType:
    test = found.tests[name].omnibus
    rows = [
        {"layer": layer, "head": head, "share": share, "chance": _by_chance(found, p)}
        for (layer, head), share, p in zip(found.units, test.share, test.adjusted, strict=True)
    ]
    return heatmap(
        rows, "share", BY_NAME[name].title, ends=(0.0, 1.0), colours=SHARES, crossed="chance",
        pick=pick,
    )  # fmt: skip


def _effects(found: Domains, name: str, pick: alt.Parameter) -> ChartType:
    """How corpora differ in the head that is picked, a point per pair."""
    log = BY_NAME[name].logarithmic
    rows: list[dict[str, Any]] = [
        {"layer": layer, "head": head, "pair": f"{pair.b} / {pair.a}", "effect": effect,
         "low": low, "high": high, "hollow": _by_chance(found, p)}
        for pair in found.tests[name].pairs
        for (layer, head), effect, low, high, p in zip(
            found.units, pair.effect, pair.low, pair.high, pair.adjusted, strict=True
        )
    ]  # fmt: skip
    same = 1.0 if log else 0.0
    known = [row["effect"] for row in rows]
    for end in ("low", "high"):  # an interval that is far longer than all others leaves the chart
        values = [row[end] for row in rows if row[end] is not None]
        known += [float(x) for x in np.quantile(values, (0.05, 0.95))] if values else []
    x = Axis("effect", BY_NAME[name].title, log=log, limits=limits([same, *known], log=log))
    y = Axis("pair", names=list(dict.fromkeys(row["pair"] for row in rows)))
    return panel(
        guides([{"at": same}], x, y, upright=True),
        points(rows, x, y, across=True, pick=pick),
        title=picked_title("ratio" if log else "difference"),
        height=_height(y),
    )


def _variance(found: Domains, *, short: bool = False) -> ChartType:
    rows, names = [], []
    for name in ordered(found):
        parts = found.variance[name]
        if parts is not None:
            names.append(BY_NAME[name].short if short else BY_NAME[name].title)
            rows += [
                {"statistic": names[-1], "part": part, "share": share}
                for part, share in shares_of(parts.shares).items()
            ]
    x = Axis("share", "share of the variance", limits=(0.0, 1.0))
    y = Axis("statistic", names=names)
    drawn = bars(rows, x, y, PARTS, stacked=True, across=True)
    title = "where the variance comes from" if short else ""
    return panel(drawn, title=title, height=_height(y))


def _height(axis: Axis) -> float:
    assert axis.names is not None
    return max(97.0, ROW * len(axis.names))


def _by_chance(found: Domains, adjusted: float | None) -> bool:
    return adjusted is None or adjusted > found.study.fdr


def _chosen(found: Domains, heads: Sequence[tuple[int, int]] | None) -> tuple[int, int]:
    """The first head that was asked for; otherwise the one in which corpora differ most."""
    if heads is not None:
        check_heads(heads, found.units)
        return heads[0]
    share = found.tests[ordered(found)[0]].omnibus.share
    return found.units[max(range(len(share)), key=lambda i: share[i] or 0.0)]


def _title(found: Domains) -> str:
    study = found.study
    return (
        f"{study.model_record.name}, {study.mode} mode: {len(found.corpora)} corpora, "
        f"{found.blocks} blocks of {study.block_tokens:,} tokens each"
    )
