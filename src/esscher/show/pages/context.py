"""The page of context lengths: which heads still gain from more tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.show.content import (
    Axis,
    Card,
    Chart,
    Column,
    CurveSeries,
    CurveView,
    Explorer,
    Line,
    Part,
    Plot,
    Quantity,
    Series,
    Table,
)
from esscher.show.frames import data_of
from esscher.show.numbers import shown
from esscher.show.provenance import model_options, options
from esscher.show.stored import StoredRun
from esscher.studies.context.result import longest_first

NAME = "Context lengths of heads"


def subject(run: StoredRun) -> str:
    """Model, text, longest context."""
    c = run.configuration
    return (
        f"{c['model']['name']} on {c['text']['source']}, up to {c['context']:,} tokens, "
        f"{c['passages']} passages, tolerance {100 * c['tolerance']:g}%"
    )


def answer(run: StoredRun) -> str:
    """The headline."""
    return str(run.found.headline)


def cards(run: StoredRun) -> list[Card]:
    """Saturated heads, those beyond, those with an open end, the median."""
    frame, longest = run.found.table(), run.configuration["context"]
    length, total = frame["length"].where(~frame["open"], np.inf), len(frame)
    low, middle, high = (_used(length, q, longest) for q in (0.1, 0.5, 0.9))
    return [
        Card(f"{int((length <= longest // 2).sum())} of {total}",
             f"heads are done by {longest // 2:,} tokens",
             f"within {100 * run.configuration['tolerance']:g}% of what they become"),
        Card(f"{int(frame['extrapolated'].sum())} of {total}",
             f"heads gain beyond {longest:,} tokens", "by extrapolation"),
        Card(f"{int(frame['open'].sum())} of {total}", f"heads are still changing at {longest:,}",
             "and no less than before"),
        Card(middle, "tokens that the median head uses",
             f"10% and 90% of the heads: {low} and {high}"),
    ]  # fmt: skip


def _used(lengths: Any, quantile: float, longest: int) -> str:
    """A quantile of lengths, of which some may be open."""
    found = float(lengths.quantile(quantile, "nearest"))
    return shown(found, "n0") if np.isfinite(found) else f"open at {longest:,}"


def parts(run: StoredRun) -> list[Part]:
    """Explorer, distribution, table."""
    table = _head_table(run)
    return [_explorer(run, table), _distribution(run), table]


def command_words(run: StoredRun) -> list[str]:
    """``context MODEL ...``."""
    c = run.configuration
    return [
        "context", c["model"]["name"],
        *options(text=c["text"]["source"], tolerance=c["tolerance"], context=c["context"],
                 passages=c["passages"], seed=c["seed"],
                 **model_options(c), out=run.name),
    ]  # fmt: skip


def _head_table(run: StoredRun) -> Table:
    return Table(
        title="All heads",
        name=f"{run.name}-heads",
        columns=[
            Column("layer", "layer", "n0"),
            Column("head", "head", "n0"),
            Column("length", "tokens used", "n0", "low", "high", "open",
                   help="context at which what is still to come is within the tolerance"),
            Column("extrapolated", "extrapolated", help="beyond the longest context measured"),
            Column("note", "open end"),
            Column("limit", "at most", "n0",
                   help="the window of the layer, or what the model reads"),
            Column("open", "open", shown=False),
            Column("exponent", "exponent of changes", "d2", help="b of change ~ L^-b"),
            Column("last_change", "last change", "p1",
                   help="relative change of the output at the last doubling"),
        ],
        data=data_of(run.found.table()),
        caption="Brackets are 95% intervals from resampled passages.",
        sort=("last_change", True),
    )  # fmt: skip


def _explorer(run: StoredRun, table: Table) -> Explorer:
    lengths, heads = run.results["lengths"], run.results["heads"]
    order = longest_first(run.found.table()).index.tolist()
    return Explorer(
        title="Every head",
        table=table,
        quantities=[
            Quantity("length", "tokens used", log=True),
            Quantity("last_change", "last change", "cividis"),
            Quantity("exponent", "exponent of changes", "cividis"),
        ],
        facts=["length", "note", "extrapolated", "limit", "exponent", "last_change"],
        views=[
            CurveView(
                "change", Axis("context L", True, lengths), Axis("relative change", True),
                [
                    CurveSeries("output changes when L is doubled", "change"),
                    CurveSeries("still to come beyond L", "rest", colour="orange", dash="dash"),
                ],
                lengths,
                [Line("h", run.configuration["tolerance"],
                      f"tolerance {100 * run.configuration['tolerance']:g}%")],
            )
        ],
        curves=[_curves(h) for h in heads],
        importance=order,
        start=order[0],
        caption=f"× marks heads that are still changing at {lengths[-1]:,} tokens, no less than "
        "before.",
        curve_caption="A head is done where the dashed line crosses the tolerance, or where its "
        "last change is within it; beyond the longest context it is extrapolated by the power law "
        "of the last doublings, up to what the head can see.",
    )  # fmt: skip


def _curves(head: dict[str, Any]) -> dict[str, Any]:
    return {"change": [*head["change"], None], "rest": [v if v else None for v in head["rest"]]}


def _distribution(run: StoredRun) -> Chart:
    frame = run.found.table().sort_values("length")
    finite = frame[~frame["open"]]
    share = [(i + 1) / len(frame) for i in range(len(finite))]
    longest = run.configuration["context"]
    return Chart(
        "How many heads are done",
        [
            Plot(
                "share", Axis("context (tokens)", log=True),
                Axis("share of heads that are done", limits=(0.0, 1.02)),
                [Series("heads", finite["length"].tolist(), share, mode="line",
                        text=[f"layer {r.layer}, head {r.head}" for r in finite.itertuples()])],
                [Line("v", float(longest), "longest measured")],
            )
        ],
        caption=f"Share of the heads that are within {100 * run.configuration['tolerance']:g}% of "
        "what they become, against the context; right of the dotted line by extrapolation.",
    )  # fmt: skip
