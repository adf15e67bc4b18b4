"""The result in a terminal."""

from __future__ import annotations

from typing import Any

from esscher.core.codec import Estimate
from esscher.core.shown import counted
from esscher.math.tails.records import VarianceProxy
from esscher.math.tails.verdict import LETTERS
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.tails.result import JudgedTokens, Tails

#: Heads that the table shows unless all are asked for.
SHOWN = 15
#: Characters of a token that are shown.
TOKEN = 9


def print_result(found: Tails, console: PlainConsole, everything: bool = False) -> None:
    """Print the headline, the worst heads, the layers' own tokens and what the verdicts mean."""
    console.say(found.headline, "bold")
    console.say_note(found.study.model_record.note)
    if not found.heads:
        return
    name = found.study.model_record.name
    order = sorted(found.heads, key=lambda head: -head.proxy.value)
    shown = order if everything else order[:SHOWN]
    hidden = len(order) - len(shown)
    which = f"the {len(shown)} heads of largest proxy" if hidden else "keys of all heads"
    table = _table(f"{name}: {which}", "head")
    for head in shown:
        table.add_row(f"{head.layer}.{head.head}", *_cells(head), _number(head.logits))
    console.print(table)
    if hidden:
        console.say(f"{counted(hidden, 'more head')}; --all shows all.")
    layers = [(layer.layer, layer.hidden) for layer in found.layers if layer.hidden is not None]
    if layers:
        table = _table(f"{name}: hidden states that enter each layer", "layer", logits=False)
        for number, states in layers:
            table.add_row(str(number), *_cells(states))
        console.print(table)
    _print_meanings(console, found)
    console.explain(
        "proxy: smallest s with ln E exp(t p) <= s t^2/2 along the worst direction found, over "
        "the tilts that the sample knows (1: Gaussian); kurt.: excess kurtosis; tau: interval, of "
        "the tail exp(-c x^tau) that decides (2: Gaussian, 1: exponential, 13: cut off); "
        "furthest: token that reaches furthest; norms, logits: generalised-Pareto k-hat; in "
        "brackets half the width of 95% intervals, last digits. All but norms and logits are "
        "judged on passages that had no part in choosing the direction.",
    )


def _table(title: str, first: str, logits: bool = True) -> PlainTable:
    table = PlainTable(title, least=("furthest", "norms", "logits", "kurt."))
    names = [first, "proxy", "kurt.", "tau", "type", "furthest", "norms"]
    for name in [*names, "logits"] if logits else names:
        words = name in ("type", "furthest")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table


def _cells(cloud: JudgedTokens) -> list[str]:
    low, high = cloud.decided_by.tau_interval
    token = cloud.tokens_in_tail[0].token
    return [
        _number(cloud.proxy),
        _number(cloud.kurtosis, 0),
        f"{low:.2f}-{high:.2f}",
        LETTERS[cloud.verdict],
        (token.strip() or repr(token))[:TOKEN],
        _number(cloud.norms),
    ]


def _number(found: Estimate | VarianceProxy, decimals: int = 2) -> str:
    """A number with half the width of its interval, in units of the last digit."""
    low, high = found.interval
    if found.value is None or low is None or high is None:
        return "-"
    return f"{found.value:.{decimals}f}({max(1, round(10**decimals * (high - low) / 2))})"


def _print_meanings(console: PlainConsole, found: Tails) -> None:
    """The verdicts that occur, how often, and what they mean."""
    table = PlainTable("Verdicts", least=("with delimiters",))
    table.add_column("type", no_wrap=True)
    table.add_column("heads", justify="right")
    table.add_column("with delimiters", justify="right")
    table.add_column("what it means")
    others = [h.with_delimiters for h in found.heads if h.with_delimiters is not None]
    judged: list[Any] = [*found.heads, *others]
    for verdict, meaning in {cloud.verdict: cloud.meaning for cloud in judged}.items():
        own = sum(head.verdict == verdict for head in found.heads)
        count = str(sum(o.verdict == verdict for o in others)) if others else "-"
        table.add_row(f"{LETTERS[verdict]}: {verdict}", str(own), count, meaning)
    console.print(table)
