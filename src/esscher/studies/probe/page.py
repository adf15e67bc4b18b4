"""The result on a page of a report: the numbers that matter, and tables of all of them."""

from __future__ import annotations

import numpy as np

from esscher.math.statistics.records import class_counts, class_words
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, values
from esscher.show.numbers import counted, shown, visible
from esscher.studies.probe.charts import KEPT, by_need, enough_for
from esscher.studies.probe.curves import METRICS
from esscher.studies.probe.headline import LARGE
from esscher.studies.probe.predictors import beats_constant
from esscher.studies.probe.result import Probe

NEVER = "more than 10⁸"
#: The paper's numbers with the one-sided Psi, where it is known.
ONE_SIDED = (
    ("psi_one_sided", "Psi, one-sided", "d2", "first version: ‖Σ‖ ‖Σ^½ A‖², of tokens alone"),
    ("paper_bound_one_sided", "beta, paper, one-sided", "d4", "1/(2(1 + 32 Psi)), one-sided Psi"),
    ("paper_reference_one_sided", "reference, one-sided", "d2", "1/(2(1 + Psi)), one-sided Psi"),
)
#: Heads of a flag that the table names; the CSV file has all.
NAMED = 12


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
    how = "predicted" if found.study.predict else "measured"
    middle = enough_for(found, 0.5)
    beyond = int(table["extrapolated"].sum())
    cards = [
        Card(shown(float(errors.median()), "p1"), "output error of a typical head",
             f"at {worst.at_context.n:,.0f} tokens, the model's own context length; worst "
             f"({worst.layer}.{worst.head}): {shown(worst.at_context.error, 'p0')}"),
        Card(f"{len(large)} of {count}", f"heads are more than {LARGE:.0%} off",
             "there, by the lower ends of their 95% intervals: keep all of their tokens"),
        Card(f"{counts['at 1/2']} of {count}", "heads converge like 1/\u2060√n",
             f"mean output, {how}, by 95% intervals: {class_words(counts)}"),
        Card(shown(middle, "n3", NEVER), "tokens are enough for half of the heads",
             f"for 10% output error; extrapolated beyond the tokens read: {beyond} of {count}"),
    ]  # fmt: skip
    best = found.predictors()
    if not best.empty:
        first = best[best["metric"] == "mean"].iloc[0]
        word = "better than" if beats_constant(first) else "not shown to be better than"
        cards.append(
            Card(f"{first['mean absolute error']:.3f}", "mean error of the best predicted exponent",
                 f"mean output, {first['predictor']}: {word} always saying 1/2")
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
            caption="Mean over heads of |predicted - measured|, smallest first. Skill: 1 is "
            "perfect, 0 is as good as always saying 1/2. If the 95% interval of the skill (over "
            "heads) holds 0, the predictor is not shown to be better than that.",
        )
    ]


def _flags(found: Probe) -> list[Table]:
    """Heads of every flag, with the evidence at the first of them."""
    seen: dict[str, list[tuple[str, str]]] = {}
    for head in found.heads:
        for flag in head.flags:
            seen.setdefault(flag.flag, []).append((f"{head.layer}.{head.head}", flag.evidence))
    if not seen:
        return []
    order = sorted(seen, key=lambda name: -len(seen[name]))
    names = {name: [head for head, _ in seen[name]] for name in order}
    return [
        Table(
            title="Flags: what stands out",
            name="flags",
            columns=[
                Column("flag", "flag"),
                Column("heads", "heads", "n0"),
                Column("named", "which"),
                Column("evidence", "evidence at the first of them"),
                Column("which", "all heads", shown=False),
            ],
            data={
                "flag": order,
                "heads": [len(names[name]) for name in order],
                "named": [_named(names[name]) for name in order],
                "evidence": [seen[name][0][1] for name in order],
                "which": [" ".join(names[name]) for name in order],
            },
            caption=f"{counted(len(found.heads), 'head')} in all, written LAYER.HEAD. Each head's "
            "own flags stand beside it in the table below; pick the head to see the evidence.",
        )
    ]


def _named(heads: list[str]) -> str:
    """The first heads of a list, and how many more there are."""
    more = f" and {len(heads) - NAMED} more" if len(heads) > NAMED else ""
    return ", ".join(heads[:NAMED]) + more


def _heads(found: Probe, name: str) -> Table:
    """All numbers of all heads; the page also shows those of the picked one below its curves."""
    frame, heads = found.table(), found.heads
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
        Column("tokens_10", "tokens for 10%", "n3", "tokens_10_low", "tokens_10_high",
               NEVER, True, "tokens for 10% relative output error; 95% interval"),
        Column("beyond", "extrapolated",
               help="whether that is more than the tokens that were read"),
        Column("at_context", "error at the context", "p1", "at_context_low", "at_context_high",
               help="relative output error at the model's own context length; 95% interval"),
        Column("flags", "flags", help="what stands out at this head"),
        Column("flag_evidence", "evidence of the flags", shown=False),
        Column("H", "H", "d2", help="attention horizon: the largest whitened singular value"),
        Column("psi", "Psi", "d2", help="H^2: two-sided, as in the published version of the paper"),
        Column("paper_bound", "beta, paper", "d4",
               help="the exponent is at least this, 1/(2(1 + 32 Psi)), by the paper's bound"),
        Column("bound", "bound",
               help="whether the exponent of the mean is above it, by its 95% interval"),
        Column("paper_reference", "reference, paper", "d2", help="the line 1/(2(1 + Psi))"),
        *(
            Column(metric, f"exponent, {words}", "d2", f"{metric}_low", f"{metric}_high",
                   help=f"beta of error ~ C n^-beta, {words}; 95% interval")
            for metric, words in METRICS.items()
            if not found.study.predict
        ),
        *(
            Column(f"predicted_{metric}", f"predicted exponent, {words}", "d2",
                   f"predicted_{metric}_low", f"predicted_{metric}_high",
                   help=f"exponent of the {words} error on these sizes, from one pass; 95% "
                   "interval")
            for metric, words in METRICS.items()
        ),
        Column("khat", "k-hat", "d2", "khat_low", "khat_high",
               help="tail of received attention: a diagnostic, 1/2 and more is a heavy tail"),
        Column("ess", "effective tokens", "n0", help="tokens that the median query attends"),
        Column("sinks", "in sinks", "p0", help="attention that goes to sinks"),
        Column("delimiters", "in delimiters", "p0",
               help="attention that goes to delimiters, such as [CLS] and [SEP], in real passages"),
        Column("sink_tokens", "largest sinks", shown=False),
        *(
            Column(name, words, digits, help=help, shown=False)
            for name, words, digits, help in ONE_SIDED
            if frame[name].notna().any()
        ),
        Column("H_unscaled", "H without 1/√d", "d2", shown=False,
               help="as the authors' programs compute it; their Psi is its square"),
        Column("proxy", "proxy", "d2", "proxy_low", "proxy_high",
               help="variance proxy of the keys over their variance, along the worst direction"),
    ]  # fmt: skip
    file = "The CSV file has every column"
    if len(kept) < len(heads):
        file += f"; evidence of flags only of the {len(kept):,} heads that need most tokens"
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data_of(frame),
        caption="Brackets are 95% intervals. Click a row, or press Enter on it, to see the head's "
        f"curves above. {file}.",
        sort=("tokens_10", True),
    )
