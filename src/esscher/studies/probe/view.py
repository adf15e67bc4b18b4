"""The result on a page of a report: the numbers that matter, and tables of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.shown import counted, shown, visible, with_error
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics.records import class_counts, class_words
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, values
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.probe.result import (
    CONSTANT,
    KEPT,
    LARGE,
    METRIC_NAMES,
    Probe,
    beats_constant,
    by_need,
    enough_for,
)

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
        Card(
            shown(float(errors.median()), "p1"),
            "output error of a typical head",
            f"at {worst.at_context.n:,.0f} tokens, the model's own context length; worst "
            f"({worst.layer}.{worst.head}): {shown(worst.at_context.error, 'p0')}",
        ),
        Card(
            f"{len(large)} of {count}",
            f"heads are more than {LARGE:.0%} off",
            "there, by the lower ends of their 95% intervals: keep all of their tokens",
        ),
        Card(
            f"{counts['at 1/2']} of {count}",
            "heads converge like 1/\u2060√n",
            f"mean output, {how}, by 95% intervals: {class_words(counts)}",
        ),
        Card(
            shown(middle, "n3", NEVER),
            "tokens are enough for half of the heads",
            f"for 10% output error; extrapolated beyond the tokens read: {beyond} of {count}",
        ),
    ]
    best = found.predictors()
    if not best.empty:
        first = best[best["metric"] == "mean"].iloc[0]
        word = "better than" if beats_constant(first) else "not shown to be better than"
        cards.append(
            Card(
                f"{first['mean absolute error']:.3f}",
                "mean error of the best predicted exponent",
                f"mean output, {first['predictor']}: {word} always saying 1/2",
            )
        )
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
                "metric": [METRIC_NAMES[metric] for metric in table["metric"]],
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
        Column(
            "tokens_10",
            "tokens for 10%",
            "n3",
            "tokens_10_low",
            "tokens_10_high",
            NEVER,
            True,
            "tokens for 10% relative output error; 95% interval",
        ),
        Column(
            "beyond", "extrapolated", help="whether that is more than the tokens that were read"
        ),
        Column(
            "at_context",
            "error at the context",
            "p1",
            "at_context_low",
            "at_context_high",
            help="relative output error at the model's own context length; 95% interval",
        ),
        Column("flags", "flags", help="what stands out at this head"),
        Column("flag_evidence", "evidence of the flags", shown=False),
        Column("H", "H", "d2", help="attention horizon: the largest whitened singular value"),
        Column("psi", "Psi", "d2", help="H^2: two-sided, as in the published version of the paper"),
        Column(
            "paper_bound",
            "beta, paper",
            "d4",
            help="the exponent is at least this, 1/(2(1 + 32 Psi)), by the paper's bound",
        ),
        Column(
            "bound",
            "bound",
            help="whether the exponent of the mean is above it, by its 95% interval",
        ),
        Column("paper_reference", "reference, paper", "d2", help="the line 1/(2(1 + Psi))"),
        *(
            Column(
                metric,
                f"exponent, {words}",
                "d2",
                f"{metric}_low",
                f"{metric}_high",
                help=f"beta of error ~ C n^-beta, {words}; 95% interval",
            )
            for metric, words in METRIC_NAMES.items()
            if not found.study.predict
        ),
        *(
            Column(
                f"predicted_{metric}",
                f"predicted exponent, {words}",
                "d2",
                f"predicted_{metric}_low",
                f"predicted_{metric}_high",
                help=f"exponent of the {words} error on these sizes, from one pass; 95% interval",
            )
            for metric, words in METRIC_NAMES.items()
        ),
        Column(
            "khat",
            "k-hat",
            "d2",
            "khat_low",
            "khat_high",
            help="tail of received attention: a diagnostic, 1/2 and more is a heavy tail",
        ),
        Column("ess", "effective tokens", "n0", help="tokens that the median query attends"),
        Column("sinks", "in sinks", "p0", help="attention that goes to sinks"),
        Column(
            "delimiters",
            "in delimiters",
            "p0",
            help="attention that goes to delimiters, such as [CLS] and [SEP], in real passages",
        ),
        Column("sink_tokens", "largest sinks", shown=False),
        *(
            Column(name, words, digits, help=help, shown=False)
            for name, words, digits, help in ONE_SIDED
            if frame[name].notna().any()
        ),
        Column(
            "H_unscaled",
            "H without 1/√d",
            "d2",
            shown=False,
            help="as the authors' programs compute it; their Psi is its square",
        ),
        Column(
            "proxy",
            "proxy",
            "d2",
            "proxy_low",
            "proxy_high",
            help="variance proxy of the keys over their variance, along the worst direction",
        ),
    ]
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


# The result in a terminal.

#: Heads that the table shows unless all are asked for.
SHOWN = 15


def print_result(found: Probe, console: PlainConsole, everything: bool = False) -> None:
    """Print the worst heads, the layers and how good the predictors were."""
    model = found.study.model_record
    if not found.heads:
        return
    frame = found.table().sort_values("tokens_10", ascending=False, na_position="first")
    shown = frame if everything else frame.head(SHOWN)
    hidden = len(frame) - len(shown)
    table = PlainTable(
        f"{model.name}, {found.study.mode} mode: "
        + ("all heads" if not hidden else f"the {len(shown)} heads that need most tokens"),
        least=("ESS", "k-hat", "cov", "H", "map", "error"),
    )
    headings = (
        "head",
        "H",
        "Psi",
        "beta, paper",
        "mean",
        "cov",
        "map",
        "k-hat",
        "ESS",
        "error",
        "10%",
    )
    for name in headings:
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown.to_dict("records"):
        table.add_row(
            f"{row['layer']}.{row['head']}",
            f"{row['H']:.2f}",
            f"{row['psi']:.2f}",
            f"{row['paper_bound']:.4f}",
            *(_with_interval(row, found.exponent_column(metric)) for metric in METRICS),
            f"{row['khat']:.2f}",
            f"{row['ess']:.0f}",
            f"{100 * row['at_context']:.2g}%"
            if row["at_context"] < 0.1
            else f"{row['at_context']:.0%}",
            _tokens(row),
        )
    console.print(table)
    if hidden:
        console.say(f"{counted(hidden, 'more head')}, which need fewer tokens; --all shows all.")
    holds = int((frame["bound"] == "holds").sum())
    violated = int((frame["bound"] == "violated").sum())
    console.say(
        f"The paper's bound on the exponent of the mean holds at {holds} of {len(frame)} heads"
        + (f" and is violated at {violated}." if violated else ".")
    )
    _print_flags(console, found, [(row["layer"], row["head"]) for row in frame.to_dict("records")])
    if not found.study.predict:
        _print_predictors(console, found)
    _print_layers(console, found)
    how = "predicted" if found.study.predict else "measured"
    console.explain(
        "head: layer.head; Psi: H^2; beta, paper: by the paper's bound the exponent is at least "
        "1/(2(1 + 32 Psi)); k-hat: tail of received attention, a diagnostic; mean, cov, map: "
        f"{how} exponents of error ~ C n^-beta, in brackets half the width of the 95% interval "
        "(last digits); ESS: tokens that the median query attends; error: output error at "
        f"{found.heads[0].at_context.n:,.0f} tokens, the model's own context length; 10%: tokens "
        "for 10% output error, with 95% interval; * more than the tokens that were read: "
        "extrapolated, and larger if more text has rarer tokens.",
    )


def _print_predictors(console: PlainConsole, found: Probe) -> None:
    """Each predictor beside the constant."""
    table = PlainTable("Predicted exponents: mean absolute error, and skill against always 1/2")
    for name in ("of", "predictor", "error", "skill"):
        table.add_column(name, justify="right" if name in ("error", "skill") else "left")
    for row in found.predictors().to_dict("records"):
        table.add_row(
            row["metric"], row["predictor"], f"{row['mean absolute error']:.3f}", _skill(row)
        )
    console.print(table)
    console.explain(
        "skill: 1 - error / error of always saying 1/2, with 95% interval over heads; an interval "
        "that holds 0 is no better than the constant.\n"
    )


def _skill(row: dict[Any, Any]) -> str:
    """Skill with its interval, as far as it is known; nothing for the constant itself."""
    value, low, high = (row[name] for name in ("skill", "skill_low", "skill_high"))
    if row["predictor"] == CONSTANT or value is None or np.isnan(value):
        return ""
    if low is None or np.isnan(low):
        return f"{value:.2f}"
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _print_flags(console: PlainConsole, found: Probe, order: list[tuple[int, int]]) -> None:
    """What stands out: how often, and the evidence at the worst head."""
    seen: dict[str, list[tuple[str, str]]] = {}
    for layer, head in order:
        for flag in found.head(int(layer), int(head)).flags:
            place = f"{layer}.{head}", flag.evidence
            seen.setdefault(flag.flag, []).append(place)
    if not seen:
        return
    table = PlainTable("Flags: what stands out")
    table.add_column("flag", no_wrap=True)
    table.add_column("heads", justify="right", no_wrap=True)
    table.add_column("evidence at the head that needs most tokens")
    for name, heads in sorted(seen.items(), key=lambda item: -len(item[1])):
        table.add_row(name, str(len(heads)), f"{heads[0][0]}: {heads[0][1]}")
    console.print(table)


def _tokens(row: dict[Any, Any]) -> str:
    """Tokens for 10% output error with their interval; what is beyond the grid is never."""
    value, low, high = (
        _short(row[name]) for name in ("tokens_10", "tokens_10_low", "tokens_10_high")
    )
    if value[-1] == low[-1] == high[-1] and value[-1] in "kM":
        low, high = low[:-1], high[:-1]
    return f"{value} ({low}-{high})" + ("*" if row["extrapolated"] else "")


def _short(number: float | None) -> str:
    """A number of tokens in at most five characters."""
    if number is None or np.isnan(number):
        return "never"
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if number >= size:
            unit = 1e3 if letter == "k" else size
            return f"{number / unit:.{0 if number >= 10 * unit else 1}f}{letter}"
    return f"{number:.0f}"


def _print_layers(console: PlainConsole, found: Probe) -> None:
    """The heads of each layer together, a line per layer."""
    frame = found.layers_table()
    if frame.empty:
        return
    count = int(frame["heads"].max())
    table = PlainTable(
        f"Heads together: errors of the mean output of {count} heads",
        least=("worst", "mean", "side by side", "sum"),
    )
    for name in ("layer", "effective", "sum", "mean", "worst", "side by side", "projected"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in frame.to_dict("records"):
        table.add_row(
            str(row["layer"]),
            _with_interval(row, "effective_heads", 1),
            _with_interval(row, "amplification"),
            f"{row['heads_mean']:.2f}",
            f"{row['heads_worst']:.2f}",
            _with_interval(row, "side_by_side"),
            _with_interval(row, "projected"),
        )
    console.print(table)
    console.explain(
        "effective: number of heads with independent errors, (tr R)^2 / tr R^2 of the "
        "correlations R of errors behind the output projection; sum: squared error of the sum of "
        "heads over the sum of their squared errors (1: independent); then exponents: mean and "
        "worst of the heads, heads side by side, and behind the output projection.\n",
    )


def _with_interval(row: dict[Any, Any], name: str, decimals: int = 2) -> str:
    """A number with half the width of its interval, in units of the last digit."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    half = None if low is None or high is None else (high - low) / 2
    return with_error(row[name], half, decimals)
