"""The ledger in a terminal and on a page: every claim with its figure, checks, weakest point."""

from __future__ import annotations

from esscher.show.content import Card, Column, Drawn, Part, Summary, Table
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.paper.claims import CLAIMS
from esscher.studies.paper.ledger import Entry
from esscher.studies.paper.study import Paper


def print_result(ledger: Paper, console: PlainConsole) -> None:
    """Print a line per claim, and what would decide those that are undecided."""
    if not ledger.entries:
        return
    table = PlainTable(f"Token Sample Complexity of Attention, {ledger.study.subject}")
    table.add_column("claim", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("measured")
    for entry in ledger.entries:
        decide = f" To decide: {entry.decide}" if entry.decide else ""
        table.add_row(entry.claim, entry.verdict, entry.measured + decide)
    console.print(table)
    console.explain(
        "Each verdict comes from a stated rule: the report has the rules, the figures, the weakest "
        "point of every claim, and the command that redoes it alone."
    )


def summary(ledger: Paper, name: str) -> Summary:
    """Say which claims hold, and show the evidence claim by claim."""
    study = ledger.study
    setting = study.setting
    counts = {
        verdict: sum(entry.verdict == verdict for entry in ledger.entries)
        for verdict in ("holds", "contradicted", "undecided")
    }
    cards = [
        Card(str(counts["holds"]), "claims hold"),
        Card(str(counts["contradicted"]), "are contradicted"),
        Card(str(counts["undecided"]), "are undecided"),
    ]
    table = Table(
        "The ledger",
        f"{name}-ledger",
        [
            Column("claim", "claim"),
            Column("says", "what the paper says"),
            Column("verdict", "verdict"),
            Column("measured", "measured"),
            Column("weakest", "weakest point", shown=False),
        ],
        {
            "claim": [entry.claim for entry in ledger.entries],
            "says": [CLAIMS[entry.claim].says for entry in ledger.entries],
            "verdict": [entry.verdict for entry in ledger.entries],
            "measured": [entry.measured for entry in ledger.entries],
            "weakest": [entry.weakest for entry in ledger.entries],
        },
    )
    parts: list[Part] = [table]
    for entry in ledger.entries:
        parts.append(_section(entry, study.command_words()))
        if entry.claim == "heads":
            parts.append(_heads(entry, name))
    subject = (
        f"Token Sample Complexity of Attention (arXiv 2512.10656), {study.subject}, "
        f"{setting.encoder} and {setting.decoder} on {setting.text}"
    )
    return Summary("The paper, claim by claim", subject, cards, [], parts=parts)


def _heads(entry: Entry, name: str) -> Table:
    """One row per head: H, Psi and the paper's exponents in both conventions, those measured."""
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        Column("H", "H", "s3"),
        Column("psi", "Ψ = H²", "s3"),
        Column("psi_one_sided", "Ψ, one-sided", "s3"),
        Column("bound", "bound on β", "d3", help="1/(2(1+32Ψ))"),
        Column("mean", "β of the mean", "d3", "mean_low", "mean_high"),
        Column("cov", "β of the covariance", "d3", "cov_low", "cov_high"),
        Column("map", "β of the map", "d3", "map_low", "map_high", shown=False),
        Column("reference", "1/(2(1+Ψ))", "d3", shown=False),
        Column("bound_one_sided", "bound, one-sided Ψ", "d3", shown=False),
        Column("reference_one_sided", "1/(2(1+Ψ)), one-sided", "d3", shown=False),
        Column("H_unscaled", "H of the authors' scripts", "s3", shown=False),
    ]
    keys = {key for column in columns for key in (column.key, column.low, column.high) if key}
    data = {key: entry.tables["heads"][key] for key in keys}
    caption = "Exponents with 95% intervals; the CSV file has the other convention and the map."
    return Table("All heads", f"{name}-heads", columns, data, caption, ("psi", True))


def _section(entry: Entry, words: list[str]) -> Drawn:
    """A claim: what the paper says, the figure, what was measured, the checks, the command."""
    claim = CLAIMS[entry.claim]
    options = [word for word in words[1:] if word not in CLAIMS]
    checks = [
        (
            "Check" if check.counts else "Beside it",
            f"{check.says[0].upper()}{check.says[1:].rstrip('.')}: {check.verdict}. "
            f"Found: {check.measured.rstrip('.')}. Rule: {check.rule.rstrip('.')}.",
        )
        for check in entry.checks
    ]
    return Drawn(
        f"{claim.title}: {entry.verdict}",
        claim.draw(entry),
        lead=[("The paper", claim.says), ("Measured", entry.measured)],
        paragraphs=[
            ("Weakest point", entry.weakest),
            *([("To decide", entry.decide)] if entry.decide else []),
            ("Redo", " ".join(["esscher paper", entry.claim, *options])),
            *checks,
        ],
    )
