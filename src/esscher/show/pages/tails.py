"""The page of tails: what the keys' worst directions look like, head by head."""

from __future__ import annotations

from typing import Any

from esscher.math.tails.verdict import HEAVY, SUB_GAUSSIAN, UNDECIDED, VERDICTS
from esscher.show.content import (
    Axis,
    Bars,
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
from esscher.show.frames import data_of, values
from esscher.show.numbers import shown, visible
from esscher.show.provenance import model_options, options
from esscher.show.stored import StoredRun
from esscher.studies.tails import Tails
from esscher.studies.tails.result import TailsHead

NAME = "Tails of the keys"
#: Colours of the verdicts, from the lightest tail to the heaviest; grey for what is not decided.
PAINT = dict(zip(VERDICTS, ("sky", "green", "gold", "orange", "pale"), strict=True))


def subject(run: StoredRun) -> str:
    """Model, text, tokens."""
    c = run.configuration
    return f"{c['model']['name']} on {c['text']['source']}, {c['tokens']:,} tokens"


def answer(run: StoredRun) -> str:
    """The headline."""
    return str(run.found.headline)


def cards(run: StoredRun) -> list[Card]:
    """Verdicts and the typical proxy."""
    found: Tails = run.found
    frame = found.table()
    count = frame["verdict"].value_counts()
    total = len(frame)
    low, middle, high = (float(frame["proxy"].quantile(q)) for q in (0.1, 0.5, 0.9))
    return [
        Card(f"{count.get(SUB_GAUSSIAN, 0)} of {total}", "heads have sub-Gaussian tails"),
        Card(f"{sum(count.get(v, 0) for v in HEAVY)} of {total}", "heads have heavier tails",
             "in the worst direction found"),
        Card(f"{count.get(UNDECIDED, 0)} of {total}", "heads are undecided",
             "too few tokens to tell"),
        Card(shown(middle, "d2"), "variance proxy / variance",
             f"median head; 10% and 90% of the heads: {low:.2f} and {high:.2f}"),
    ]  # fmt: skip


def parts(run: StoredRun) -> list[Part]:
    """Explorer, counts, layers, table."""
    found: Tails = run.found
    table = _head_table(found, run.name)
    out: list[Part] = [_explorer(found, table), _counts(found)]
    if not found.layers_table().empty:
        out.append(_layers(found))
    return [*out, table]


def command_words(run: StoredRun) -> list[str]:
    """``tails MODEL ...``."""
    c = run.configuration
    return [
        "tails", c["model"]["name"],
        *options(text=c["text"]["source"], tokens=c["tokens"], context=c["context"], seed=c["seed"],
                 **model_options(c), out=run.name),
    ]  # fmt: skip


def _head_table(found: Tails, name: str) -> Table:
    frame = found.table()
    frame["tokens_in_tail"] = [
        ", ".join(f"{visible(t.token)!r} {t.projection:+.1f}" for t in h.tokens_in_tail)
        for h in found.heads
    ]
    frame["evidence"] = [h.evidence for h in found.heads]
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        Column("verdict", "verdict"),
        Column("proxy", "proxy / variance", "d2", "proxy_low", "proxy_high",
               help="sub-Gaussian variance proxy of the worst direction, over its variance"),
        Column("kurtosis", "excess kurtosis", "s3", "kurtosis_low", "kurtosis_high"),
        Column("tau", "tail power τ", "d2", "tau_low", "tau_high",
               help="of exp(-c x^τ) beyond the deciding threshold: 2 is Gaussian"),
        Column("beyond", "threshold", "d1", help="in standard deviations"),
        Column("norms_k", "k-hat of norms", "d2", "norms_k_low", "norms_k_high"),
        Column("logits_k", "k-hat of logits", "d2", "logits_k_low", "logits_k_high"),
        Column("largest", "largest", "d1", help="largest projection, in standard deviations"),
        Column("with_delimiters", "with delimiters", help="verdict with delimiters included"),
        Column("tokens_in_tail", "tokens in the tail"),
        Column("evidence", "evidence", shown=False),
    ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data_of(frame),
        caption="Brackets are 95% intervals. Tokens in the tail are given with their projection in "
        "standard deviations.",
        sort=("kurtosis", True),
    )


