"""Several runs on one page: what each says, and those that can be compared in one chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from esscher.runs.page import name_of
from esscher.runs.registry import has_part, part_of
from esscher.runs.result import Result
from esscher.show.content import Column, Compared, Page, Part, Table
from esscher.show.numbers import counted


def side_by_side(found: Sequence[Result[Any]], pages: Sequence[Page]) -> Page:
    """Return the page before all others.

    A study whose results can be compared has a module ``side_by_side``, with a function of the
    same name that takes its results by their names.

    Parameters
    ----------
    found
        At least two results.
    pages
        Their pages, in the same order.
    """
    kinds = Counter(page.kind for page in pages)
    listed = ", ".join(f"{n} × {kind[:1].lower()}{kind[1:]}" for kind, n in kinds.most_common())
    said = [f"This report holds {counted(len(found), 'run')}: {listed}."]
    parts: list[Part] = [_overview(pages)]
    for kind in dict.fromkeys(one.study.name for one in found):
        alike = [one for one in found if one.study.name == kind]
        if len(alike) > 1 and has_part(kind, "side_by_side"):
            compared: Compared = part_of(kind, "side_by_side").side_by_side(_labelled(alike))
            said += compared.sentences
            parts += compared.parts
    return Page(
        title="Side by side",
        kind=counted(len(found), "run"),
        subject="",
        answer=" ".join(said),
        complete=True,
        cards=[],
        parts=parts,
    )


def _labelled(found: Sequence[Result[Any]]) -> dict[str, Result[Any]]:
    """Results by their names, with a number where two have the same."""
    count = Counter(name_of(one) for one in found)
    return {
        name_of(one) if count[name_of(one)] == 1 else f"{name_of(one)} ({i})": one
        for i, one in enumerate(found, start=1)
    }


def _overview(pages: Sequence[Page]) -> Table:
    columns = ("run", "kind", "of", "state", "answer")
    rows = [
        (page.title, page.kind, page.subject, "complete" if page.complete else "not complete",
         page.answer)
        for page in pages
    ]  # fmt: skip
    return Table(
        title="Runs",
        name="runs",
        columns=[Column(name, name) for name in columns],
        data={name: [row[i] for row in rows] for i, name in enumerate(columns)},
    )
