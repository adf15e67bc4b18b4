"""The result in a terminal, and on a page of a report."""

from __future__ import annotations

from esscher.core.codec import Estimate
from esscher.core.shown import shown, with_error
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.domains.result import (
    BY_NAME,
    DIFFERENCE,
    DIFFERS,
    FACTOR,
    SAME,
    UNDECIDED,
    Domains,
)

#: What verdicts mean, below tables.
VERDICTS = (
    f"{DIFFERS}: permutation test of the blocks, adjusted over the heads; {SAME}: all 95% "
    f"intervals within a factor of {FACTOR:g}, or a difference of {DIFFERENCE:g}; {UNDECIDED}: "
    "neither"
)


def print_result(result: Domains, console: PlainConsole) -> None:
    """Print one row per statistic: medians by corpus, the typical effect, heads by verdict."""
    if not result.blocks:
        return
    study = result.study
    corpora = [corpus.name for corpus in result.corpora]
    effect = "effect" if len(corpora) == 2 else "largest effect"
    table = PlainTable(
        f"{study.model_record.name}, {study.mode} mode, {result.blocks} blocks of "
        f"{study.block_tokens:,} tokens: medians over heads, and heads by verdict",
        least=(*corpora[:1:-1], *corpora[1::-1]),
    )
    table.add_column("", no_wrap=True)
    for heading in (*corpora, effect, "differ", "same", "undecided"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, test in result.tests.items():
        pair = result.widest(name)
        sign = "×" if BY_NAME[name].logarithmic else "+"
        counts = [test.count(verdict) for verdict in (DIFFERS, SAME, UNDECIDED)]
        table.add_row(
            BY_NAME[name].short,
            *(_number(corpus.median[name]) for corpus in result.corpora),
            "" if pair.typical.value is None else f"{sign} {_number(pair.typical)}",
            *map(str, counts),
        )
    console.print(table)
    first, second = (corpora[1], corpora[0]) if len(corpora) == 2 else ("one corpus", "another")
    console.explain(
        f"effect: of the median head, {first} over {second} (× ratio) or minus it (+). In "
        f"brackets: half of the 95% interval over blocks, in last digits. {VERDICTS}."
    )


def _number(number: Estimate) -> str:
    """A number with half its interval in brackets, in units of the last digit."""
    value, (low, high) = number.value, number.interval
    if value is None or low is None or high is None:
        return ""
    return with_error(value, (high - low) / 2, 0 if value >= 100 else 1 if value >= 10 else 2)


def summary(result: Domains, name: str) -> Summary:
    """Return the page's cards and tables; ``name`` is that of the run."""
    study = result.study
    subject = (
        f"{study.model_record.name} on {len(study.corpora)} corpora, {study.blocks} blocks of "
        f"{study.block_tokens:,} tokens each, {study.mode}"
    )
    title = "Heads on several corpora"
    if not result.blocks:
        return Summary(title, subject, [], [])
    test, pair = result.tests["tokens"], result.widest("tokens")
    cards = [
        Card(
            f"{test.count(DIFFERS)} of {len(result.units)}",
            "heads need another number of tokens",
            f"false discovery rate {study.fdr:.0%}",
        ),
        Card(
            f"{test.count(UNDECIDED)} of {len(result.units)}",
            "heads are undecided",
            f"{test.count(SAME)} are the same within a factor of {FACTOR:g}",
        ),
    ]
    low, high = pair.typical.interval
    if pair.typical.value is not None and low is not None:
        cards.append(
            Card(
                f"{shown(pair.typical.value, 'd2')}×",
                f"tokens on {pair.b} over those on {pair.a}",
                f"typical head; 95% interval {shown(low, 'd2')} to {shown(high, 'd2')}",
            )
        )
    medians = result.medians()
    heads = result.table()
    for frame in (medians, heads):
        frame["statistic"] = [BY_NAME[key].title for key in frame["statistic"]]
    heads_table = Table(
        title="All heads",
        name=f"{name}-heads",
        columns=[
            Column("statistic", "statistic"),
            Column("layer", "layer", "n0"),
            Column("head", "head", "n0"),
            Column("verdict", "verdict"),
            Column("adjusted_p", "adjusted p", "s2"),
            Column("p", "p", "s2", shown=False),
            Column(
                "share", "share", "p0", help="of the variance over blocks that is between corpora"
            ),
            Column("a", "corpus"),
            Column("b", "against"),
            Column("effect", "effect", "s3", "low", "high", help="ratio or difference, b to a"),
        ],
        data=data_of(heads),
        caption=f"{VERDICTS}. Effects have 95% intervals over blocks.",
    )
    medians_table = Table(
        title="Corpora",
        name=f"{name}-corpora",
        columns=[
            Column("statistic", "statistic"),
            Column("corpus", "corpus"),
            Column("median", "median over heads", "s3", "low", "high"),
        ],
        data=data_of(medians),
        caption="With 95% intervals over blocks.",
    )
    return Summary(title, subject, cards, [medians_table, heads_table])
