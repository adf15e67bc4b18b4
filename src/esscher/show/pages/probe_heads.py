"""The heads of a probe: their table, and the explorer with their convergence curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.show.content import (
    Axis,
    Column,
    CurveSeries,
    CurveView,
    Explorer,
    Quantity,
    Table,
)
from esscher.show.frames import data_of
from esscher.show.numbers import visible
from esscher.studies.probe import Probe
from esscher.studies.probe.records import ProbeHead

METRICS = {"mean": "mean output", "cov": "covariance", "map": "map"}
NEVER = "more than 10⁸"


def head_table(found: Probe, name: str) -> Table:
    """All numbers of all heads."""
    frame = found.table()
    frame["lost"] = frame["sinks"] + frame["delimiters"].fillna(0.0)
    frame["khat_low"] = [h.khat.interval[0] for h in found.heads]
    frame["khat_high"] = [h.khat.interval[1] for h in found.heads]
    frame["sink_tokens"] = [
        ", ".join(f"{visible(t.token)!r} {t.share:.0%}" for t in h.sinks.tokens) or "none"
        for h in found.heads
    ]
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        Column("H", "H", "d2", help="attention horizon: the largest whitened singular value"),
        Column("khat", "k-hat", "d2", "khat_low", "khat_high",
               help="tail of received attention; one pass predicts min(1/2, 1 - k-hat)"),
        *(
            Column(metric, f"exponent, {words}", "d2", f"{metric}_low", f"{metric}_high",
                   help=f"beta of error ~ C n^-beta, {words}; 95% interval")
            for metric, words in METRICS.items()
        ),
        Column("predicted_khat", "predicted, mean", "d2",
               help="from one pass: min(1/2, 1 - k-hat)"),
        Column("predicted_map", "predicted, map", "d2", help="exact map error on these sizes"),
        Column("tokens_10", "tokens for 10%", "n3", "tokens_10_low", "tokens_10_high",
               NEVER, True, "tokens for 10% relative output error; 95% interval"),
        Column("ess", "ESS", "n0", help="tokens that the median query attends"),
        Column("lost", "in sinks", "p0", help="attention that goes to sinks and delimiters"),
        Column("tails", "tails", help="verdict on the worst direction of the keys"),
        Column("flags", "flags", help="why the numbers may not be what they seem"),
        Column("sink_tokens", "largest sinks", shown=False),
    ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data_of(frame),
        caption="Brackets are 95% intervals. Click a row, or press Enter on it, to see its curve "
        "above. The CSV file has every column, at full length.",
        sort=("tokens_10", True),
    )


def head_explorer(found: Probe, table: Table) -> Explorer:
    """Heatmaps of the heads, and what is known about the selected one."""
    sizes = list(found.sizes)
    needed = [h.tokens_for.percent_10 or np.inf for h in found.heads]
    order = sorted(range(len(needed)), key=lambda i: -needed[i])
    views = [_view(metric, name, sizes) for metric, name in METRICS.items()]
    return Explorer(
        title="Every head",
        table=table,
        quantities=[
            Quantity("mean", "exponent of the mean", limits=(0.2, 0.6)),
            Quantity("tokens_10", "tokens for 10% error", "cividis", log=True),
            Quantity("H", "horizon H", "cividis", log=True),
            Quantity("khat", "k-hat", "cividis", limits=(0.0, 1.0)),
            Quantity("map", "exponent of the map", limits=(0.0, 0.6)),
            Quantity("cov", "exponent of the covariance", limits=(0.2, 0.6)),
            Quantity("ess", "effective tokens of a query", log=True),
            Quantity("lost", "attention in sinks", "cividis", limits=(0.0, 1.0)),
        ],
        facts=["tokens_10", "mean", "map", "khat", "H", "ess", "lost", "sink_tokens"],
        views=views,
        curves=[_curves(h, sizes) for h in found.heads],
        flags=[[(flag.flag, flag.evidence) for flag in h.flags] for h in found.heads],
        importance=order,
        start=order[0],
        caption="∞ marks heads for which no number of tokens up to 10⁸ is enough.",
        curve_caption="Bars are 95% intervals of the mean over replicates. Dashed: what one pass "
        "predicts; for the map the error itself, for the others a slope through the middle of the "
        "measured points.",
    )


def _view(metric: str, name: str, sizes: list[int]) -> CurveView:
    predicted = "predicted (exact for this cloud)" if metric == "map" else "predicted slope (k-hat)"
    return CurveView(
        name=name,
        x=Axis("tokens n", log=True, ticks=sizes if len(sizes) <= 8 else None),
        y=Axis(f"error of the {name}", log=True),
        series=[
            CurveSeries("measured", f"{metric}", f"{metric}_low", f"{metric}_high", "points"),
            CurveSeries("fitted C n^-β", f"{metric}_fit", mode="line", colour="ink"),
            CurveSeries(
                predicted, f"{metric}_predicted", f"{metric}_predicted_low",
                f"{metric}_predicted_high", "line", "orange", dash="dash",
            ),
        ],
        at=sizes,
    )  # fmt: skip


def _curves(head: ProbeHead, sizes: list[int]) -> dict[str, Any]:
    """Lists of numbers over the sizes; a fit holds on the sizes it was made on."""
    n = np.asarray(sizes, dtype=np.float64)
    out: dict[str, Any] = {}
    for metric in METRICS:
        fit, curve = head.fit[metric], head.curve[metric]
        mean = np.asarray(curve.mean)
        out[metric] = mean
        if curve.standard_error is not None:
            used = {size: i for i, size in enumerate(fit.sizes)}
            ends = [used.get(float(size)) for size in n]
            out[f"{metric}_low"] = [None if i is None else fit.lower[i] for i in ends]
            out[f"{metric}_high"] = [None if i is None else fit.upper[i] for i in ends]
        if fit.constant is not None:
            out[f"{metric}_fit"] = fit.constant * n**-fit.exponent
        if metric == "map":
            predicted = np.asarray(head.predicted_map.error)
            noise = np.asarray(head.predicted_map.standard_error)
            out["map_predicted"] = predicted
            out["map_predicted_low"] = np.maximum(predicted - 2 * noise, predicted / 10)
            out["map_predicted_high"] = predicted + 2 * noise
        elif np.all(mean > 0):
            slope = head.predicted.khat
            middle = np.exp(np.mean(np.log(mean) + slope * np.log(n)))
            out[f"{metric}_predicted"] = middle * n**-slope
    return out
