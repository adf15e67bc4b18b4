"""Charts of tails: every head's numbers and verdicts, the tail of single heads, whole layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from altair.typing import ChartType

from esscher.core.variables import table
from esscher.math.tails.verdict import FIRM, KINDS, LETTERS, VERDICTS, common_verdict, kind_of
from esscher.runs.result import Result
from esscher.show.cells import picked_title
from esscher.show.chart import Axis, Series, bars, figure, guides, lines, panel, points
from esscher.show.content import Drawing, check_heads
from esscher.show.explorer import HeadMap
from esscher.show.explorer import explorer as head_explorer
from esscher.show.frames import records
from esscher.show.theme import GREEN, ORANGE, PALE, SHARES, SKY, VERMILION, limits
from esscher.studies.tails.study import TailsData, TailsSettings
from esscher.studies.tails.view import TABLES, reproducible, subject

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

Tails = Result[TailsSettings]
#: From the lightest tail to the heaviest; pale for what is not decided.
VERDICT = Series("verdict", VERDICTS, colours=(SKY, GREEN, ORANGE, VERMILION, PALE))
#: What both halves of the text call a head.
BOTH = Series("both", KINDS, colours=(SKY, VERMILION, PALE))
#: Types of tails that are compared.
TYPES = Series("type", ("Gaussian", "Weibull", "Pareto"), colours=(SKY, ORANGE, VERMILION))
#: Numbers of every head.
NUMBERS = (
    HeadMap("proxy", "variance proxy / variance"),
    HeadMap("kurtosis", "excess kurtosis, worst"),
    HeadMap("norms_k", "k-hat of key norms", {"colours": SHARES, "ends": (-0.5, 0.5)}),
    HeadMap("logits_k", "k-hat of logits", {"colours": SHARES, "ends": (-0.5, 0.5)}),
    HeadMap("agreement", "agreement of the directions", {"ends": (0.0, 1.0)}),
)
#: Powers of tails to compare with.
POWERS = ({"at": 2.0, "name": "Gaussian"}, {"at": 1.0, "name": "exponential"})
POWER_NOTE = (
    "fits beyond higher and higher thresholds, with 95% intervals; hollow: fewer than "
    f"{FIRM} tokens beyond it"
)


def heads(result: Tails) -> ChartType:
    """Draw the numbers of every head, and the verdicts if they are given."""
    frame = result.table()
    panels = [each.draw(frame) for each in (*NUMBERS, *_verdicts(result))]
    return figure(panels, _title(result), apart=True)


def verdicts(result: Tails) -> ChartType:
    """Draw the verdicts alone, without and with delimiters."""
    frame = result.table()
    return figure([each.draw(frame) for each in _verdicts(result)], _title(result))


def explorer(result: Tails, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw every head, and the tail of the one that is picked: first that of largest kurtosis."""
    tails = _tails(result)
    x = Axis("threshold", "threshold (standard deviations)")
    y = Axis("criterion", "criterion above the best")
    criteria = [
        {key: row[key] for key in ("layer", "head", "threshold")}
        | {"type": name, "criterion": row[f"fit_criterion_{name}"]}
        for row in tails
        for name in TYPES.names
    ]

    def curves(pick: alt.Parameter) -> list[ChartType]:
        return [
            panel(
                guides(POWERS, x, _power(tails)),
                lines(tails, x, _power(tails), pick=pick),
                points(tails, x, _power(tails), pick=pick),
                title=picked_title("power of the tail"),
            ),
            panel(
                lines(criteria, x, y, TYPES, pick=pick),
                points(criteria, x, y, TYPES, pick=pick),
                title=picked_title("evidence"),
            ),
        ]

    return head_explorer(
        TABLES[0].ordered(result),
        (*NUMBERS, *_verdicts(result)),
        curves,
        title=_title(result),
        heads=heads,
        note=POWER_NOTE,
    )


