"""The chart of corpora: which heads differ, and the blocks of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from altair.typing import ChartType

from esscher.core.variables import table
from esscher.runs.result import Result
from esscher.show.cells import picked_title
from esscher.show.chart import Axis, Series, panel, points
from esscher.show.content import Drawing
from esscher.show.explorer import explorer, head_map
from esscher.show.frames import records
from esscher.show.theme import BLUE, PALE, SHARES, limits
from esscher.studies.domains.compare import DIFFERS, UNDECIDED
from esscher.studies.domains.study import STATISTICS, DomainsData, DomainsSettings
from esscher.studies.domains.view import TABLES, tokens

if TYPE_CHECKING:
    import altair as alt

VERDICT = Series("verdict", (DIFFERS, UNDECIDED), colours=(BLUE, PALE))
MAPS = (
    head_map(DomainsData.share, ends=(0.0, 1.0), colours=SHARES),
    head_map(DomainsData.verdict, words=VERDICT),
)


def heads(
    result: Result[DomainsSettings], heads: Sequence[tuple[int, int]] | None = None
) -> ChartType:
    """Draw how much of each head's variance is between corpora, and the blocks of one head."""
    rows = records(table(tokens(result), ("layer", "head", "corpus", "block"), ("number",)))
    x = Axis("corpus", names=result.data["corpus"].values.tolist())
    ends = limits([row["number"] for row in rows], log=True)
    y = Axis("number", STATISTICS["tokens"], log=True, limits=ends)

    def curves(pick: alt.Parameter) -> list[ChartType]:
        return [panel(points(rows, x, y, pick=pick), title=picked_title("blocks"))]

    note = "undecided does not make corpora the same"
    return explorer(result, TABLES[0], MAPS, curves, heads=heads, note=note)


DRAWINGS = (
    Drawing(
        "explorer",
        "which heads differ between corpora, and the blocks of one of them (--head)",
        heads,
        heads=True,
        heading="Which heads differ",
        caption="Tokens for 10% output error: how much of a head's variance over blocks lies "
        "between corpora. Click a cell, or move with the arrow keys, to see the blocks of that "
        "head.",
    ),
)
