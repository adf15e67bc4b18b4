"""The result on a page of a report: the numbers that matter, and tables of all of them."""

from __future__ import annotations

import numpy as np

from esscher.math.statistics.classes import class_counts, class_words
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, values
from esscher.show.numbers import counted, shown, visible
from esscher.studies.probe.charts import KEPT, by_need
from esscher.studies.probe.curves import METRICS
from esscher.studies.probe.headline import LARGE
from esscher.studies.probe.predictors import beats_constant
from esscher.studies.probe.result import Probe

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
    tables = [*_predictors(found), *_flags(found), _heads(found, name)]
    return Summary("Probe of a model", subject, _cards(found), tables)


def _cards(found: Probe) -> list[Card]:
    """Errors at the model's context, heads to leave alone, classes of rates, tokens, predictor."""
    table, count = found.table(), len(found.heads)
    errors = table["at_context"]
    worst = found.heads[int(errors.argmax())]
    large = [head for head in found.heads if head.at_context.interval[0] > LARGE]
    counts = class_counts(head.exponent("mean")[1] for head in found.heads)
    needed = table["tokens_10"].astype(float).fillna(np.inf)
    middle = float(needed.median())
    beyond = int(table["extrapolated"].sum())
    cards = [
        Card(shown(float(errors.median()), "p1"), "output error of a typical head",
             f"at {worst.at_context.n:,.0f} tokens, the model's own context length; worst "
             f"({worst.layer}.{worst.head}): {shown(worst.at_context.error, 'p0')}"),
        Card(f"{len(large)} of {count}", f"heads are more than {LARGE:.0%} off",
             "there, beyond their intervals: leave them alone when tokens are dropped"),
        Card(f"{counts['at 1/2']} of {count}", "heads converge like 1/\u2060√n",
             f"mean output, by 95% intervals: {class_words(counts)}"),
        Card(shown(middle, "n0") if np.isfinite(middle) else NEVER, "tokens for 10% output error",
             f"median head; extrapolated beyond the tokens read: {beyond} of {count}"),
    ]  # fmt: skip
    best = found.predictors()
    if not best.empty:
        first = best[best["metric"] == "mean"].iloc[0]
        word = "better than" if beats_constant(first) else "not better than"
        cards.append(
            Card(f"{first['mean absolute error']:.3f}", "error of the predicted exponents",
                 f"mean output, {first['predictor']}: {word} always 1/2, beyond its interval")
        )  # fmt: skip
    return cards


def _predictors(found: Probe) -> list[Table]:
    table = found.predictors()
    if table.empty:
        return []
    return [
        Table(
            title="How good the predictors are",
            name="predictors",
            columns=[
                Column("metric", "exponent of the"),
                Column("predictor", "predictor"),
                Column("error", "mean absolute error", "d3"),
                Column("skill", "skill", "d2", "skill_low", "skill_high"),
            ],
            data={
                "metric": [METRICS[metric] for metric in table["metric"]],
                "predictor": list(table["predictor"]),
                "error": values(table["mean absolute error"]),
                "skill": values(table["skill"]),
                "skill_low": values(table["skill_low"]),
                "skill_high": values(table["skill_high"]),
            },
            caption="Mean over heads of |predicted - measured|, smallest first. Skill: 1 minus its "
            "ratio to the error of always saying 1/2, with its 95% interval over heads; an "
            "interval that holds 0 is no better than the constant.",
        )
    ]


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
            title="Flags: what stands out",
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
    frame["beyond"] = np.where(frame["extrapolated"], "yes", "")
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
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        Column("H", "H", "d2", help="attention horizon: the largest whitened singular value"),
        Column("khat", "k-hat", "d2", "khat_low", "khat_high",
               help="tail of received attention: a diagnostic, 1/2 and more is a heavy tail"),
        *(
            Column(metric, f"exponent, {words}", "d2", f"{metric}_low", f"{metric}_high",
                   help=f"beta of error ~ C n^-beta, {words}; 95% interval")
            for metric, words in METRICS.items()
        ),
        *(
            Column(f"predicted_{metric}", f"predicted, {words}", "d2",
                   help=f"exponent of the {words} error on these sizes, from one pass")
            for metric, words in METRICS.items()
        ),
        Column("at_context", "error at the context", "p1", "at_context_low", "at_context_high",
               help="relative output error at the model's own context length; 95% interval"),
        Column("tokens_10", "tokens for 10%", "n3", "tokens_10_low", "tokens_10_high",
               NEVER, True, "tokens for 10% relative output error; 95% interval"),
        Column("beyond", "extrapolated",
               help="whether that is more than the tokens that were read"),
        Column("ess", "ESS", "n0", help="tokens that the median query attends"),
        Column("lost", "in sinks", "p0", help="attention that goes to sinks and delimiters"),
        Column("proxy", "proxy", "d2", "proxy_low", "proxy_high",
               help="variance proxy of the keys over their variance, along the worst direction"),
        Column("flags", "flags", help="what stands out at this head"),
        Column("sink_tokens", "largest sinks", shown=False),
        Column("flag_evidence", "evidence of the flags", shown=False),
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
