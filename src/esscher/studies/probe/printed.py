"""The result in a terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.shown import counted, with_error
from esscher.engine.sampled.sizes import METRICS
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.probe.predictors import CONSTANT
from esscher.studies.probe.result import Probe

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
    headings = ("head", "H", "Psi", "beta, paper", "mean", "cov", "map", "k-hat", "ESS", "error",
                "10%")  # fmt: skip
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
