"""A run's directory: configuration, a file for each cell, the result, and a lock.

A cell is a dataset in a file of its own (:mod:`esscher.core.dataset_file`), there in full or not at
all: ``kill -9`` at any moment loses the cell in flight and nothing else.

One process works on a run: it holds a lock of the operating system, which ends with the process. A
process forked while the lock is held shares it until it ends as well. The workers that Esscher
starts are not forked; for other executors start the workers before the sweep.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from esscher.core.atomic import TEMPORARY, check_room_for, write_atomically
from esscher.core.codec import Name, Record, as_json, as_record
from esscher.core.dataset_file import SUFFIX, from_bytes, to_bytes
from esscher.core.errors import InputError
from esscher.core.shown import printable, shortened
from esscher.core.untrusted import (
    LARGE,
    open_regular,
    parse_json,
    read_file,
    read_json,
)
from esscher.core.variables import Data, check
from esscher.engine.models.outline import SAMPLE, compare_weights, type_difference

if TYPE_CHECKING:
    import xarray as xr

CONFIG, LOG, PARTS = "config.json", "run.log", "parts"
#: Version of the layout of a run's files.
SCHEMA = 4
#: Characters of a value that a message shows.
_SHOWN = 160


class RunConfig(Record, frozen=True, kw_only=True):
    """Contents of a run's ``config.json``.

    Attributes
    ----------
    schema
        Version of the layout.
    kind, subject
        Name of the study, and of what it measured.
    created, versions, command
        When and by what the run was begun.
    configuration, request
        The study's options, and those of them that may change when the run is resumed.
    """

    schema: int
    kind: Name
    subject: Name
    created: Name
    configuration: dict[str, Any]
    versions: dict[str, str | None]
    request: dict[str, Any] = msgspec.field(default_factory=dict)
    command: list[str] | None = None


def read_config(folder: Path, kind: str | None = None) -> RunConfig:
    """Read a run's ``config.json``; ``kind`` is that which is expected, any if left out.

    Raises
    ------
    InputError
        If the directory is no run, is one of another layout or kind, or the file is damaged.
    """
    path = folder / CONFIG
    layout = None
    try:
        tree = read_json(path)
        layout = tree.get("schema") if isinstance(tree, dict) else None
        if not isinstance(layout, int) or layout == SCHEMA:
            layout = None
            config = as_record(tree, RunConfig, str(path))
    except FileNotFoundError as error:
        raise InputError(f"{folder} is not a run: it has no {CONFIG}") from error
    except InputError as error:
        reason = str(error)
        reason = reason if "is damaged" in reason else f"{path} is damaged ({reason})"
        raise InputError(f"{reason}; restore it, or choose another directory") from error
    if layout is not None:
        raise InputError(
            f"{folder} has layout version {shortened(layout)}; this version of Esscher reads "
            f"{SCHEMA}: read it with the version that wrote it, or run its command again with "
            "another directory"
        )
    if kind is not None and config.kind != kind:
        raise InputError(f"{folder} holds a run of kind {shortened(config.kind)}, not {kind!r}")
    return config


def check_free(folder: Path) -> None:
    """Refuse a directory with other things in it; leftovers of a run just begun are no obstacle."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose a directory for the run")
    for path in sorted(folder.iterdir()) if folder.exists() else []:
        if path.name not in (LOCK, LOG, PARTS) and not path.name.endswith(TEMPORARY):
            raise InputError(
                f"{folder} is not a run and not empty (it contains {path.name}); "
                "choose a new directory"
            )


def check_same(folder: Path, stored: dict[str, Any], configuration: dict[str, Any]) -> None:
    """Refuse to continue a run with another configuration, and show the difference."""

    def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        """Names with dots for nested fields, values as JSON holds them."""
        values: dict[str, Any] = {}
        for name, value in tree.items():
            nested = isinstance(value, dict)
            values |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
        return values

    def shown(value: object) -> str:
        text = json.dumps(value)
        return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."

    old, new = flat(stored), flat(configuration)
    different = [
        f"  {field}: stored {shown(old.get(field))}, now {shown(new.get(field))}"
        for field in dict.fromkeys([*old, *new])
        if old.get(field) != new.get(field) and not field.endswith(SAMPLE)  # the hash says it all
    ]
    before: Any = stored.get("model")
    after: Any = configuration.get("model")
    models = isinstance(before, dict) and isinstance(after, dict)
    if models and compare_weights(before, after) == "other type":
        different.append(f"  These are {type_difference(before, after)}.")
    if different:
        raise InputError(
            f"{folder} holds a run with another configuration:\n"
            + "\n".join(different)
            + "\nGive the stored values to resume it, or choose another directory."
        )


