"""Charts of tails: every head's numbers and verdicts, the tail of single heads, whole layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from altair.typing import ChartType

from esscher.math.tails.verdict import FIRM, KINDS, LETTERS, VERDICTS
from esscher.show.cells import category_map, heatmap, picked_title, picking
from esscher.show.chart import Axis, Series, bars, figure, guides, lines, panel, points
from esscher.show.content import Drawing, check_heads
from esscher.show.frames import records
from esscher.show.theme import GREEN, ORANGE, PALE, SHARES, SKY, VERMILION, limits
from esscher.studies.tails.study import Tails

#: From the lightest tail to the heaviest; pale for what is not decided.
VERDICT = Series("verdict", VERDICTS, colours=(SKY, GREEN, ORANGE, VERMILION, PALE))
#: What both halves of the text call a head.
BOTH = Series("both", KINDS, colours=(SKY, VERMILION, PALE))
#: Types of tails that are compared.
TYPES = Series("type", ("Gaussian", "Weibull", "Pareto"), colours=(SKY, ORANGE, VERMILION))
#: Column of the table, title, colours and their ends; None: from the data.
NUMBERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("proxy", "variance proxy / variance", {}),
    ("kurtosis", "excess kurtosis, worst", {}),
    ("norms_k", "k-hat of key norms", {"colours": SHARES, "ends": (-0.5, 0.5)}),
    ("logits_k", "k-hat of logits", {"colours": SHARES, "ends": (-0.5, 0.5)}),
    ("agreement", "agreement of the directions", {"ends": (0.0, 1.0)}),
)
#: Powers of tails to compare with.
POWERS = ({"at": 2.0, "name": "Gaussian"}, {"at": 1.0, "name": "exponential"})
POWER_NOTE = (
    "fits beyond higher and higher thresholds, with 95% intervals; hollow: fewer than "
    f"{FIRM} tokens beyond it"
)


def heads(result: Tails) -> ChartType:
    """Draw the numbers of every head, and the verdicts if they are given."""
    return figure([*_numbers(result), *_verdicts(result)], _title(result), apart=True)


def verdicts(result: Tails) -> ChartType:
    """Draw the verdicts alone, without and with delimiters."""
    return figure(_verdicts(result), _title(result))


def explorer(result: Tails, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw every head, and the tail of the one that is picked: first that of largest kurtosis."""
    chosen = _chosen(result, heads)[0]
    pick = picking(*chosen)
    tails = _tails(result)
    x = Axis("threshold", "threshold (standard deviations)")
    power = panel(
        guides(POWERS, x, _power(tails)),
        lines(tails, x, _power(tails), pick=pick),
        points(tails, x, _power(tails), pick=pick),
        title=picked_title("power of the tail"),
    )
    y = Axis("criterion", "criterion above the best")
    criteria = [
        {key: row[key] for key in ("layer", "head", "threshold")}
        | {"type": name, "criterion": row[name]}
        for row in tails
        for name in TYPES.names
    ]
    evidence = panel(
        lines(criteria, x, y, TYPES, pick=pick),
        points(criteria, x, y, TYPES, pick=pick),
        title=picked_title("evidence"),
    )
    return figure(
        [*_numbers(result, pick), *_verdicts(result, pick), power, evidence],
        _title(result),
        note=POWER_NOTE,
        apart=True,
        pick=pick,
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
    tally: Counter[tuple[int, str]] = Counter((h.layer, h.both) for h in result.key_heads)
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
    rows = records(result.layers_table())
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
        if result.reproducible
        else (
            "verdicts on single heads are not given, because two halves of the text agree too "
            "little on them"
        )
    )


def _no_layers(result: Tails) -> str | None:
    known = not result.layers_table().empty
    return None if known else "the tokens of whole layers were not measured"


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


def _numbers(result: Tails, pick: Any = None) -> list[ChartType]:
    rows = records(result.table())
    return [heatmap(rows, column, title, pick=pick, **how) for column, title, how in NUMBERS]


def _verdicts(result: Tails, pick: Any = None) -> list[ChartType]:
    if not result.reproducible:
        return []
    rows = records(result.table())
    causal = result.study.model_record.causal
    apart = "delimiters, first tokens" if causal else "delimiters"
    return [
        category_map(rows, column, title, VERDICT, LETTERS, pick=pick)
        for column, title in (
            ("verdict", "verdict on text tokens"),
            ("with_delimiters", f"with {apart}"),
        )
    ]


def _power(tails: list[dict[str, Any]]) -> Axis:
    ends = [row[key] for row in tails for key in ("tau", "low", "high")]
    return Axis("tau", "τ of exp(-c x^τ)", log=True, limits=limits([1, 2, *ends], log=True))


def _tails(result: Tails) -> list[dict[str, Any]]:
    """One row per head and threshold."""
    return [
        {
            "layer": head.layer,
            "head": head.head,
            "verdict": head.verdict,
            "threshold": at.threshold,
            "tau": at.tau,
            "low": at.tau_interval[0],
            "high": at.tau_interval[1],
            "hollow": at.exceedances < FIRM,
        }
        | {name: at.criterion[name] for name in TYPES.names}
        for head in result.heads
        for at in head.tail
    ]


def _chosen(result: Tails, heads: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """Heads that were asked for; otherwise the one of largest kurtosis."""
    worst = sorted(result.heads, key=lambda head: -(head.kurtosis.value or 0.0))
    there = [(head.layer, head.head) for head in worst]
    if heads is None:
        return there[:1]
    check_heads(heads, there)
    return list(heads)


def _title(result: Tails) -> str:
    study = result.study
    return (
        f"Tails of the keys of {study.model_record.name} on {study.text_record.source}, "
        f"{study.tokens:,} tokens"
    )
