"""Results of studies: one labelled dataset each, with tables and charts that show themselves."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from esscher.core.atomic import write_atomically, write_output
from esscher.core.codec import Name, Record, as_record
from esscher.core.dataset_file import SUFFIX, from_bytes, to_bytes
from esscher.core.errors import InputError
from esscher.core.untrusted import LARGE, read_file
from esscher.core.variables import as_json_tree, check, section_of
from esscher.show.content import Plot, draw, offered

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from esscher.runs.folder import Run
    from esscher.runs.study import Setup, Study
    from esscher.show.table_view import TableView

S = TypeVar("S", bound=Record)

#: Name of the file of a run's result.
RESULTS = f"results{SUFFIX}"
#: Rows of a table that stand for it where a result prints itself.
FEW = 20


class NotFinished(InputError):
    """A run whose cells do not amount to a result yet."""


@dataclass(frozen=True, eq=False, repr=False)
class Result(Generic[S]):
    """The result of a study.

    Attributes
    ----------
    study, setup
        Which study it answers; with which settings, on which model and text.
    data
        The numbers: a dataset with labelled axes, which has ``to_netcdf``, ``to_zarr`` and
        ``to_dataframe``. Settings, versions and origin are its attributes.
    folder
        Directory of the run; gone already if none was given.
    """

    study: type[Study[S]]
    setup: Setup[S]
    data: xr.Dataset
    folder: Path | None = None

    @property
    def cells(self) -> list[str]:
        """Names of the cells it was made from."""
        names: list[str] = json.loads(self.data.attrs["cells"])
        return names

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is there."""
        return bool(self.data.attrs["complete"])

    @property
    def created(self) -> str:
        """When the run was begun."""
        return str(self.data.attrs["created"])

    @property
    def versions(self) -> dict[str, str | None]:
        """Versions of the software that measured."""
        return dict(json.loads(self.data.attrs["versions"]))

    @cached_property
    def headline(self) -> str:
        """The answer in a few sentences."""
        return str(self.view.headline(self)) if self.cells else "Nothing has been measured yet."

    @property
    def subject(self) -> str:
        """Model and text, or law, in a line."""
        subject = getattr(self.view, "subject", None)
        if self.cells and subject is not None:
            return str(subject(self))
        return self.study.subject(self.setup)

    @property
    def view(self) -> Any:
        """The module that says how such results are shown."""
        from esscher.runs.registry import part_of

        return part_of(self.study, "view")

    @cached_property
    def views(self) -> list[TableView]:
        """The tables of such results: those whose rows and variables this one has."""
        sizes = self.data.sizes
        views = [view for view in self.view.TABLES if all(map(sizes.get, view.rows))]
        return [view for view in views if view.there(view.data(self))]

    @property
    def drawings(self) -> Sequence[Any]:
        """The charts of such results; none of one in which nothing is measured yet."""
        from esscher.runs.registry import part_of

        return getattr(part_of(self.study, "charts"), "DRAWINGS", ()) if self.cells else ()

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return one variable: ``result["exponent"].sel(metric="mean", bound="value")``."""
        if name not in self.data:
            names = ", ".join(map(str, self.data.data_vars))
            raise InputError(f"there is no variable {name!r}; there are: {names}")
        return self.data[name]

    def section(self, name: str) -> xr.Dataset:
        """Return a part of the data that has axes of its own: ``ledger.section("ball")``."""
        names = {str(key).partition(".")[0] for key in self.data.data_vars if "." in str(key)}
        if name not in names:
            there = ", ".join(sorted(names)) or "none"
            raise InputError(f"there is no section {name!r}; there are: {there}")
        return section_of(self.data, f"{name}.")

    def table(self, name: str | None = None) -> pd.DataFrame:
        """Return a data frame: the main table, or one of :meth:`tables` by its name."""
        import pandas as pd

        views = {view.name: view for view in self.views or self.view.TABLES}
        if name is not None and name not in views:
            raise InputError(f"there is no table {name!r}; choose from {', '.join(views)}")
        view = views[next(iter(views)) if name is None else name]
        return view.frame(self) if self.views else pd.DataFrame()

    def tables(self) -> dict[str, str]:
        """Return the names of the tables, and what they show."""
        return {view.name: view.title for view in self.views}

    def head(self, layer: int, head: int) -> HeadResult:
        """Return one head: its numbers, its curves, its chart.

        Raises
        ------
        InputError
            If it was not measured.
        """
        axes = [axis for axis in ("head", "key_head") if axis in self.data.coords]
        if "layer" not in self.data.coords or not axes:
            raise InputError(f"a result of {self.study.name()} has no heads")
        layers, heads = (self.data[axis].values.tolist() for axis in ("layer", axes[0]))
        if layer not in layers or head not in heads:
            raise InputError(
                f"head {layer}.{head} was not measured; there are layers "
                f"{', '.join(map(str, layers))} and heads {', '.join(map(str, heads))}"
            )
        return HeadResult(self, layer, head, self.data.sel({"layer": layer, axes[0]: head}))

    def compare(self, other: Result[S]) -> Comparison:
        """Set two results of one study side by side, with intervals of the differences.

        Raises
        ------
        InputError
            If the other is of another study, or has no row in common.
        """
        return compare(self, other)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings: what ``--json`` prints."""
        return {
            "kind": self.study.name(),
            "complete": self.complete,
            "cells": len(set(self.cells) - self.study.auxiliary),
            "configuration": self.setup.configuration(),
            "versions": self.versions,
            "created": self.created,
            "headline": self.headline,
        } | as_json_tree(self.data)

    def charts(self) -> dict[str, str]:
        """Return the names of the charts that this result offers, and what they show."""
        return {drawing.name: drawing.about for drawing in offered(self.drawings, self)}

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
        if not self.cells:
            raise NotFinished(f"there is no chart yet: {self.headline}")
        return draw(self.drawings, self, kind, heads=heads, title=title)

    def save(self, path: str | Path) -> None:
        """Write everything into one file, which :func:`esscher.load` reads."""
        write_output(Path(path), to_bytes(self.data))

    def report(self, path: str | Path | None = None) -> Path:
        """Write one self-contained HTML page about it; see :func:`esscher.report`."""
        from esscher.runs.report import report

        return report(self, path)

    def __repr__(self) -> str:
        if not self.views:
            return self.headline
        frame = self.views[0].shown(self)
        more = "" if len(frame) <= FEW else f"\n... {len(frame) - FEW:,} more rows"
        return f"{self.headline}\n{frame.head(FEW).to_string(index=False)}{more}"

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(self.headline)}</p>"]
        if self.views:
            frame = self.views[0].shown(self)
            parts.append(frame.head(FEW).to_html(index=False))
            if len(frame) > FEW:
                parts.append(f"<p>... {len(frame) - FEW:,} more rows: result.table()</p>")
            if offered(self.drawings, self):
                parts.append(self.plot()._repr_svg_())
        return "\n".join(parts)


