"""A run's directory: names of its files, what it says about itself, whether it is free.

One process works on a run: it holds a lock of the operating system, which ends with the process. A
process forked while the lock is held shares it until it ends as well. The workers that Esscher
starts are not forked; for other executors start the workers before the sweep.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from esscher.core.atomic import TEMPORARY, check_room_for
from esscher.core.codec import Name, Record, as_json, as_record
from esscher.core.errors import InputError
from esscher.core.untrusted import (
    check_folder,
    open_regular,
    open_regular_for_writing,
    parse_json,
    printable,
    read_json,
    shortened,
)
from esscher.engine.models.record import SAMPLE, compare_weights, said_of_types

CONFIG, RESULTS, LOG, PARTS = "config.json", "results.json", "run.log", "parts"
#: Version of the layout of a run's files.
SCHEMA = 3
#: Characters of a value that a message shows.
_SHOWN = 160


class OtherLayout(InputError):
    """A run that another version of Esscher laid out."""


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
    git_revision: str | None = None
    command: list[str] | None = None


def read_about(folder: Path, kind: str | None = None) -> About:
    """Read a run's ``config.json``; ``kind`` is that which is expected, any if left out.

    Raises
    ------
    InputError
        If the directory is no run, is one of another layout or kind, or the file is damaged.
    """
    config = folder / CONFIG
    try:
        found = read_json(config, follow=False)
        check_layout(found, str(folder))
        about = as_record(found, About, str(config))
        check_folder(folder, PARTS)
    except FileNotFoundError as error:
        raise InputError(f"{folder} is not a run: it has no {CONFIG}") from error
    except NotADirectoryError as error:
        raise InputError(f"{folder} is not a run: it is not a directory") from error
    except OtherLayout:
        raise
    except InputError as error:
        said = str(error)
        said = said if "is damaged" in said else f"{config} is damaged ({said})"
        raise InputError(f"{said}; restore it, or choose another directory") from error
    if kind is not None and about.kind != kind:
        raise InputError(f"{folder} holds a run of kind {shortened(about.kind)}, not {kind!r}")
    return about


def check_layout(found: Any, folder: str) -> None:
    """Refuse a run that another version of Esscher laid out."""
    version = found.get("schema") if isinstance(found, dict) else None
    if isinstance(version, int) and version != SCHEMA:
        raise OtherLayout(
            f"{folder} has layout version {shortened(version)}; this version of Esscher reads "
            f"{SCHEMA}: read it with the version that wrote it, or run its command again with "
            "another directory"
        )


def check_free(folder: Path, own: set[str]) -> None:
    """Refuse a directory with other things in it; leftovers of a run just begun are no obstacle."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose a directory for the run")
    for path in sorted(folder.iterdir()) if folder.exists() else []:
        if path.name not in own and not path.name.endswith(TEMPORARY):
            raise InputError(
                f"{folder} is not a run and not empty (it contains {path.name}); "
                "choose a new directory"
            )


def check_same(folder: Path, stored: dict[str, Any], configuration: dict[str, Any]) -> None:
    """Refuse to continue a run with another configuration, and show the difference."""
    old, new = _flat(stored), _flat(configuration)
    different = [
        f"  {field}: stored {_shown(old.get(field))}, now {_shown(new.get(field))}"
        for field in dict.fromkeys([*old, *new])
        if old.get(field) != new.get(field) and not field.endswith(SAMPLE)  # the hash says it all
    ]
    before: Any = stored.get("model")
    after: Any = configuration.get("model")
    models = isinstance(before, dict) and isinstance(after, dict)
    if models and compare_weights(before, after) == "other type":
        different.append(f"  These are {said_of_types(before, after)}.")
    if different:
        raise InputError(
            f"{folder} holds a run with another configuration:\n"
            + "\n".join(different)
            + "\nGive the stored values to resume it, or choose another directory."
        )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names with dots for nested fields, values as JSON holds them."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = value
    return out


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


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
        handle = open_regular_for_writing(folder / LOCK, os.O_RDWR | os.O_CREAT)
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
        with suppress(OSError):  # only a courtesy to whoever comes second
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()} on {platform.node()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Tell whether some process works on a run."""
    try:
        file = open_regular(folder / LOCK, follow=False)
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


def check_run_place(
    out: str | Path | None,
    kind: str,
    known: Mapping[str, Any] | None = None,
    called: Mapping[str, str] | None = None,
) -> None:
    """Refuse a directory in which a run could not be stored or resumed.

    Parameters
    ----------
    out
        The directory; nothing is checked without one.
    kind
        Kind of the run.
    known
        What is known of its configuration; the rest is compared when the run is opened.
    called
        Options by the name that they are stored under, if that is another one.

    Raises
    ------
    InputError
        If it is a file, cannot be written, or holds something else, another kind of run, or one
        with another configuration.
    """
    if out is None:
        return
    folder = Path(out)
    if not (folder / CONFIG).exists():
        check_free(folder, {LOCK, LOG, PARTS})
        check_room_for(folder, str(folder))
        return
    check_room_for(folder, str(folder))
    stored = read_about(folder, kind).configuration
    # as JSON holds it: lists for tuples
    wanted: dict[str, Any] = parse_json(as_json(dict(known or {})), "what is asked for")
    names = {name: (called or {}).get(name, name) for name in wanted}
    check_same(
        folder,
        {names[name]: stored.get(name) for name in wanted},
        {names[name]: value for name, value in wanted.items()},
    )