#: Name of the locked file in a run directory.
LOCK = "lock"
#: How long to try: ``esscher ls`` holds a lock for an instant to see whether a run is active.
PATIENCE = 0.5


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run directory, or say who does.

    Raises
    ------
    InputError
        If another process (or another sweep of this process) works on the run.
    """
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"cannot write {folder / LOCK}: {error.strerror}") from error
    try:
        end = time.monotonic() + PATIENCE
        while not _try(handle):
            if time.monotonic() > end:
                owner = os.pread(handle, 200, 0).decode(errors="replace").strip()
                owner = printable(owner)
                raise InputError(
                    f"another process{f' ({owner})' if owner else ''} is working on {folder}; "
                    "wait until it has ended, stop it, or choose another directory"
                )
            time.sleep(0.02)
        with suppress(OSError):  # shown to a second process that wants the lock
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()} on {platform.node()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Tell whether some process works on a run."""
    try:
        file = open_regular(folder / LOCK)
    except (OSError, InputError):
        return False
    with file:
        return not _try(file.fileno(), shared=True)


def _try(handle: int, shared: bool = False) -> bool:
    try:
        import fcntl
    except ImportError:
        raise InputError(
            "stored runs need file locks, which Python does not have on this system; "
            "leave the run directory out"
        ) from None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_run_place(out: Path | None, kind: str, known: Mapping[str, Any]) -> None:
    """Refuse a directory in which a run could not be stored or resumed.

    Parameters
    ----------
    out
        The directory; nothing is checked without one.
    kind
        Kind of the run.
    known
        What is known of its configuration; the rest is compared when the run is opened.

    Raises
    ------
    InputError
        If it is a file, cannot be written, or holds something else, another kind of run, or one
        with another configuration.
    """
    if out is None:
        return
    if not (out / CONFIG).exists():
        check_free(out)
        check_room_for(out, str(out))
        return
    check_room_for(out, str(out))
    stored = read_config(out, kind).configuration
    # as JSON holds it: lists for tuples
    wanted: dict[str, Any] = parse_json(as_json(dict(known)), "what is asked for")
    check_same(out, {name: stored.get(name) for name in wanted}, wanted)


#: Names of cells are names of files: nothing in them may lead out of the directory.
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9.]+)*")
#: Longest name of a cell; file systems take 255 bytes.
_LONGEST = 120


