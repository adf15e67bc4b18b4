"""The ledger in a terminal and on a page: every claim with its figure, checks, weakest point."""

from __future__ import annotations

import xarray as xr

from esscher.core.variables import var
from esscher.runs.result import Result
from esscher.show.content import Part
from esscher.show.table_view import TableView
from esscher.studies.paper.study import (
    NAMES,
    SYNTHETIC,
    HeadExponents,
    PaperData,
    PaperSettings,
    PaperStudy,
)

TITLE = "The paper, claim by claim"
#: Verdicts, and what is said of one claim and of several.
VERDICTS = {
    "holds": ("holds", "hold"),
    "contradicted": ("is contradicted", "are contradicted"),
    "undecided": ("is undecided", "are undecided"),
}
PAPER_BOUND = var("", "bound on β", "d3", name="paper_bound", help="1/(2(1+32Ψ))")


def heads(result: Result[PaperSettings]) -> xr.Dataset:
    """Return the heads of the encoder with the bound of the paper."""
    return result.data.assign(paper_bound=0.5 / (1 + 32 * result.data["psi"]))


TABLES = (
    TableView(
        "ledger",
        "The ledger",
        ("claim",),
        (
            *(PaperData.says, PaperData.verdict, PaperData.measured),
            *(PaperData.weakest, PaperData.decide),
        ),
        most=len(NAMES),
    ),
    TableView(
        "checks",
        "Checks",
        ("check",),
        (
            *(PaperData.check_claim, PaperData.check_says, PaperData.check_verdict),
            *(PaperData.check_measured, PaperData.check_rule, PaperData.counts),
        ),
        most=0,
        page=False,
    ),
    TableView(
        "heads",
        "All heads",
        ("layer", "head"),
        (
            *(HeadExponents.psi, HeadExponents.psi_one_sided, PAPER_BOUND),
            *(HeadExponents.fits.exponent, HeadExponents.fits.trusted),
        ),
        heads,
        sort="psi",
        caption="Exponents with 95% intervals.",
        most=0,
    ),
)


def subject(result: Result[PaperSettings]) -> str:
    """Return what was measured, in a line."""
    settings = result.setup.settings
    models = f", {settings.encoder} and {settings.decoder} on {settings.text}"
    synthetic = set(settings.claims) <= set(SYNTHETIC)
    return (
        f"Token Sample Complexity of Attention (arXiv 2512.10656), scale {settings.scale}"
        f"{'' if synthetic else models}"
    )


def headline(result: Result[PaperSettings]) -> str:
    """Count the verdicts, and name the claims."""
    verdicts, parts = PaperData(result.data).verdict, []
    for verdict, (single, several) in VERDICTS.items():
        names = verdicts["claim"].values[verdicts.values == verdict].tolist()
        if names:
            verb = single if len(names) == 1 else several
            parts.append(f"{len(names)} {verb} ({', '.join(names)})")
    return f"Of {len(result.setup.settings.claims)} claims {'; '.join(parts)}."


def notes(result: Result[PaperSettings]) -> list[str]:
    """Return what would decide the claims that are undecided, and where the rules are."""
    decide = PaperData(result.data).decide
    said = [
        f"To decide {claim}: {text}"
        for claim, text in zip(decide["claim"].values, decide.values, strict=True)
        if text
    ]
    return [
        *said,
        "Each verdict comes from a stated rule: the report has the rules, the figures, the weakest "
        "point of every claim, and the command that redoes it alone.",
    ]


def parts(result: Result[PaperSettings], run: str) -> list[Part]:
    """Return the ledger, and a section for each claim; the table of heads follows the heads."""
    from esscher.studies.paper.charts import DRAWINGS

    data, tables = PaperData(result.data), {table.name: table for table in result.views}
    frame = tables["checks"].frame(result)
    drawings = {drawing.name: drawing for drawing in DRAWINGS}
    sections = [tables["ledger"].content(result, run)]
    settings = result.setup.settings
    models = [m for m in (settings.encoder, settings.decoder) if not m.startswith("demo:")]
    options = {
        "scale": settings.scale,
        "model": models[0] if models else None,
        "text": settings.text,
        "seed": settings.seed,
    }
    changed = "".join(
        f" --{name} {value}"
        for name, value in options.items()
        if value != getattr(PaperStudy, name)
    )
    for claim in data.dataset["claim"].values.tolist():
        entry = PaperData(data.dataset.sel(claim=claim))
        checks = [
            (
                "Check" if check["counts"] else "Beside it",
                f"{check['check_says'][0].upper()}{check['check_says'][1:].rstrip('.')}: "
                f"{check['check_verdict']}. Measured: {check['check_measured'].rstrip('.')}. Rule: "
                f"{check['check_rule'].rstrip('.')}.",
            )
            for check in frame[frame["check_claim"] == claim].to_dict("records")
        ]
        decide = [("To decide", str(entry.decide.values))] if entry.decide.values else []
        sections.append(
            Part(
                f"{drawings[claim].about}: {entry.verdict.values}",
                chart=drawings[claim].draw(result),
                lead=[
                    ("The paper", str(entry.says.values)),
                    ("Measured", str(entry.measured.values)),
                ],
                paragraphs=[
                    ("Weakest point", str(entry.weakest.values)),
                    *decide,
                    ("Redo", f"esscher paper {claim}{changed}"),
                    *checks,
                ],
            )
        )
        if claim == "heads":
            sections.append(tables["heads"].content(result, run))
    return sections
