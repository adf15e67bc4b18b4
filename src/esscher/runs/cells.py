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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.atomic import clean_leftovers, write_atomically
from esscher.core.codec import Hash, Name, Record, as_json, as_record
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
    LOG,
    PARTS,
    check_free,
    check_same,
    read_about,
    read_results,
    write_results,
)
from esscher.runs.lock import LOCK, run_lock
from esscher.runs.provenance import command, git_revision, versions
from esscher.runs.schema import check, known

if TYPE_CHECKING:
    import pandas as pd

#: Version of the layout; another one is refused.
SCHEMA = 1
#: Names of cells are names of files: nothing in them may lead out of the directory.
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9.]+)*")
#: Longest name of a cell; file systems take 255 bytes.
_LONGEST = 120


def _quiet(what: str) -> None:
    """Tell nobody."""


def _no_rows() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame()


class About(Record, frozen=True, kw_only=True):
    """Contents of a run's ``config.json``.

    Attributes
    ----------
    schema
        Version of the layout.
    kind, subject
        Name of the study, and of what it measured.
    created, versions, git_revision, command
        When and by what the run was begun.
    configuration
        The study's options.
    """

    schema: int
    kind: Name
    subject: Name
    created: Name
    configuration: dict[str, Any]
    versions: dict[str, str | None]
    git_revision: str | None = None
    command: list[str] | None = None


class Part(Record, frozen=True, kw_only=True):
    """Contents of a cell's JSON file: its name, the checksum of its table, and the rest."""

    schema: int
    cell: Name
    sha256: Hash
    about: Any


@dataclass(frozen=True, eq=False)
class Cell:
    """Measurements of one cell of a run.

    Attributes
    ----------
    about
        A record, or plain numbers, lists, dictionaries and strings.
    table
        Raw measurements, one row each; may be empty.
    """

    about: Any
    table: pd.DataFrame = field(default_factory=_no_rows)


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
        Type of what its cells say besides their tables.
    doing
        Told what is done before the next cell can be begun; nothing ends it.
    """

    folder: Path
    about: dict[str, Any]
    cell: type[Any] | None = None
    doing: Callable[[str], None] = _quiet

    def typed(self, cell: type[Any]) -> CellRun:
        """Return the run with cells of a type."""
        return replace(self, cell=cell)

    @property
    def configuration(self) -> dict[str, Any]:
        """All that the results are a function of."""
        return dict(self.about["configuration"])

    @property
    def kind(self) -> str:
        """Kind of the run: the command that made it."""
        return str(self.about["kind"])

    def names(self) -> list[str]:
        """Names of the cells that are there."""
        parts = check_folder(self.folder, PARTS)
        return sorted(path.stem for path in parts.glob("*.json") if _NAME.fullmatch(path.stem))

    def write(self, name: str, cell: Cell) -> None:
        """Store one cell."""
        paths = self._paths(name)
        data = _parquet(cell.table)
        digest = hashlib.sha256(data).hexdigest()
        about = {"schema": SCHEMA, "cell": name, "sha256": digest, "about": cell.about}
        write_atomically(paths["parquet"], data)
        write_atomically(paths["json"], as_json(about))

    def read(self, name: str) -> Cell | None:
        """One cell, or None if it is not there.

        Raises
        ------
        InputError
            If it is damaged.
        """
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
            check(stored, known(self.kind), "cell", paths["json"].name)
            if hashlib.sha256(data).hexdigest() != stored["sha256"]:
                raise InputError("its checksum does not match")
            table = read_table(data, paths["parquet"].name)
            # what pandas noted about its own types is nothing that a stranger may decide
            about = stored["about"]
            if self.cell is not None:
                about = as_record(about, self.cell, paths["json"].name)
            return Cell(about, table.to_pandas(ignore_metadata=True))
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
        write_results(self.folder, results)

    def read_results(self) -> dict[str, Any] | None:
        """Derived results, if there are readable ones."""
        return read_results(self.folder, self.kind)

    def _paths(self, name: str) -> dict[str, Path]:
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise InputError(
                f"{shortened(name)} is no name of a cell: it may have small letters, digits, dots "
                "and dashes"
            )
        return {kind: self.folder / PARTS / f"{name}.{kind}" for kind in ("json", "parquet")}


@contextmanager
def open_run(
    folder: Path, kind: str, subject: str, configuration: dict[str, Any]
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
        All that the results are a function of, as JSON holds it.

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
        else:
            about = {
                "schema": SCHEMA,
                "kind": kind,
                "subject": subject,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "configuration": wanted,
                "versions": versions(),
                "git_revision": git_revision(),
                "command": command(),
            }
            write_atomically(config, as_json(about))
            run = CellRun(folder, about)
        yield run


def read_run(folder: Path, kind: str | None = None) -> CellRun:
    """Open a run directory for reading; no lock is needed, files are never half-written.

    Parameters
    ----------
    folder
        The directory.
    kind
        The kind of run that is expected; any if left out.
    """
    config = folder / CONFIG
    about = read_about(folder)
    found, schema = about.get("kind"), about.get("schema")
    if found is None:
        raise InputError(
            f"{config} is damaged (it has no 'kind'); restore it, or choose another directory"
        )
    if kind is not None and found != kind:
        raise InputError(f"{folder} holds a run of kind {shortened(found)}, not {kind!r}")
    if schema != SCHEMA:
        raise InputError(
            f"{folder} has layout version {shortened(schema)}; this version of Esscher reads "
            f"{SCHEMA}"
        )
    return CellRun(folder, about)


def run_kind(folder: Path) -> str | None:
    """Kind of the run that a directory holds; None if it is no run made of cells.

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


def _parquet(table: pd.DataFrame) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), buffer)
    return buffer.getvalue()
