"""The result in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from esscher.core.codec import Estimate
from esscher.core.shown import counted
from esscher.math.tails.candidates import VarianceProxy
from esscher.math.tails.verdict import KINDS, LETTERS, SUBSTANTIAL
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.tails.result import (
    DELIMITED,
    KEYS,
    JudgedCloud,
    JudgedTokens,
    Tails,
)

#: Heads that the table shows unless all are asked for.
SHOWN = 15
#: Characters of a token that are shown.
TOKEN = 9


def print_result(found: Tails, console: PlainConsole, everything: bool = False) -> None:
    """Print the worst heads, the layers' own tokens and what the halves say."""
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
    _print_halves(console, found)
    console.explain(
        "proxy: smallest s with ln E exp(t p) <= s t^2/2 along the worst direction found, over "
        "the tilts that the sample knows (1: Gaussian); kurt.: excess kurtosis; tau: interval, of "
        "the tail exp(-c x^tau) that decides (2: Gaussian, 1: exponential, 13: cut off); halves: "
        "what each half of the text says (S sub-Gaussian, E exponential moments, H heavier than "
        "Gaussian, N no exponential moments, ? undecided); furthest: token that reaches furthest; "
        "norms, logits: generalised-Pareto k-hat; in brackets half the width of 95% intervals, "
        "last digits. All but norms and logits are judged on passages that had no part in choosing "
        "the direction.",
    )


def _table(title: str, first: str, logits: bool = True) -> PlainTable:
    table = PlainTable(title, least=("furthest", "norms", "logits", "kurt."))
    names = [first, "proxy", "kurt.", "tau", "halves", "furthest", "norms"]
    for name in [*names, "logits"] if logits else names:
        words = name in ("halves", "furthest")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table


def _cells(cloud: JudgedTokens) -> list[str]:
    low, high = cloud.decided_by.tau_interval
    token = cloud.tokens_in_tail[0].token
    return [
        _number(cloud.proxy),
        _number(cloud.kurtosis, 0),
        f"{low:.2f}-{high:.2f}",
        " ".join(LETTERS[said] for said in cloud.halves),
        (token.strip() or repr(token))[:TOKEN],
        _number(cloud.norms),
    ]


def _number(found: Estimate | VarianceProxy, decimals: int = 2) -> str:
    """A number with half the width of its interval, in units of the last digit."""
    low, high = found.interval
    if found.value is None or low is None or high is None:
        return "-"
    return f"{found.value:.{decimals}f}({max(1, round(10**decimals * (high - low) / 2))})"


def _print_halves(console: PlainConsole, found: Tails) -> None:
    """What each half of the text says, what both say, and how far they agree beyond chance."""
    table = PlainTable(f"What two halves of the text say: {' / '.join(KINDS)}")
    table.add_column("", no_wrap=True)
    for name in ("one half", "the other", "both", "kappa"):
        table.add_column(name, justify="right", no_wrap=True)
    for what, said in found.agreement.items():
        counts = ["/".join(map(str, part)) for part in (said.first, said.second, said.both)]
        table.add_row(what, *counts, _number(said.kappa))
    console.print(table)
    for what, said in found.agreement.items():
        if said.reproducible:
            verdicts = {c.verdict: c.meaning for c in _judged(found, what)}
            for verdict, meaning in verdicts.items():
                console.say(f"{what}, {verdict}: {meaning}.")
    if not found.reproducible:
        console.say(
            "No single head is judged: that takes a kappa whose interval is above "
            f"{SUBSTANTIAL:g}. What both halves say is counted over all heads."
        )


def _judged(found: Tails, what: str) -> Iterator[JudgedCloud]:
    """The clouds of one set."""
    own: list[JudgedTokens] = (
        list(found.heads)
        if what.startswith(KEYS)
        else [layer.hidden for layer in found.layers if layer.hidden is not None]
    )
    for cloud in own:
        if not what.endswith(DELIMITED):
            yield cloud
        elif cloud.with_delimiters is not None:
            yield cloud.with_delimiters
