"""The result in a terminal, and on a page of a report."""

from __future__ import annotations

from esscher.core.shown import shown, with_error
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.domains.result import STATISTICS, Domains

#: What the verdicts mean, below tables.
RULE = (
    "differ: permutation test of the blocks, exact if blocks of one corpus are exchangeable, "
    "adjusted over the heads; all other heads are undecided"
)


def print_result(result: Domains, console: PlainConsole) -> None:
    """Print one row per statistic: medians by corpus, and heads by verdict."""
    if not result.blocks:
        return
    study = result.study
    names = [corpus.name for corpus in result.corpora]
    table = PlainTable(
        f"{study.model_record.name}, {study.mode} mode, {result.blocks} blocks of "
        f"{study.block_tokens:,} tokens: medians over heads, and heads by verdict",
        least=(*names[:1:-1], *names[1::-1]),
    )
    table.add_column("", no_wrap=True)
    for heading in (*names, "differ", "undecided"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, test in result.tests.items():
        cells = [STATISTICS[name].short]
        for corpus in result.corpora:
            value, (low, high) = corpus.median[name].value, corpus.median[name].interval
            if value is None or low is None or high is None:
                cells.append("")
            else:
                decimals = 0 if value >= 100 else 1 if value >= 10 else 2
                cells.append(with_error(value, (high - low) / 2, decimals))
        differ = sum(test.differs)
        table.add_row(*cells, str(differ), str(len(test.differs) - differ))
    console.print(table)
    console.explain(f"In brackets: half of the 95% interval over blocks, in last digits. {RULE}.")


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
    heads, differ = len(result.units), sum(result.tests["tokens"].differs)
    cards = [
        Card(
            f"{differ} of {heads}",
            "heads need another number of tokens",
            f"false discovery rate {study.fdr:.0%}",
        ),
        Card(f"{heads - differ} of {heads}", "heads are undecided"),
    ]
    for corpus in result.corpora:
        median = corpus.median["tokens"]
        low, high = (shown(end, "n3") for end in median.interval)
        cards.append(
            Card(
                shown(median.value, "n3"),
                f"tokens for 10% output error on {corpus.name}",
                f"median head; 95% interval {low} to {high}",
            )
        )
    frame = result.table()
    frame["statistic"] = [STATISTICS[key].title for key in frame["statistic"]]
    table = Table(
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
        data=data_of(frame),
        caption=f"{RULE[0].upper()}{RULE[1:]}. Effects have 95% intervals over blocks.",
    )
    return Summary(title, subject, cards, [table])
