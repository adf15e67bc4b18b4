"""The figure of every claim."""

from __future__ import annotations

from collections.abc import Callable

from altair.typing import ChartType

from esscher.show.content import Drawing
from esscher.studies.paper.claims import CLAIMS
from esscher.studies.paper.study import NAMES, Paper


def _drawing(name: str) -> Drawing:
    draw: Callable[[Paper], ChartType] = lambda ledger: CLAIMS[name].draw(ledger[name])  # noqa: E731

    def missing(ledger: Paper) -> str | None:
        judged = name in [entry.claim for entry in ledger.entries]
        return None if judged else f"the claim {name} was not judged"

    return Drawing(name, CLAIMS[name].title, draw, missing=missing)


DRAWINGS = tuple(_drawing(name) for name in NAMES)
