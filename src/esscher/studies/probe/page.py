"""The result on a page of a report: the numbers that matter, and tables of all of them."""

from __future__ import annotations

import numpy as np

from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, ends_of, values
from esscher.show.numbers import counted, shown, visible
from esscher.studies.probe.charts import KEPT, PREDICTORS, by_need
from esscher.studies.probe.curves import METRICS, NORMAL
from esscher.studies.probe.result import CLOSE, PARAMETRIC, Probe

NEVER = "more than 10⁸"


def summary(found: Probe, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    study = found.study
    subject = (
        f"{study.model_record.name} on {study.text_record.source}, {study.mode}, "
        f"{study.tokens:,} tokens, n = {study.sizes[0]:,} to {study.sizes[-1]:,}"
    )
    if not found.heads:
        return Summary("Probe of a model", subject, [], [])
    tables = [_predictors(found), *_flags(found), _heads(found, name)]
    return Summary("Probe of a model", subject, _cards(found), tables)


def _cards(found: Probe) -> list[Card]:
    """Heads, rates, tokens, the best predictor."""
    table, count = found.table(), len(found.heads)
    near = (table["mean"] - PARAMETRIC).abs() <= CLOSE
    inside = (table["mean_low"] <= PARAMETRIC) & (table["mean_high"] >= PARAMETRIC)
    needed = table["tokens_10"].astype(float).fillna(np.inf)
    low, high = (float(needed.quantile(q, "nearest")) for q in (0.1, 0.9))
    middle = float(table["tokens_10"].median())
    best = found.predictors()
    first = best[best["metric"] == "mean"].iloc[0]
    flagged = sum(bool(head.flags) for head in found.heads)
    return [
        Card(f"{int((near | inside).sum())} of {count}", "heads converge like 1/\u2060√n",
             f"mean output: 95% interval holds 1/2, or within {CLOSE:g} of it"),
        Card(shown(middle, "n0"), "tokens for 10% output error",
             f"median head; 10% and 90% of the heads: {shown(low, 'n3')} and {shown(high, 'n3')}"),
        Card(f"{int((needed > 10_000).sum())} of {count}", "heads need more than 10,000 tokens"),
        Card(f"{first['mean absolute error']:.3f}", "error of the best predictor",
             f"mean absolute error of the exponent of the mean, {first['predictor']}"),
        Card(f"{flagged} of {count}", "heads carry flags", "reasons to doubt their numbers"),
    ]  # fmt: skip


def _predictors(found: Probe) -> Table:
    table, frame = found.predictors(), found.table()
    ends: list[tuple[float, float] | None] = []
    for row in table.to_dict("records"):
        columns = {name: column for column, name in PREDICTORS[row["metric"]].items()}
        error = (frame[columns[row["predictor"]]] - frame[row["metric"]]).abs().dropna()
        mean, count = float(error.mean()), len(error)
        half = NORMAL * float(error.std(ddof=1)) / np.sqrt(count) if count > 1 else np.nan
        ends.append((max(0.0, mean - half), mean + half) if np.isfinite(half) else None)
    low, high = ends_of(ends)
    return Table(
        title="How good the predictors are",
        name="predictors",
        columns=[
            Column("metric", "exponent of the"),
            Column("predictor", "predictor"),
            Column("error", "mean absolute error", "d3", "error_low", "error_high"),
        ],
        data={
            "metric": [METRICS[metric] for metric in table["metric"]],
            "predictor": list(table["predictor"]),
            "error": values(table["mean absolute error"]),
            "error_low": low,
            "error_high": high,
        },
        caption="Mean over heads of |predicted - measured|, best first; 95% intervals over heads.",
    )


def _flags(found: Probe) -> list[Table]:
    seen: dict[str, list[tuple[str, str]]] = {}
    for head in found.heads:
        for flag in head.flags:
            seen.setdefault(flag.flag, []).append((f"{head.layer}.{head.head}", flag.evidence))
    if not seen:
        return []
    order = sorted(seen, key=lambda name: -len(seen[name]))
    return [
        Table(
            title="Flags: why numbers may not be what they seem",
            name="flags",
            columns=[
                Column("flag", "flag"),
                Column("heads", "heads", "n0"),
                Column("example", "for example, head"),
                Column("evidence", "evidence there"),
                Column("which", "all heads", shown=False),
            ],
            data={
                "flag": order,
                "heads": [len(seen[name]) for name in order],
                "example": [seen[name][0][0] for name in order],
                "evidence": [seen[name][0][1] for name in order],
                "which": [" ".join(head for head, _ in seen[name]) for name in order],
            },
            caption=f"{counted(len(found.heads), 'head')} in all. The CSV file lists the heads of "
            "each flag.",
        )
    ]


def _heads(found: Probe, name: str) -> Table:
    """All numbers of all heads; the page also shows those of the picked one below its curves."""
    frame, heads = found.table(), found.heads
    frame["lost"] = frame["sinks"] + frame["delimiters"].fillna(0.0)
    frame["khat_low"] = [head.khat.interval[0] for head in heads]
    frame["khat_high"] = [head.khat.interval[1] for head in heads]
    frame["sink_tokens"] = [
        ", ".join(f"{visible(t.token)!r} {t.share:.0%}" for t in head.sinks.tokens) or "none"
        for head in heads
    ]
    kept = {(head.layer, head.head) for head in by_need(found)[:KEPT]}
    told = [(head.layer, head.head) in kept for head in heads]
    frame["flag_evidence"] = [
        "\n".join(f"{flag.flag}: {flag.evidence}" for flag in head.flags) if tell else None
        for head, tell in zip(heads, told, strict=True)
    ]
    frame["tail_evidence"] = [
        head.tails.evidence if tell and head.tails is not None else None
        for head, tell in zip(heads, told, strict=True)
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
        Column("flag_evidence", "evidence of the flags", shown=False),
        Column("tail_evidence", "evidence of the tails", shown=False),
    ]  # fmt: skip
    file = "The CSV file has every column, at full length"
    if len(kept) < len(heads):
        file += f"; evidence is that of the {len(kept):,} heads that need most tokens"
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data_of(frame),
        caption="Brackets are 95% intervals. Click a row, or press Enter on it, to see its curves "
        f"above. {file}.",
        sort=("tokens_10", True),
    )
