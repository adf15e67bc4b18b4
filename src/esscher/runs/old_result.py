"""Results of studies: typed, with tables that show themselves."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    get_type_hints,
)

import msgspec

from esscher.core.atomic import write_output
from esscher.core.codec import Count, Name, Record, as_json, as_record, as_tree
from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import LARGE, read_json
from esscher.runs.folder import RESULTS
from esscher.show.content import Plot, draw, offered

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from esscher.runs.folder import Cell, CellRun
    from esscher.runs.old_study import Study

S = TypeVar("S", bound="Study[Any]")

#: Metadata of a field that is no part of the stored result.
NOT_STORED = {"stored": False}


class Header(Record, frozen=True, kw_only=True):
    """What the file of every result begins with."""

    kind: Name
    complete: bool
    cells: Count
    configuration: dict[str, Any]
    versions: dict[str, str | None]
    created: Name
    headline: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result(ABC, Generic[S]):
    """The result of a study.

    Attributes
    ----------
    study
        The study that it answers, with nothing left open.
    complete
        Whether everything that was asked for is there.
    cells
        How many cells it was made from.
    versions, created
        Software that measured, and when the run was begun.
    headline
        The answer in a few sentences.
    folder
        Directory of the run; gone already if none was given.
    """

    #: Whether fields that are not known are refused in files: people change such files by hand,
    #: and a field that does nothing would be taken for an option.
    closed: ClassVar[bool] = False

    study: S
    complete: bool
    cells: int
    versions: dict[str, str | None]
    created: str
    headline: str
    folder: Path | None = None

    @abstractmethod
    def table(self) -> pd.DataFrame:
        """Return a data frame of the main results."""

    def shown(self) -> list[pd.DataFrame]:
        """Return the tables that stand for the results where they are printed."""
        return [self.table()]

    def answer(self) -> str:
        """Return the first sentences that a terminal shows."""
        return self.headline

    def with_cells(self, cells: Mapping[str, Cell], run: CellRun) -> Self:
        """Return the stored result with what only its cells hold; by default that is nothing."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings: what ``--json`` prints."""
        header: dict[str, Any] = {
            "kind": self.study.name,
            "complete": self.complete,
            "cells": self.cells,
            "configuration": self.study.configuration(),
            "versions": self.versions,
            "created": self.created,
            "headline": self.headline,
        }
        body = {name: getattr(self, name) for name in body_type(type(self)).__struct_fields__}
        return header | dict(as_tree(body))

    def charts(self) -> dict[str, str]:
        """Return the names of the charts that this result offers, and what they show."""
        from esscher.runs.registry import part_of

        drawings = part_of(type(self.study), "charts").DRAWINGS
        return {drawing.name: drawing.about for drawing in offered(drawings, self)}

    def plot(
        self,
        kind: str | None = None,
        *,
        heads: Sequence[tuple[int, int]] | None = None,
        title: str | None = None,
    ) -> Plot:
        """Draw a chart, which notebooks show and its ``save`` writes.

        Parameters
        ----------
        kind
            Name of the chart, see :meth:`charts`; the main one if left out.
        heads
            (layer, head) of the heads to draw, for charts of single heads.
        title
            Above everything; None: what was measured; empty: none.

        Raises
        ------
        InputError
            If there is no such chart, or this result has not what it shows.
        """
        from esscher.runs.registry import part_of

        drawings = part_of(type(self.study), "charts").DRAWINGS
        return draw(drawings, self, kind, heads=heads, title=title)

    def save(self, path: str | Path) -> None:
        """Write everything into a JSON file, which :func:`esscher.load` reads."""
        write_output(Path(path), as_json(self.to_dict()))

    def report(self, path: str | Path | None = None, *, force: bool = False) -> Path:
        """Write one self-contained HTML page about it; see :func:`esscher.report`."""
        from esscher.runs.report import report

        return report(self, path, force=force)

    def __repr__(self) -> str:
        tables = [
            table.to_string(index=False, float_format="{:.3g}".format)
            for table in self.shown()
            if not table.empty
        ]
        return "\n".join([self.headline, *tables])

    def _repr_html_(self) -> str:
        tables = [
            table.to_html(index=False, float_format="{:.3g}".format)
            for table in self.shown()
            if not table.empty
        ]
        return f"<p>{html.escape(self.headline)}</p>{''.join(tables)}"

    @classmethod
    def of(
        cls,
        run: CellRun,
        study: S,
        cells: int,
        headline: str,
        complete: bool | None = None,
        **body: Any,
    ) -> Self:
        """Return the result of a run from what was put together.

        It is complete if all cells that the study names are there, unless ``complete`` is given.
        """
        return cls(
            study=study,
            complete=cells == len(study.cells()) if complete is None else complete,
            cells=cells,
            versions=run.about.versions,
            created=run.about.created,
            headline=headline,
            folder=run.folder,
            **body,
        )


@cache
def body_type(result: type[Result[Any]]) -> type[Any]:
    """Return the record of what a kind of result has besides the header.

    Fields marked with ``NOT_STORED`` are left out.
    """
    hints = get_type_hints(result, include_extras=True)
    common = {field.name for field in fields(Result)}
    body = [
        (f.name, hints[f.name])
        for f in fields(result)
        if f.name not in common and f.metadata != NOT_STORED
    ]
    return msgspec.defstruct(result.__name__, body, bases=(Record,), frozen=True, kw_only=True)


def result_from(tree: Any, study: Study[Any], place: str, folder: Path | None) -> Any:
    """Return the result that a JSON value stands for.

    Raises
    ------
    InputError
        Naming the field that does not fit.
    """
    header = as_record(tree, Header, place)
    kind: type[Result[Any]] = study.result
    body = as_record(tree, body_type(kind), place)
    known = {*Header.__struct_fields__, *body.__struct_fields__}
    if kind.closed and tree.keys() - known:
        unknown = shortened(min(tree.keys() - known))
        raise InputError(f"{place} is damaged: it has {unknown}, which is not known")
    try:
        return kind(
            study=study,
            complete=header.complete,
            cells=header.cells,
            versions=header.versions,
            created=header.created,
            headline=header.headline,
            folder=folder,
            **{name: getattr(body, name) for name in body.__struct_fields__},
        )
    except InputError as error:
        raise InputError(f"{place} is damaged: {error}") from error


def read_stored(run: CellRun) -> tuple[dict[str, Any], Header | None]:
    """Return the stored result of a run as plain numbers, and its header: None if there is none."""
    path = run.folder / RESULTS
    try:
        tree = read_json(path, LARGE)
    except FileNotFoundError:
        return {}, None
    return tree, as_record(tree, Header, str(path))


H = TypeVar("H")


class WithHeads(Generic[H]):
    """Part of a result that has an entry per head."""

    heads: tuple[H, ...]

    def head(self, layer: int, head: int) -> H:
        """Return one head.

        Raises
        ------
        InputError
            If it was not measured.
        """
        entries: tuple[Any, ...] = self.heads
        for entry in entries:
            if (entry.layer, entry.head) == (layer, head):
                return entry  # type: ignore[no-any-return]
        raise InputError(
            f"head {layer}.{head} was not measured; heads lists the {len(self.heads)} that were"
        )
