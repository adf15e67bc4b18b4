"""The result on a page of a report: the numbers that matter, and a table of all heads."""

from __future__ import annotations

from esscher.core.codec import Estimate
from esscher.core.shown import counted, shown, visible, with_error
from esscher.math.tails.candidates import VarianceProxy
from esscher.math.tails.verdict import KINDS, LETTERS, MEANINGS, SUBSTANTIAL, evidence
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.tails.study import (
    KEYS,
    Tails,
    TokenCloud,
)


def summary(result: Tails, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    study = result.study
    subject = f"{study.model_record.name} on {study.text_record.source}, {study.tokens:,} tokens"
    return Summary("Tails of the keys", subject, _cards(result), [_head_table(result, name)])


def _cards(result: Tails) -> list[Card]:
    frame = result.table()
    low, middle, high = (float(frame["proxy"].quantile(q)) for q in (0.1, 0.5, 0.9))
    proxy = Card(
        shown(middle, "d2"),
        "variance proxy / variance",
        f"median head; 10% and 90% of the heads: {low:.2f} and {high:.2f}",
    )
    keys = result.agreement[KEYS]
    light, heavy, _ = keys.both
    enough = "enough" if keys.reproducible else f"too low ({SUBSTANTIAL:g} is needed)"
    kappa = keys.kappa.value
    low_end, high_end = keys.kappa.interval
    sure = (
        "all heads are called the same"
        if low_end is None or high_end is None
        else (f"95% interval {low_end:.2f} to {high_end:.2f}")
    )
    return [
        Card(
            f"{light} of {keys.clouds}",
            "heads are sub-Gaussian in both halves of the text",
            f"in the worst direction found; in one half {keys.first[0]}, in the other "
            f"{keys.second[0]}",
        ),
        Card(
            f"{heavy} of {keys.clouds}",
            "heads have heavier tails in both halves",
            f"in one half {keys.first[1]}, in the other {keys.second[1]}",
        ),
        Card(
            f"{keys.clouds - light - heavy} of {keys.clouds}",
            "heads are undecided",
            "the halves differ, or cannot tell",
        ),
        Card(
            "–" if kappa is None else shown(kappa, "d2"),
            "agreement of the halves, kappa",
            f"{sure}; {enough} for verdicts on single heads",
        ),
        proxy,
    ]


def _head_table(result: Tails, name: str) -> Table:
    frame = result.table()
    frame["tokens_in_tail"] = [
        ", ".join(f"{visible(t.token)!r} {t.projection:+.1f}" for t in h.tokens_in_tail)
        for h in result.heads
    ]
    frame["evidence"] = [evidence(h.decided_by) for h in result.heads]
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        *([Column("verdict", "verdict")] if result.reproducible else []),
        Column(
            "proxy",
            "proxy / variance",
            "d2",
            "proxy_low",
            "proxy_high",
            help="sub-Gaussian variance proxy of the worst direction, over its variance",
        ),
        Column("kurtosis", "excess kurtosis", "s3", "kurtosis_low", "kurtosis_high"),
        Column(
            "tau",
            "tail power τ",
            "d2",
            "tau_low",
            "tau_high",
            help="of exp(-c x^τ) beyond the deciding threshold: 2 is Gaussian",
        ),
        Column("beyond", "threshold", "d1", help="in standard deviations"),
        Column("norms_k", "k-hat of norms", "d2", "norms_k_low", "norms_k_high"),
        Column("logits_k", "k-hat of logits", "d2", "logits_k_low", "logits_k_high"),
        Column("largest", "largest", "d1", help="largest projection, in standard deviations"),
        Column(
            "agreement",
            "directions",
            "d2",
            help="cosine between the worst directions of the two halves",
        ),
        Column("tokens_in_tail", "tokens in the tail"),
        Column("first_half", "first half", help="what one half of the text says", shown=False),
        Column("second_half", "second half", help="what the other half says", shown=False),
        Column("evidence", "evidence", shown=False),
    ]
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data_of(frame),
        caption="Brackets are 95% intervals. Tokens in the tail are given with their projection in "
        "standard deviations. Single heads get a verdict only if both halves of the text agree "
        "enough; what each half says is in the CSV file.",
        sort=("kurtosis", True),
    )


# The result in a terminal.

#: Heads that the table shows unless all are asked for.
SHOWN = 15
#: Characters of a token that are shown.
TOKEN = 9


def print_result(result: Tails, console: PlainConsole, everything: bool = False) -> None:
    """Print the worst heads, the layers' own tokens and what the halves say."""
    if not result.heads:
        return
    name = result.study.model_record.name
    order = sorted(result.heads, key=lambda head: -head.proxy.value)
    shown = order if everything else order[:SHOWN]
    hidden = len(order) - len(shown)
    which = f"the {len(shown)} heads of largest proxy" if hidden else "keys of all heads"
    table = _table(f"{name}: {which}", "head")
    for head in shown:
        table.add_row(f"{head.layer}.{head.head}", *_cells(head), _number(head.logits))
    console.print(table)
    if hidden:
        console.say(f"{counted(hidden, 'more head')}; --all shows all.")
    layers = [(layer.layer, layer.hidden) for layer in result.layers if layer.hidden is not None]
    if layers:
        table = _table(f"{name}: hidden states that enter each layer", "layer", logits=False)
        for number, states in layers:
            table.add_row(str(number), *_cells(states))
        console.print(table)
    table = PlainTable(f"What two halves of the text say: {' / '.join(KINDS)}")
    table.add_column("", no_wrap=True)
    for column in ("one half", "the other", "both", "kappa"):
        table.add_column(column, justify="right", no_wrap=True)
    for clouds, halves in result.agreement.items():
        counts = ["/".join(map(str, part)) for part in (halves.first, halves.second, halves.both)]
        table.add_row(clouds, *counts, _number(halves.kappa))
    console.print(table)
    for clouds, halves in result.agreement.items():
        if halves.reproducible:
            for verdict in dict.fromkeys(cloud.verdict for cloud in result.clouds[clouds]):
                console.say(f"{clouds}, {verdict}: {MEANINGS[verdict]}.")
    if not result.reproducible:
        console.say(
            "No single head is judged: that takes a kappa whose interval is above "
            f"{SUBSTANTIAL:g}. What both halves say is counted over all heads."
        )
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


def _cells(cloud: TokenCloud) -> list[str]:
    low, high = cloud.decided_by.tau_interval
    token = cloud.tokens_in_tail[0].token
    return [
        _number(cloud.proxy),
        _number(cloud.kurtosis, 0),
        f"{low:.2f}-{high:.2f}",
        " ".join(LETTERS[verdict] for verdict in cloud.halves),
        (token.strip() or repr(token))[:TOKEN],
        _number(cloud.norms),
    ]


def _number(number: Estimate | VarianceProxy, decimals: int = 2) -> str:
    """A number with half the width of its interval, in units of the last digit."""
    low, high = number.interval
    if number.value is None or low is None or high is None:
        return "-"
    return with_error(number.value, (high - low) / 2, decimals)
