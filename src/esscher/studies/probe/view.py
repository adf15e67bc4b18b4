"""The result on a page of a report and in a terminal: what matters, and tables of all numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from esscher.core.shown import counted, shown, visible, with_error
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics.intervals import class_counts, class_words
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.probe.result import (
    KEPT,
    LARGE,
    METRIC_NAMES,
    Probe,
    ProbeHead,
    by_need,
    enough_for,
    percent,
    subject,
)

NEVER = "more than 10⁸"
#: Heads of a flag that the table names; the CSV file has all.
NAMED = 12
#: Heads that a terminal shows unless all are asked for.
SHOWN = 15
#: Columns of the table of heads before and after the exponents: key, title, format and meaning.
NUMBERS = (
    ("layer", "layer", "n0", ""),
    ("head", "head", "n0", ""),
    ("tokens_10", "tokens for 10%", "n3", "for 10% relative output error; 95% interval"),
    ("beyond", "extrapolated", "text", "whether that is more than the tokens that were read"),
    ("at_context", "error at the context", "p1", "of the output, at the model's context length"),
    ("flags", "flags", "text", "what stands out at this head"),
    ("flag_evidence", "evidence of the flags", "text", ""),
    ("H", "H", "d2", "attention horizon: the largest whitened singular value"),
    ("psi", "Psi", "d2", "H^2: two-sided, as in the published version of the paper"),
    ("paper_bound", "beta, paper", "d4", "at least this by the paper's bound, 1/(2(1 + 32 Psi))"),
    ("bound", "bound", "text", "whether the mean's exponent is above it, by its 95% interval"),
    ("paper_reference", "reference, paper", "d2", "the line 1/(2(1 + Psi))"),
)
ATTENTION = (
    ("khat", "k-hat", "d2", "tail of received attention, a diagnostic: 1/2 and more is heavy"),
    ("ess", "effective tokens", "n0", "tokens that the median query attends"),
    ("sinks", "in sinks", "p0", "attention that goes to sinks"),
    ("delimiters", "in delimiters", "p0", "attention to [CLS], [SEP] and the like, in passages"),
    ("sink_tokens", "largest sinks", "text", ""),
    ("psi_one_sided", "Psi, one-sided", "d2", "first version: ‖Σ‖ ‖Σ^½ A‖², of tokens alone"),
    ("paper_bound_one_sided", "beta, paper, one-sided", "d4", "1/(2(1 + 32 Psi)), one-sided Psi"),
    ("paper_reference_one_sided", "reference, one-sided", "d2", "1/(2(1 + Psi)), one-sided Psi"),
    (
        "H_unscaled",
        "H without 1/√d",
        "d2",
        "as the authors' programs compute it; Psi is its square",
    ),
    ("proxy", "proxy", "d2", "variance proxy of the keys over their variance, worst direction"),
)
#: Columns in the CSV file, and among the numbers of a picked head, alone.
HIDDEN = {"flag_evidence", "sink_tokens", "H_unscaled"} | {
    key for key, *_ in ATTENTION if key.endswith("one_sided")
}


def summary(result: Probe, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    count = len(result.heads)
    if not count:
        return Summary("Probe of a model", subject(result), [], [])
    table = result.table()
    worst = result.heads[int(table["at_context"].argmax())]
    counts = class_counts(head.exponent("mean")[1] for head in result.heads)
    how = "predicted" if result.study.predict else "measured"
    cards = [
        Card(
            shown(float(table["at_context"].median()), "p1"),
            "output error of a typical head",
            f"at {worst.context:,.0f} tokens, the model's own context length; worst "
            f"({worst.layer}.{worst.head}): {shown(worst.at_context, 'p0')}",
        ),
        Card(
            f"{int((table['at_context_low'] > LARGE).sum())} of {count}",
            f"heads are more than {LARGE:.0%} off",
            "there, by the lower ends of their 95% intervals: keep all of their tokens",
        ),
        Card(
            f"{counts['at 1/2']} of {count}",
            "heads converge like 1/\u2060√n",
            f"mean output, {how}, by 95% intervals: {class_words(counts)}",
        ),
        Card(
            shown(enough_for(result, 0.5), "n3", NEVER),
            "tokens are enough for half of the heads",
            "for 10% output error; extrapolated beyond the tokens read: "
            f"{int(table['extrapolated'].sum())} of {count}",
        ),
    ]
    flags = [_flags(result)] if any(head.flags for head in result.heads) else []
    return Summary("Probe of a model", subject(result), cards, [*flags, _heads(result, name)])


def _flags(result: Probe) -> Table:
    """Heads of every flag, with the evidence at the first of them."""
    rows = [
        {
            "flag": flag,
            "heads": len(heads),
            "named": ", ".join(heads[:NAMED])
            + (f" and {len(heads) - NAMED} more" if len(heads) > NAMED else ""),
            "evidence": evidence,
            "which": " ".join(heads),
        }
        for flag, heads, evidence in _by_flag(result.heads)
    ]
    return Table(
        title="Flags: what stands out",
        name="flags",
        columns=[
            Column("flag", "flag"),
            Column("heads", "heads", "n0"),
            Column("named", "which"),
            Column("evidence", "evidence at the first of them"),
            Column("which", "all heads", shown=False),
        ],
        data=data_of(pd.DataFrame(rows)),
        caption=f"{counted(len(result.heads), 'head')} in all, written LAYER.HEAD. Each head's own "
        "flags stand beside it in the table below; pick the head to see the evidence.",
    )


def _by_flag(heads: Iterable[ProbeHead]) -> list[tuple[str, list[str], str]]:
    """Flags, most frequent first, with the names of their heads, and the evidence at the first."""
    flagged: dict[str, list[ProbeHead]] = {}
    for head in heads:
        for flag in head.flags:
            flagged.setdefault(flag, []).append(head)
    return [
        (flag, [f"{head.layer}.{head.head}" for head in raised], raised[0].flags[flag])
        for flag, raised in sorted(flagged.items(), key=lambda item: -len(item[1]))
    ]


def _heads(result: Probe, name: str) -> Table:
    """All numbers of all heads; the page also shows those of the picked one below its curves."""
    frame, heads = result.table(), result.heads
    frame["beyond"] = np.where(frame["extrapolated"], "yes", "")
    frame["sink_tokens"] = [
        ", ".join(f"{visible(token)!r} {share:.0%}" for token, share in head.sinks) or "none"
        for head in heads
    ]
    kept = {(head.layer, head.head) for head in by_need(result)[:KEPT]}
    frame["flag_evidence"] = [
        "\n".join(f"{flag}: {evidence}" for flag, evidence in head.flags.items())
        if (head.layer, head.head) in kept
        else None
        for head in heads
    ]
    exponents = []
    for metric, words in METRIC_NAMES.items():
        if not result.study.predict:
            exponents.append((metric, f"exponent, {words}", "d2", "beta of error ~ C n^-beta"))
    for metric, words in METRIC_NAMES.items():
        title = f"predicted exponent, {words}"
        exponents.append((f"predicted_{metric}", title, "d2", "on these sizes, from one pass"))
    columns = []
    for key, title, digits, meaning in (*NUMBERS, *exponents, *ATTENTION):
        if key.endswith("one_sided") and not frame[key].notna().any():
            continue
        low, high = (f"{key}_{end}" if f"{key}_{end}" in frame else None for end in ("low", "high"))
        column = Column(key, title, digits, low, high, help=meaning, shown=key not in HIDDEN)
        columns.append(replace(column, missing=NEVER, last=True) if key == "tokens_10" else column)
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


def print_result(result: Probe, console: PlainConsole, everything: bool = False) -> None:
    """Print the worst heads, the layers and how good the predictors were."""
    if not result.heads:
        return
    frame = result.table().sort_values("tokens_10", ascending=False, na_position="first")
    some = frame if everything else frame.head(SHOWN)
    hidden = len(frame) - len(some)
    table = PlainTable(
        f"{result.study.model_record.name}, {result.study.mode} mode: "
        + ("all heads" if not hidden else f"the {len(some)} heads that need most tokens"),
        least=("ESS", "k-hat", "cov", "H", "map", "error"),
    )
    headings = ("head", "H", "Psi", "beta, paper", *METRICS, "k-hat", "ESS", "error", "10%")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in some.to_dict("records"):
        tokens, low, high = (_short(row[f"tokens_10{end}"]) for end in ("", "_low", "_high"))
        if tokens[-1] == low[-1] == high[-1] and tokens[-1] in "kM":
            low, high = low[:-1], high[:-1]
        table.add_row(
            f"{row['layer']}.{row['head']}",
            f"{row['H']:.2f}",
            f"{row['psi']:.2f}",
            f"{row['paper_bound']:.4f}",
            *(_half_width(row, result.exponent_column(metric)) for metric in METRICS),
            f"{row['khat']:.2f}",
            f"{row['ess']:.0f}",
            percent(row["at_context"]),
            f"{tokens} ({low}-{high})" + ("*" if row["extrapolated"] else ""),
        )
    console.print(table)
    if hidden:
        console.say(f"{counted(hidden, 'more head')}, which need fewer tokens; --all shows all.")
    bounds = frame["bound"].value_counts()
    violated = int(bounds.get("violated", 0))
    console.say(
        "The paper's bound on the exponent of the mean holds at "
        f"{int(bounds.get('holds', 0))} of {len(frame)} heads"
        + (f" and is violated at {violated}." if violated else ".")
    )
    flags = _by_flag(by_need(result))
    if flags:
        table = PlainTable("Flags: what stands out")
        table.add_column("flag", no_wrap=True)
        table.add_column("heads", justify="right", no_wrap=True)
        table.add_column("evidence at the head that needs most tokens")
        for flag, heads, evidence in flags:
            table.add_row(flag, str(len(heads)), f"{heads[0]}: {evidence}")
        console.print(table)
    _print_layers(result, console)
    how = "predicted" if result.study.predict else "measured"
    console.explain(
        "head: layer.head; Psi: H^2; beta, paper: by the paper's bound the exponent is at least "
        "1/(2(1 + 32 Psi)); k-hat: tail of received attention, a diagnostic; mean, cov, map: "
        f"{how} exponents of error ~ C n^-beta, in brackets half the width of the 95% interval "
        "(last digits); ESS: tokens that the median query attends; error: output error at "
        f"{result.heads[0].context:,.0f} tokens, the model's own context length; 10%: tokens "
        "for 10% output error, with 95% interval; * more than the tokens that were read: "
        "extrapolated, and larger if more text has rarer tokens.",
    )


def _print_layers(result: Probe, console: PlainConsole) -> None:
    """The heads of each layer together, a line per layer."""
    frame = result.layers_table()
    if frame.empty:
        return
    table = PlainTable(
        f"Heads together: errors of the mean output of {int(frame['heads'].max())} heads",
        least=("worst", "mean", "side by side", "sum"),
    )
    for heading in ("layer", "effective", "sum", "mean", "worst", "side by side", "projected"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in frame.to_dict("records"):
        table.add_row(
            str(row["layer"]),
            _half_width(row, "effective_heads", 1),
            _half_width(row, "amplification"),
            f"{row['heads_mean']:.2f}",
            f"{row['heads_worst']:.2f}",
            _half_width(row, "side_by_side"),
            _half_width(row, "projected"),
        )
    console.print(table)
    console.explain(
        "effective: number of heads with independent errors, (tr R)^2 / tr R^2 of the "
        "correlations R of errors behind the output projection; sum: squared error of the sum of "
        "heads over the sum of their squared errors (1: independent); then exponents: mean and "
        "worst of the heads, heads side by side, and behind the output projection.\n",
    )


def _half_width(row: dict[Any, Any], name: str, decimals: int = 2) -> str:
    """A number with half the width of its interval, in units of the last digit."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    half = None if low is None or high is None else (high - low) / 2
    return with_error(row[name], half, decimals)


def _short(number: float | None) -> str:
    """A number of tokens in at most five characters; what is beyond the grid is never."""
    if number is None or np.isnan(number):
        return "never"
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if number >= size:
            unit = 1e3 if letter == "k" else size
            return f"{number / unit:.{0 if number >= 10 * unit else 1}f}{letter}"
    return f"{number:.0f}"
