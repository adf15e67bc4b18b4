"""Runs made of named cells: configuration, one part per cell, derived results.

A part is a Parquet file with the raw measurements, one row each, and a JSON file with everything
else, which is written last and carries the checksum of the first: a cell is there when both are.
``kill -9`` at any moment loses the cell in flight and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from esscher.core.atomic import clean_leftovers, write_atomically
from esscher.core.codec import Hash, Name, Record, as_json, as_record, as_tree
from esscher.core.command import command
from esscher.core.errors import InputError
from esscher.core.untrusted import (
    check_folder,
    limits,
    read_file,
    read_json,
    read_table,
    shortened,
)
from esscher.runs.folder import (
    CONFIG,
    LOCK,
    LOG,
    PARTS,
    RESULTS,
    SCHEMA,
    About,
    check_free,
    check_same,
    read_about,
    run_lock,
)
from esscher.runs.provenance import git_revision, versions

if TYPE_CHECKING:
    import pandas as pd

#: Names of cells are names of files: nothing in them may lead out of the directory.
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9.]+)*")
#: Longest name of a cell; file systems take 255 bytes.
_LONGEST = 120


def _quiet(what: str) -> None:
    """Tell nobody."""


class Part(Record, frozen=True, kw_only=True):
    """Contents of a cell's JSON file: its name, run, checksum of its table, and the rest."""

    schema: int
    cell: Name
    run: Hash
    sha256: Hash
    about: Any


