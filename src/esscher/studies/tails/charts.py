"""Charts of tails: every head's numbers and verdicts with the tail of one, and whole layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from altair.typing import ChartType

from esscher.core.variables import Variable, table
from esscher.math.tails.verdict import FIRM, LETTERS, VERDICTS
from esscher.runs.result import Result
from esscher.show.cells import picked_title
from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.explorer import explorer, head_map
from esscher.show.frames import records
from esscher.show.theme import GREEN, ORANGE, PALE, SHARES, SKY, VERMILION, limits
from esscher.studies.tails.study import Cloud, LayerTails, TailsData, TailsSettings
from esscher.studies.tails.view import TABLES, WITH_DELIMITERS, reproducible

if TYPE_CHECKING:
    import altair as alt

Tails = Result[TailsSettings]
#: From the lightest tail to the heaviest; pale for what is not decided.
VERDICT = Series("verdict", VERDICTS, colours=(SKY, GREEN, ORANGE, VERMILION, PALE))
#: Numbers of every head.
NUMBERS = (
    head_map(Cloud.proxy),
    head_map(Cloud.kurtosis),
    head_map(Cloud.norms_k, colours=SHARES, ends=(-0.5, 0.5)),
    head_map(LayerTails.logits_k, colours=SHARES, ends=(-0.5, 0.5)),
    head_map(Cloud.agreement, ends=(0.0, 1.0)),
)
#: Powers of tails to compare with.
POWERS = ({"at": 2.0, "name": "Gaussian"}, {"at": 1.0, "name": "exponential"})
#: Numbers of hidden states, and what to compare them with.
LAYERS: tuple[tuple[Variable, dict[str, Any]], ...] = (
    (Cloud.proxy, {"at": 1.0, "name": "Gaussian"}),
    (Cloud.kurtosis, {"at": 0.0}),
    (Cloud.norms_k, {"at": 0.0}),
)


def heads(result: Tails, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw every head, and the tail of the one that is picked: first that of largest kurtosis."""
    cloud = TailsData(result.data).keys.alone().sel(subset="text", part="both")
    names = ("fit_threshold", "fit_tokens", "fit_tau")
    fits = table(cloud, ("layer", "head", "threshold"), names)
    fits = fits[fits["fit_threshold"].notna()]  # there are tokens beyond it
    rows = records(fits.assign(hollow=fits["fit_tokens"] < FIRM), interval="fit_tau")
    x = Axis.of(Cloud.fit_threshold)
    y = Axis.of(Cloud.fit_tau, rows, (1, 2), log=True)

    def curves(pick: alt.Parameter) -> list[ChartType]:
        marks = guides(POWERS, x, y), lines(rows, x, y, pick=pick), points(rows, x, y, pick=pick)
        return [panel(*marks, title=picked_title("power of the tail"))]

    verdicts = [
        head_map(variable, words=VERDICT, letters=LETTERS)
        for variable in (Cloud.verdict, WITH_DELIMITERS)
        if reproducible(result)
    ]
    note = (
        "fits beyond higher and higher thresholds, with 95% intervals; hollow: fewer than "
        f"{FIRM} tokens beyond it"
    )
    return explorer(result, TABLES[0], (*NUMBERS, *verdicts), curves, heads=heads, note=note)


def layers(result: Tails) -> ChartType:
    """Draw the tails of the tokens that enter each layer, with 95% intervals."""
    frame = result.table("layers")
    x = Axis("layer", "layer", whole=True, limits=limits(frame["layer"]))
    panels = []
    for variable, guide in LAYERS:
        rows = records(frame, interval=variable.name)
        y = Axis.of(variable, rows, (guide["at"],))
        panels.append(panel(guides([guide], x, y), points(rows, x, y)))
    return figure(panels, result.subject)


def _no_layers(result: Tails) -> str | None:
    known = not result.table("layers").empty
    return None if known else "the tokens of whole layers were not measured"


DRAWINGS = (
    Drawing(
        "explorer",
        "every head, and the tail of one of them (--head)",
        heads,
        heads=True,
        heading="Every head",
        caption="Numbers of the worst direction found, measured on held-out passages. Click a "
        "cell, or move with the arrow keys, to see the tail of that head: the larger the power, "
        "the lighter the tail.",
    ),
    Drawing(
        "layers",
        "tails of the tokens in every layer",
        layers,
        missing=_no_layers,
        heading="Hidden states by layer",
        caption="The worst direction of the tokens that enter each layer; bars are 95% intervals.",
    ),
)