def curves(result: Tails, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw the power of the tail against the threshold for single heads."""
    tails = _tails(result)
    x = Axis("threshold", "threshold (standard deviations)")
    panels = []
    for layer, head in _chosen(result, heads):
        fits = [row for row in tails if (row["layer"], row["head"]) == (layer, head)]
        panels.append(
            panel(
                guides(POWERS, x, _power(tails)),
                lines(fits, x, _power(tails)),
                points(fits, x, _power(tails)),
                title=f"head {layer}.{head}",
            )
        )
    return figure(panels, _title(result), note=POWER_NOTE)


def counts(result: Tails) -> ChartType:
    """Draw what both halves of the text call the heads of each layer."""
    halves = TailsData(result.data).keys.half_verdict.sel(subset="text").transpose(..., "half")
    first = ~TailsData(result.data).key_head.isel(layer=0).to_series().duplicated().to_numpy()
    tally: Counter[tuple[int, str]] = Counter(
        (int(layer), kind_of(common_verdict(pair)))
        for layer, pairs in zip(halves["layer"].values, halves.values, strict=True)
        for pair in pairs[first].tolist()  # heads that share their keys count once
    )
    rows = [
        {"layer": str(layer), "both": kind, "heads": count}
        for (layer, kind), count in sorted(tally.items())
    ]
    names = list(dict.fromkeys(str(row["layer"]) for row in rows))
    drawn = bars(
        rows,
        Axis("layer", "layer", names=names),
        Axis("heads", "heads", whole=True),
        BOTH,
        stacked=True,
    )
    return figure([panel(drawn)], _title(result))


def layers(result: Tails) -> ChartType:
    """Draw the tails of the tokens that enter each layer, with 95% intervals."""
    rows = records(result.table("layers"))
    x = Axis("layer", "layer", whole=True, limits=limits([row["layer"] for row in rows]))
    panels = []
    for column, name, guide in (
        ("proxy", "variance proxy / variance", {"at": 1.0, "name": "Gaussian"}),
        ("kurtosis", "excess kurtosis, worst", None),
        ("norms_k", "k-hat of norms", {"at": 0.0}),
    ):
        values = [
            {
                "layer": row["layer"],
                "value": row[column],
                "low": row[f"{column}_low"],
                "high": row[f"{column}_high"],
                "verdict": row["verdict"],
            }
            for row in rows
        ]
        known = [row[key] for row in values for key in ("value", "low", "high")]
        known = [value for value in known if value is not None]
        log = column != "norms_k" and min(known) > 0 and max(known) > 20 * min(known)
        guide = None if log else guide
        known = known if guide is None else [*known, guide["at"]]
        y = Axis("value", name, log=log, limits=limits(known, log=log))
        below = [] if guide is None else [guides([guide], x, y)]
        panels.append(panel(*below, points(values, x, y)))
    title = _title(result).replace("the keys of", "the tokens in the layers of", 1)
    return figure(panels, title)


def _withheld(result: Tails) -> str | None:
    return (
        None
        if reproducible(result)
        else (
            "verdicts on single heads are not given, because two halves of the text agree too "
            "little on them"
        )
    )


def _no_layers(result: Tails) -> str | None:
    known = not result.table("layers").empty
    return None if known else "the tokens of whole layers were not measured"


def _verdicts(result: Tails) -> list[HeadMap]:
    if not reproducible(result):
        return []
    apart = "delimiters, first tokens" if result.setup.model.causal else "delimiters"
    return [
        HeadMap(column, title, words=VERDICT, letters=LETTERS)
        for column, title in (
            ("verdict", "verdict on text tokens"),
            ("with_delimiters", f"with {apart}"),
        )
    ]


def _power(tails: list[dict[str, Any]]) -> Axis:
    ends = [row[key] for row in tails for key in ("tau", "low", "high")]
    return Axis("tau", "τ of exp(-c x^τ)", log=True, limits=limits([1, 2, *ends], log=True))


def _tails(result: Tails) -> list[dict[str, Any]]:
    """One row per head and threshold, as far as there are tokens beyond it."""
    keys = TailsData(result.data).keys
    cloud = keys.alone().sel(subset="text", part="both")
    names = ("fit_threshold", "fit_tokens", "fit_tau", "fit_criterion")
    rows: pd.DataFrame = table(cloud, ("layer", "head", "threshold"), names)
    rows = rows[rows["fit_threshold"].notna()].drop(columns="threshold")
    called = {"fit_threshold": "threshold", "fit_tau": "tau"}
    called |= {"fit_tau_low": "low", "fit_tau_high": "high"}
    return records(rows.rename(columns=called).assign(hollow=rows["fit_tokens"] < FIRM))


def _chosen(result: Tails, heads: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """Heads that were asked for; otherwise the one of largest kurtosis."""
    frame = TABLES[0].ordered(result)
    there = [(int(layer), int(head)) for layer, head in frame[["layer", "head"]].to_numpy()]
    if heads is None:
        return there[:1]
    check_heads(heads, there)
    return list(heads)


def _title(result: Tails) -> str:
    return f"Tails of the keys of {subject(result)}"


DRAWINGS = (
    Drawing("heads", "tails of every head's keys, layer by head", heads),
    Drawing("verdicts", "the verdicts alone, where they are given", verdicts, missing=_withheld),
    Drawing(
        "explorer",
        "every head, and the tail of one of them (--head)",
        explorer,
        heads=True,
        heading="Every head",
        caption="Numbers of the worst direction found, measured on held-out passages. Click a "
        "cell, or move with the arrow keys, to see the tail of that head: the larger the power, "
        "the lighter the tail.",
    ),
    Drawing("curves", "power of the tail of single heads (--head)", curves, heads=True),
    Drawing(
        "counts",
        "what both halves of the text say, by layer",
        counts,
        heading="Both halves of the text, by layer",
        caption="Number of heads that both halves of the text call sub-Gaussian or heavier; "
        "undecided where they differ or cannot tell. Heads that share their keys count once.",
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