@dataclass(frozen=True, eq=False, repr=False)
class HeadResult:
    """One head of a result.

    Attributes
    ----------
    result, layer, head
        Whose head it is, and which.
    data
        Its numbers: the dataset without the axes of layers and heads.
    """

    result: Result[Any]
    layer: int
    head: int
    data: xr.Dataset

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return one variable of the head."""
        return self.data[name]

    def numbers(self) -> dict[str, str]:
        """Return its numbers as the table of heads shows them, with their intervals."""
        rows = {"layer", "head"}, {"layer", "key_head"}
        view = next(view for view in self.result.views if set(view.rows) in rows)
        frame = view.shown(self.result)
        row = frame[(frame["layer"] == str(self.layer)) & (frame[view.rows[1]] == str(self.head))]
        return {str(name): str(row[name].iloc[0]) for name in frame.columns[2:] if len(row)}

    def curves(self) -> pd.DataFrame:
        """Return its curves as a data frame, one row per size.

        Raises
        ------
        InputError
            If such a study measures none.
        """
        curves = getattr(self.result.view, "CURVES", None)
        if curves is None:
            raise InputError(f"a result of {self.result.study.name()} has no curves of heads")
        frame: pd.DataFrame = curves.frame(self.result)
        axis: str = curves.rows[1]
        here = (frame["layer"] == self.layer) & (frame[axis] == self.head)
        rows: pd.DataFrame = frame[here].drop(columns=["layer", axis])
        return rows.reset_index(drop=True)

    def plot(self) -> Plot:
        """Draw its curves.

        Raises
        ------
        InputError
            If such a study has no chart of single heads.
        """
        drawings = [d for d in offered(self.result.drawings, self.result) if d.heads]
        if not drawings:
            name = self.result.study.name()
            raise InputError(f"a result of {name} has no chart of single heads")
        drawing = min(drawings, key=lambda drawing: drawing.name == "explorer")
        return self.result.plot(drawing.name, heads=[(self.layer, self.head)])

    def __repr__(self) -> str:
        numbers = "; ".join(f"{name} {text}" for name, text in self.numbers().items())
        return f"head {self.layer}.{self.head}: {numbers}"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two results of one study side by side.

    Attributes
    ----------
    table
        A row for each row that both main tables have, and each number with an interval: its value
        in both (``first``, ``second``), and the difference of the second from the first with its
        95% interval. The interval takes the two results for independent; of results that share
        text, model or seed it is too wide rather than too narrow.
    """

    table: pd.DataFrame

    @property
    def different(self) -> pd.DataFrame:
        """The rows whose interval does not contain 0."""
        return self.table[(self.table["low"] > 0) | (self.table["high"] < 0)]

    def __repr__(self) -> str:
        return f"{self._headline()}\n{self.table.to_string(index=False, float_format=_FORMAT)}"

    def _repr_html_(self) -> str:
        frame = self.table.to_html(index=False, float_format=_FORMAT)
        return f"<p>{html.escape(self._headline())}</p>{frame}"

    def _headline(self) -> str:
        known = self.table.dropna(subset=["low", "high"])
        return (
            f"{len(self.different):,} of {len(known):,} numbers differ beyond a 95% interval; "
            f"about {0.05 * len(known):.0f} would by chance alone."
        )