@dataclass(frozen=True)
class Run:
    """A run directory, opened: one file for each cell, there in full or not at all.

    Attributes
    ----------
    folder
        The directory.
    config
        Contents of its ``config.json``: kind, subject, configuration, versions, date.
    cells
        Variables of a cell; by the first word of its name if there are several kinds.
    on_disk
        Whether cells are stored in the directory, or in memory only.
    doing
        Told what is done before the next cell can be begun; nothing ends it.
    """

    folder: Path
    config: RunConfig
    cells: type[Data] | Mapping[str, type[Data]]
    on_disk: bool = True
    doing: Callable[[str], None] = lambda what: None
    _known: dict[str, xr.Dataset] = field(default_factory=dict)

    @cached_property
    def identity(self) -> str:
        """Hash of the configuration: every cell says to which run it belongs."""
        return hashlib.sha256(
            json.dumps(self.config.configuration, sort_keys=True).encode()
        ).hexdigest()

    def names(self) -> list[str]:
        """Names of the cells that are there."""
        if not self.on_disk:
            return sorted(self._known)
        parts = self.folder / PARTS
        names = [path.name.removesuffix(SUFFIX) for path in parts.glob(f"*{SUFFIX}")]
        return sorted(name for name in names if _NAME.fullmatch(name))

    def write(self, name: str, data: xr.Dataset) -> None:
        """Store one cell."""
        path = self._path(name)
        check(data, self._kind(name), name)
        self._known[name] = data
        if self.on_disk:
            marked = data.assign_attrs(cell=name, run=self.identity)
            write_atomically(path, to_bytes(marked), named=False)

    def read(self, name: str) -> xr.Dataset | None:
        """Return one cell, or None if it is not there.

        Raises
        ------
        InputError
            If it is damaged, or belongs to another run.
        """
        path = self._path(name)
        if name in self._known or not self.on_disk:
            return self._known.get(name)
        try:
            data = from_bytes(read_file(path, LARGE), path.name)
            if (data.attrs.get("cell"), data.attrs.get("run")) != (name, self.identity):
                raise InputError("it belongs to another cell, or to a run with other settings")
            self._known[name] = check(data, self._kind(name), path.name)
        except FileNotFoundError:
            return None
        except InputError as error:
            raise self.damaged(name, error) from error
        return data

    def damaged(self, name: str, reason: object) -> InputError:
        """The error that says what to do about a damaged cell."""
        return InputError(
            f"{self._path(name)} is damaged ({reason}); delete it and run the same command again, "
            "which recomputes it and keeps all others"
        )

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of the names whose cells are not there; damaged ones are an error."""
        return [name for name in names if self.read(name) is None]

    def _kind(self, name: str) -> type[Data]:
        if isinstance(self.cells, Mapping):
            return self.cells[name.partition("-")[0]]
        return self.cells

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise InputError(
                f"{shortened(name)} is not a cell name: it may have small letters, digits, dots "
                "and dashes"
            )
        return self.folder / PARTS / f"{name}{SUFFIX}"


@contextmanager
def open_run(
    folder: Path | None,
    kind: str,
    subject: str,
    configuration: dict[str, Any],
    request: dict[str, Any],
    cells: type[Data] | Mapping[str, type[Data]],
) -> Iterator[Run]:
    """Set up a run directory, or take up the one that is there, and hold its lock.

    Parameters
    ----------
    folder
        The directory. Without one, cells are kept in memory: the directory of the run is a
        temporary one that lasts as long as the block.
    kind
        What kind of run: the command that makes it.
    subject
        The law or model that is measured, for lists of runs.
    configuration
        All that the cells are a function of, as JSON holds it.
    request
        Options that may change from one start of a run to the next; the last ones are stored.
    cells
        See :class:`Run`.

    Raises
    ------
    InputError
        If the directory is something else, belongs to another configuration (the message shows the
        difference), is damaged, or another process works on it.
    """
    wanted = json.loads(json.dumps(configuration))  # lists for tuples
    config = RunConfig(
        schema=SCHEMA,
        kind=kind,
        subject=subject,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        configuration=wanted,
        request=request,
        versions=versions(),
    )
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="esscher-") as place:
            yield Run(Path(place), config, cells, on_disk=False)
        return
    path = folder / CONFIG
    if not path.exists():
        check_free(folder)
    try:
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder / PARTS}: {error.strerror}") from error
    with run_lock(folder):
        for inner in (folder, folder / PARTS):
            for leftover in inner.glob(f".*{TEMPORARY}"):  # of a process that was killed
                if leftover.is_symlink() or leftover.is_file():
                    leftover.unlink(missing_ok=True)
        if path.exists():
            stored = read_config(folder, kind)
            check_same(folder, stored.configuration, wanted)
            config = msgspec.structs.replace(stored, request=request)
            if stored != config:
                config = msgspec.structs.replace(config, command=_command())
                write_atomically(path, as_json(config))
        else:
            config = msgspec.structs.replace(config, command=_command())
            write_atomically(path, as_json(config))
        yield Run(folder, config, cells)


def run_folders(folder: Path) -> Iterator[Path]:
    """Directories that hold a run, in the order of their names; nothing inside a run is searched.

    ``config.json`` is a common name: a directory without ``parts`` is something else.
    """
    for place, folders, files in os.walk(folder):
        if CONFIG in files and PARTS in folders:
            folders.clear()
            yield Path(place)
        folders.sort()


# Where numbers come from: versions of what took part, and the command.


@cache
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of the packages that measure; None for those that are not installed.

    ``kernel`` streams attention on processors: "compiled" if that is installed, else "torch"; which
    it is is seen without loading either. Which instructions it uses is no version: that depends on
    the machine, as with torch.
    """
    from esscher import __version__  # not at the top: the package may still be loading

    torch = _installed("torch")
    libraries = (Path(__file__).parents[1] / "engine" / "attention" / "compiled").glob("*.so")
    kernel = None if torch is None else "torch"
    if any(libraries) and os.environ.get("ESSCHER_KERNEL", "").lower() != "torch":
        kernel = "compiled"
    return {
        "esscher": __version__,
        "numpy": _installed("numpy"),
        "torch": torch,
        "kernel": kernel,
        "python": platform.python_version(),
    }


def _command() -> list[str] | None:
    """Words of the running command; None when Esscher is called from Python."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get("esscher.words")