class Cell:
    """Measurements of one cell of a run.

    Parameters
    ----------
    about
        A record, or plain numbers, lists, dictionaries and strings.
    table
        Raw measurements, one row each; none if left out. May be columns by name: arrays, of which
        a data frame is made only when somebody asks for it.
    """

    def __init__(
        self, about: Any, table: pd.DataFrame | Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self.about = about
        self._table = {} if table is None else table

    @cached_property
    def table(self) -> pd.DataFrame:
        """Raw measurements, one row each."""
        import pandas as pd

        return pd.DataFrame(self._table)

    def column(self, name: str) -> NDArray[Any]:
        """Return one column of the table.

        Raises
        ------
        InputError
            If there is none of that name.
        """
        if name not in self._table:
            raise InputError(f"it has no column {name!r}")
        return np.asarray(self._table[name])

    def parquet(self) -> bytes:
        """Return the table as the contents of a file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        rows: Any = self._table
        columns = isinstance(rows, dict)
        made = pa.table(rows) if columns else pa.Table.from_pandas(rows, preserve_index=False)
        pq.write_table(made, buffer)
        return buffer.getvalue()


@dataclass(frozen=True)
class CellRun:
    """A run directory, opened.

    Attributes
    ----------
    folder
        The directory.
    about
        Contents of its ``config.json``: kind, subject, configuration, versions, date.
    cell
        Type of what its cells say besides their tables. Cells of a type are read once.
    on_disk
        Whether cells are stored in the directory, or in memory only.
    doing
        Told what is done before the next cell can be begun; nothing ends it.
    """

    folder: Path
    about: About
    cell: type[Any] | None = None
    doing: Callable[[str], None] = _quiet
    on_disk: bool = True
    _known: dict[str, Cell] = field(default_factory=dict)

    def typed(self, cell: type[Any]) -> CellRun:
        """Return the run with cells of a type."""
        return replace(self, cell=cell, _known={})

    @property
    def configuration(self) -> dict[str, Any]:
        """All that the cells are a function of."""
        return dict(self.about.configuration)

    @property
    def request(self) -> dict[str, Any]:
        """Options that may change from one start to the next, as they were given last."""
        return dict(self.about.request)

    @cached_property
    def identity(self) -> str:
        """Hash of the configuration: every cell says to which run it belongs."""
        return hashlib.sha256(json.dumps(self.configuration, sort_keys=True).encode()).hexdigest()

    @property
    def kind(self) -> str:
        """Kind of the run: the command that made it."""
        return self.about.kind

    def names(self) -> list[str]:
        """Names of the cells that are there."""
        if not self.on_disk:
            return sorted(self._known)
        parts = check_folder(self.folder, PARTS)
        return sorted(path.stem for path in parts.glob("*.json") if _NAME.fullmatch(path.stem))

    def write(self, name: str, cell: Cell) -> None:
        """Store one cell."""
        paths = self._paths(name)
        tree = as_tree(cell.about)
        if self.on_disk:
            data = cell.parquet()
            digest = hashlib.sha256(data).hexdigest()
            part = Part(schema=SCHEMA, cell=name, run=self.identity, sha256=digest, about=tree)
            write_atomically(paths["parquet"], data, named=False)
            write_atomically(paths["json"], as_json(part))
        if self.cell is not None:  # as it would be read
            self._known[name] = Cell(as_record(tree, self.cell, name), cell._table)

    def read(self, name: str) -> Cell | None:
        """One cell, or None if it is not there.

        Raises
        ------
        InputError
            If it is damaged.
        """
        if name in self._known or not self.on_disk:
            return self._known.get(name)
        paths = self._paths(name)
        try:
            stored = read_json(paths["json"], limits.PART, follow=False)
            data = read_file(paths["parquet"], limits.PART, follow=False)
        except FileNotFoundError:
            return None
        except InputError as error:
            raise self.damaged(name, error) from error
        try:
            version = stored.get("schema") if isinstance(stored, dict) else None
            if version != SCHEMA:
                raise InputError(f"its layout version is {shortened(version)}, not {SCHEMA}")
            part = as_record(stored, Part, paths["json"].name)
            if part.cell != name:
                raise InputError(f"it holds {shortened(part.cell)}")
            if part.run != self.identity:
                raise InputError("it belongs to a run with another configuration")
            if hashlib.sha256(data).hexdigest() != part.sha256:
                raise InputError("its checksum does not match")
            # what pandas noted about its own types is nothing that a stranger may decide
            table = read_table(data, paths["parquet"].name).to_pandas(ignore_metadata=True)
            if self.cell is None:
                return Cell(part.about, table)
            about = as_record(part.about, self.cell, paths["json"].name)
            self._known[name] = Cell(about, table)
            return self._known[name]
        except (ValueError, LookupError, TypeError) as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, reason: object) -> InputError:
        """The error that says what to do about a damaged cell."""
        return InputError(
            f"{self._paths(name)['json']} is damaged ({reason}); delete {name}.json and "
            f"{name}.parquet and run the same command again, which recomputes them and keeps all "
            "others"
        )

    def missing(self, names: list[str]) -> list[str]:
        """Those of the names whose cells are not there; damaged ones are an error."""
        return [name for name in names if self.read(name) is None]

    def write_results(self, results: dict[str, Any]) -> None:
        """Replace the derived results."""
        write_atomically(self.folder / RESULTS, as_json(results))

    def _paths(self, name: str) -> dict[str, Path]:
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise InputError(
                f"{shortened(name)} is not a cell name: it may have small letters, digits, dots "
                "and dashes"
            )
        return {kind: self.folder / PARTS / f"{name}.{kind}" for kind in ("json", "parquet")}


@contextmanager
def open_run(
    folder: Path,
    kind: str,
    subject: str,
    configuration: dict[str, Any],
    request: dict[str, Any] | None = None,
) -> Iterator[CellRun]:
    """Set up a run directory, or take up the one that is there, and hold its lock.

    Parameters
    ----------
    folder
        The directory.
    kind
        What kind of run: the command that makes it.
    subject
        The law or model that is measured, for lists of runs.
    configuration
        All that the cells are a function of, as JSON holds it.
    request
        Options that may change from one start of a run to the next; the last ones are stored.

    Raises
    ------
    InputError
        If the directory is something else, belongs to another configuration (the message shows the
        difference), is damaged, or another process works on it.
    """
    config = folder / CONFIG
    if not config.exists():
        check_free(folder, {LOCK, LOG, PARTS})
    try:
        check_folder(folder, PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder / PARTS}: {error.strerror}") from error
    with run_lock(folder):
        clean_leftovers(folder)
        clean_leftovers(folder / PARTS)
        wanted = json.loads(json.dumps(configuration))  # lists for tuples
        if config.exists():
            run = read_run(folder, kind)
            check_same(folder, run.configuration, wanted)
            if request is not None and run.request != request:
                about = msgspec.structs.replace(run.about, request=request, command=command())
                run = CellRun(folder, about)
                write_atomically(config, as_json(about))
        else:
            run = CellRun(folder, _about(kind, subject, wanted, request, begun_by=True))
            write_atomically(config, as_json(run.about))
        yield run


@contextmanager
def run_in_memory(
    kind: str, subject: str, configuration: dict[str, Any], request: dict[str, Any]
) -> Iterator[CellRun]:
    """Set up a run whose cells are kept in memory; its directory lasts as long as the block."""
    with run_folder(None) as folder:
        yield CellRun(folder, _about(kind, subject, configuration, request), on_disk=False)


def _about(
    kind: str,
    subject: str,
    configuration: dict[str, Any],
    request: dict[str, Any] | None,
    *,
    begun_by: bool = False,
) -> About:
    """Describe a new run; ``begun_by`` adds the revision of the source and the command."""
    return About(
        schema=SCHEMA,
        kind=kind,
        subject=subject,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        configuration=configuration,
        request=request or {},
        versions=versions(),
        git_revision=git_revision() if begun_by else None,
        command=command() if begun_by else None,
    )


def read_run(folder: Path, kind: str | None = None) -> CellRun:
    """Open a run directory for reading; no lock is needed, files are never half-written."""
    return CellRun(folder, read_about(folder, kind))


def run_kind(folder: Path) -> str | None:
    """Kind of the run that a directory holds; None if it is no run.

    Whether the directory is a sound run is another question, which reading it answers.
    """
    try:
        found = read_json(folder / CONFIG, follow=False)
    except (OSError, InputError):
        return None
    kind = found.get("kind") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else None


@contextmanager
def run_folder(out: str | Path | None) -> Iterator[Path]:
    """The directory of a run, or one for the time of the block if none is wanted."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="esscher-") as place:
        yield Path(place)
