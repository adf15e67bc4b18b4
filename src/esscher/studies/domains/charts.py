"""The chart of corpora: which heads differ."""

from __future__ import annotations

from altair.typing import ChartType

from esscher.show.cells import heatmap
from esscher.show.chart import figure
from esscher.show.content import Drawing
from esscher.show.theme import SHARES
from esscher.studies.domains.result import STATISTICS, Domains

#: Statistics of the chart.
MAIN = ("tokens", "ess", "khat")


def heads(result: Domains) -> ChartType:
    """Draw the share of each head's variance over blocks that is between corpora."""
    panels = []
    for name in MAIN:
        if name in result.tests:
            test = result.tests[name]
            rows = [
                {"layer": layer, "head": head, "share": share, "undecided": not differs}
                for (layer, head), share, differs in zip(
                    result.units, test.share, test.differs, strict=True
                )
            ]
            title = STATISTICS[name].title
            panels.append(
                heatmap(rows, "share", title, ends=(0.0, 1.0), colours=SHARES, crossed="undecided")
            )
    study = result.study
    title = (
        f"{study.model_record.name}, {study.mode} mode: {len(result.corpora)} corpora, "
        f"{result.blocks} blocks of {study.block_tokens:,} tokens each"
    )
    note = "×: undecided, which does not make corpora the same"
    return figure(panels, title, note=note, apart=True)


DRAWINGS = (
    Drawing(
        "heads",
        "variance between corpora, layer by head",
        heads,
        missing=lambda result: (
            None if result.blocks else "too few blocks are measured to compare anything"
        ),
        heading="Which heads differ",
        caption="Colours: how much of a head's variance over blocks lies between corpora. "
        "Crossed: undecided.",
    ),
)
