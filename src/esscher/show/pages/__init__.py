"""One file per kind of run turns its results into a page; this is the list of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from esscher.runs.registry import STUDIES, has_part, part_of
from esscher.runs.result import Result
from esscher.show.content import Card, Drawn, Page, Part, Summary
from esscher.show.drawing import offered
from esscher.show.provenance import command, configuration_text, provenance
from esscher.show.stored import StoredRun


class PageMaker(Protocol):
    """What the file of a kind of run has."""

    #: The kind in words.
    NAME: str

    def subject(self, run: StoredRun) -> str:
        """What was measured, in a line."""
        ...

    def answer(self, run: StoredRun) -> str:
        """The answer in plain language."""
        ...

    def cards(self, run: StoredRun) -> Sequence[Card]:
        """Numbers that matter."""
        ...

    def parts(self, run: StoredRun) -> Sequence[Part]:
        """Charts and tables, in their order."""
        ...

    def command_words(self, run: StoredRun) -> list[str] | None:
        """Words of the command after ``esscher``; None if no command does the same."""
        ...


#: Kinds of runs of which a module here, of the name before the dash, makes the page.
KINDS = ("probe", "plan", "context", "deep", "deep-stack", "sweep")


def study_page(run: StoredRun) -> Page:
    """The page of a study's result: its headline, its cards, its charts and its tables."""
    found: Result[Any] = run.found
    summary: Summary = part_of(run.kind, "page").summary(found, run.name)
    drawings = offered(part_of(run.kind, "charts").DRAWINGS, found)
    words = found.study.command_words()
    text, note = command(run, None if words is None else [*words, "--out", run.name])
    return Page(
        title=run.name,
        kind=summary.name,
        subject=summary.subject,
        answer=summary.answer or found.headline,
        complete=found.complete,
        cards=summary.cards,
        parts=[
            *(Drawn(d.heading, d.draw(found), d.caption) for d in drawings if d.heading),
            *summary.tables,
        ],
        provenance=provenance(run),
        command=text,
        command_note=note,
        configuration=configuration_text(run),
    )


def make_page(run: StoredRun) -> Page:
    """The page of one run."""
    if run.kind in STUDIES and has_part(run.kind, "page"):
        return study_page(run)
    maker = _maker(run.kind)
    text, note = command(run, maker.command_words(run))
    return Page(
        title=run.name,
        kind=maker.NAME,
        subject=maker.subject(run),
        answer=maker.answer(run),
        complete=run.complete,
        cards=maker.cards(run),
        parts=maker.parts(run),
        provenance=provenance(run),
        command=text,
        command_note=note,
        configuration=configuration_text(run),
    )


def make_pages(runs: Sequence[StoredRun]) -> list[Page]:
    """Pages of all runs, and before them one that compares them if there are several."""
    from esscher.show.pages.comparison import compare

    pages = [make_page(run) for run in runs]
    if len(runs) == 1:
        return pages
    return [compare(runs, pages), *pages]


def _maker(kind: str) -> PageMaker:
    return cast(PageMaker, import_module(f"esscher.show.pages.{kind.partition('-')[0]}"))