def _explorer(found: Tails, table: Table) -> Explorer:
    kurtosis = [h.kurtosis.value or 0.0 for h in found.heads]
    order = sorted(range(len(kurtosis)), key=lambda i: -kurtosis[i])
    categories = [(verdict, PAINT[verdict]) for verdict in VERDICTS]
    return Explorer(
        title="Every head",
        table=table,
        quantities=[
            Quantity("verdict", "verdict", categories=categories),
            Quantity("proxy", "variance proxy / variance"),
            Quantity("kurtosis", "excess kurtosis", log=True),
            Quantity("norms_k", "k-hat of key norms", "cividis", limits=(-0.5, 0.5)),
            Quantity("logits_k", "k-hat of logits", "cividis", limits=(-0.5, 0.5)),
            Quantity("with_delimiters", "verdict with delimiters", categories=categories),
        ],
        facts=["verdict", "proxy", "kurtosis", "tau", "norms_k", "logits_k", "tokens_in_tail"],
        views=[
            CurveView(
                "power of the tail", Axis("threshold (standard deviations)"),
                Axis("τ of exp(-c x^τ)", log=True),
                [CurveSeries("measured", "tau", "low", "high", hollow="small")], "threshold",
                [Line("h", 2.0, "Gaussian"), Line("h", 1.0, "exponential")],
            ),
            CurveView(
                "evidence", Axis("threshold (standard deviations)"),
                Axis("criterion above the best"),
                [
                    CurveSeries("Gaussian", "Gaussian", colour="sky"),
                    CurveSeries("Weibull", "Weibull", colour="gold"),
                    CurveSeries("Pareto", "Pareto", colour="orange"),
                ], "threshold",
            ),
        ],
        curves=[_curves(h) for h in found.heads],
        notes=[f"{h.evidence[:1].upper()}{h.evidence[1:]}. It means: {h.meaning}."
               for h in found.heads],
        importance=order,
        start=order[0],
        caption="Verdicts are on the worst direction found, from passages that had no part in "
        "choosing it.",
        curve_caption="Fits beyond higher and higher thresholds, with 95% intervals; hollow: fewer "
        "than 100 tokens beyond it. A tail with a large τ ends.",
    )  # fmt: skip


def _curves(head: TailsHead) -> dict[str, Any]:
    tail = head.tail
    out: dict[str, Any] = {
        "threshold": [t.threshold for t in tail],
        "tau": [t.tau for t in tail],
        "low": [t.tau_interval[0] for t in tail],
        "high": [t.tau_interval[1] for t in tail],
        "small": [t.exceedances < 100 for t in tail],
    }
    for name in ("Gaussian", "Weibull", "Pareto"):
        out[name] = [t.criterion[name] for t in tail]
    return out


def _counts(found: Tails) -> Chart:
    frame = found.table()
    layers = sorted(frame["layer"].unique())
    series = [
        Series(
            verdict, list(range(len(layers))),
            [int(((frame["layer"] == layer) & (frame["verdict"] == verdict)).sum())
             for layer in layers],
            colour=PAINT[verdict],
        )
        for verdict in VERDICTS
        if (frame["verdict"] == verdict).any()
    ]  # fmt: skip
    return Chart(
        "Verdicts by layer",
        [Bars("verdicts", Axis("heads"), [str(layer) for layer in layers], series, stacked=True)],
        caption="Number of heads with each verdict, by layer.",
    )


def _layers(found: Tails) -> Chart:
    frame = found.layers_table()
    at = values(frame["layer"])

    def view(column: str, name: str, title: str, lines: list[Line], log: bool = False) -> Plot:
        return Plot(
            name, Axis("layer"), Axis(title, log),
            [Series(title, at, values(frame[column]), values(frame[f"{column}_low"]),
                    values(frame[f"{column}_high"]), mode="both", text=list(frame["verdict"]))],
            lines,
        )  # fmt: skip

    return Chart(
        "Hidden states by layer",
        [
            view("proxy", "variance proxy", "variance proxy / variance",
                 [Line("h", 1.0, "Gaussian")]),
            view("kurtosis", "kurtosis", "excess kurtosis", []),
            view("norms_k", "k-hat of norms", "k-hat of norms", [Line("h", 0.0)]),
        ],
        caption="The worst direction of the tokens that enter each layer; bars are 95% intervals.",
        selector="Quantity",
    )  # fmt: skip
