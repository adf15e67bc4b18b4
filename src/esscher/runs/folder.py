"""A run's directory: names of its files, what it says about itself, whether it is free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from esscher.core.atomic import TEMPORARY
from esscher.core.codec import Name, Record, as_record
from esscher.core.errors import InputError
from esscher.core.untrusted import check_folder, read_json, shortened
from esscher.engine.models.record import SAMPLE, compare_weights, said_of_types

CONFIG, RESULTS, LOG, PARTS = "config.json", "results.json", "run.log", "parts"
#: Version of the layout of a run's files.
SCHEMA = 2
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


def read_about(folder: Path) -> About:
    """Read a run's ``config.json``.

    Raises
    ------
    InputError
        If the directory is no run, is one of another layout, or the file is damaged.
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
        raise InputError(f"{folder} is not a run: it is no directory") from error
    except OtherLayout:
        raise
    except InputError as error:
        said = str(error)
        said = said if "is damaged" in said else f"{config} is damaged ({said})"
        raise InputError(f"{said}; restore it, or choose another directory") from error
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
