"""The chart of corpora: which heads differ."""

from __future__ import annotations

from altair.typing import ChartType

from esscher.core.variables import table
from esscher.runs.result import Result
from esscher.show.chart import figure
from esscher.show.content import Drawing
from esscher.show.explorer import HeadMap
from esscher.show.theme import SHARES
from esscher.studies.domains.compare import UNDECIDED
from esscher.studies.domains.study import STATISTICS, DomainsSettings
from esscher.studies.domains.view import measured

#: Statistics of the chart.
MAIN = ("tokens", "ess", "khat")


def heads(result: Result[DomainsSettings]) -> ChartType:
    """Draw the share of each head's variance over blocks that is between corpora."""
    panels = []
    for name in MAIN:
        if name in result.data["statistic"]:
            data = result.data.sel(statistic=name)
            frame = table(data, ("layer", "head"), ("share", "verdict"))
            look = {"ends": (0.0, 1.0), "colours": SHARES, "crossed": "undecided"}
            shares = HeadMap("share", STATISTICS[name].title, look)
            panels.append(shares.draw(frame.assign(undecided=frame["verdict"] == UNDECIDED)))
    setup, settings, sizes = result.setup, result.setup.settings, result.data.sizes
    title = (
        f"{setup.model.name}, {settings.mode} mode: {sizes['corpus']} corpora, "
        f"{sizes['block']} blocks of {settings.block_tokens:,} tokens each"
    )
    note = "×: undecided, which does not make corpora the same"
    return figure(panels, title, note=note, apart=True)


DRAWINGS = (
    Drawing(
        "heads",
        "variance between corpora, layer by head",
        heads,
        missing=lambda result: (
            None if measured(result) else "too few blocks are measured to compare anything"
        ),
        heading="Which heads differ",
        caption="Colours: how much of a head's variance over blocks lies between corpora. "
        "Crossed: undecided.",
    ),
)
