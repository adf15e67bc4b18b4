"""Charts of corpora: which heads differ, and every statistic over the layers."""

from __future__ import annotations

from altair.typing import ChartType

from esscher.show.cells import heatmap
from esscher.show.chart import Axis, Series, figure, panel, points
from esscher.show.content import Drawing
from esscher.show.theme import SHARES, limits
from esscher.studies.domains.result import BY_NAME, DIFFERS, SAME, Domains

#: Statistics of the main chart.
MAIN = ("tokens", "ess", "khat")
CHANCE = "×: no difference beyond chance was found, which does not make corpora the same"


def heads(result: Domains) -> ChartType:
    """Draw the share of each head's variance over blocks that is between corpora."""
    panels = []
    for name in [name for name in MAIN if name in result.tests]:
        test = result.tests[name]
        rows = [
            {"layer": layer, "head": head, "share": share, "chance": verdict != DIFFERS}
            for (layer, head), share, verdict in zip(
                result.units, test.share, test.verdict, strict=True
            )
        ]
        title = BY_NAME[name].title
        panels.append(
            heatmap(rows, "share", title, ends=(0.0, 1.0), colours=SHARES, crossed="chance")
        )
    return figure(panels, _title(result), note=CHANCE, apart=True)


def layers(result: Domains) -> ChartType:
    """Draw every statistic over the layers, a point with its interval per corpus."""
    series = Series("corpus", [corpus.name for corpus in result.corpora])
    x = Axis("layer", "layer", names=[str(n) for n in sorted({layer for layer, _ in result.units})])
    panels = []
    for name in result.tests:
        log = BY_NAME[name].logarithmic
        rows = [
            {
                "corpus": corpus,
                "layer": str(mean.layer),
                "value": mean.value,
                "low": mean.low,
                "high": mean.high,
            }
            for corpus, means in result.layers[name].items()
            for mean in means
        ]
        ends = limits([row[key] for row in rows for key in ("value", "low", "high")], log=log)
        y = Axis("value", log=log, limits=ends)
        marks = points(rows, x, y, series, beside=True)
        panels.append(panel(marks, title=BY_NAME[name].title))
    return figure(panels, _title(result))


def _missing(result: Domains) -> str | None:
    return None if result.blocks else "too few blocks are measured to compare anything"


DRAWINGS = (
    Drawing(
        "heads",
        "variance between corpora, layer by head",
        heads,
        missing=_missing,
        heading="Which heads differ",
        caption="Colours: how much of a head's variance over blocks lies between corpora. "
        f"Crossed: {SAME} or undecided, see the table.",
    ),
    Drawing(
        "layers",
        "every statistic over layers, by corpus",
        layers,
        missing=_missing,
        heading="Layers by corpus",
        caption="Mean over the heads of each layer, by corpus, with 95% intervals over blocks.",
    ),
)


def _title(result: Domains) -> str:
    study = result.study
    return (
        f"{study.model_record.name}, {study.mode} mode: {len(result.corpora)} corpora, "
        f"{result.blocks} blocks of {study.block_tokens:,} tokens each"
    )