_FORMAT = "{:.3g}".format


def compare(first: Result[Any], second: Result[Any]) -> Comparison:
    """Return what two results of one study have in common and where they differ.

    The interval of a difference is made from the intervals of both (Zou and Donner's MOVER):
    ``d - sqrt((b - b_low)^2 + (a_high - a)^2)`` for its lower end, likewise for the upper one.
    """
    import numpy as np
    import pandas as pd

    if first.study is not second.study:
        raise InputError(
            f"these are results of {first.study.name()} and of {second.study.name()}; compare two "
            "of one study"
        )
    view = first.views[0] if first.views else first.view.TABLES[0]
    frames = [view.frame(result) if result.views else None for result in (first, second)]
    if frames[0] is None or frames[1] is None:
        raise InputError("one of the results has nothing measured yet")
    names = [name for name in frames[0] if f"{name}_low" in frames[0] and name in frames[1]]
    both = frames[0].merge(frames[1], on=list(view.rows), suffixes=("", "_second"))
    if both.empty or not names:
        raise InputError("the results have no row with a number and its interval in common")
    parts = []
    for name in names:
        a, a_low, a_high = (both[f"{name}{end}"] for end in ("", "_low", "_high"))
        b, b_low, b_high = (both[f"{name}{end}_second"] for end in ("", "_low", "_high"))
        numbers: dict[str, Any] = {
            "variable": name,
            "first": a,
            "second": b,
            "difference": b - a,
            "low": b - a - np.sqrt((b - b_low) ** 2 + (a_high - a) ** 2),
            "high": b - a + np.sqrt((b_high - b) ** 2 + (a - a_low) ** 2),
        }
        parts.append(both[list(view.rows)].assign(**numbers))
    return Comparison(pd.concat(parts, ignore_index=True).dropna(subset=["first", "second"]))


def finish(study: type[Study[S]], setup: Setup[S], run: Run, write: bool = False) -> Result[S]:
    """Put the cells of a run together; a result that is stored already is not computed again.

    Raises
    ------
    InputError
        If a cell or the stored result is damaged.
    """
    import xarray as xr

    cells, complete = study.stored(setup, run)
    attributes: dict[str, Any] = {
        "kind": study.name(),
        "cells": json.dumps(list(cells)),
        "complete": int(complete),
        "created": run.config.created,
        "configuration": json.dumps(setup.configuration()),
        "versions": json.dumps(run.config.versions),
    }
    path = run.folder / RESULTS
    if run.on_disk and path.exists():
        try:
            data = read_result(path, study)
        except InputError as error:
            raise InputError(
                f"{error}; delete {RESULTS} and run the same command again, which recomputes it "
                "from the parts"
            ) from error
        if data.attrs == attributes:
            return study.result(study, setup, data, run.folder)
    data = xr.Dataset()
    if cells:
        try:
            data = check(study.combine(setup, cells).dataset, study.data, study.name())
        except NotFinished:
            cells, attributes["cells"] = {}, "[]"
    data = data.assign_attrs(attributes)
    if write and cells:
        write_atomically(path, to_bytes(data))
    return study.result(study, setup, data, run.folder)


def read_result(path: Path, study: type[Study[Any]] | None = None) -> xr.Dataset:
    """Return the dataset of a stored result, checked; of any study unless one is given.

    Raises
    ------
    InputError
        If it is damaged, or of another study.
    """
    from esscher.runs.registry import study_named

    data = from_bytes(read_file(path, LARGE), str(path))
    attributes = as_record(data.attrs, dict[Name, str | int], str(path))
    name = str(attributes.get("kind"))
    kind = study or study_named(name, str(path))
    if name != kind.name():
        raise InputError(f"{path} is damaged: it is of kind {name!r}")
    try:
        names = ("created", "cells", "configuration", "versions")
        _, *texts = (str(attributes[name]) for name in names)
        cells, configuration, versions = map(json.loads, texts)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged: its attributes do not fit ({error})") from error
    as_record(cells, list[Name], str(path))
    as_record(versions, dict[Name, Name | None], str(path))
    as_record(configuration, dict[str, Any], str(path))
    return check(data, kind.data, str(path))
