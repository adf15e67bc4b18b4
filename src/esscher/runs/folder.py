"""Names, results and owner of a run directory, the same for every kind of run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from esscher.core.atomic import TEMPORARY, write_atomically
from esscher.core.codec import as_json
from esscher.core.errors import InputError
from esscher.core.untrusted import check_folder, limits, read_json, shortened
from esscher.engine.models.same_weights import SAMPLE, compare_weights, said_of_types
from esscher.runs.schema import check, known, read_checked

CONFIG, RESULTS, LOG, PARTS = "config.json", "results.json", "run.log", "parts"
#: Characters of a value that a message shows.
_SHOWN = 160


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """Replace the derived results of a run."""
    write_atomically(folder / RESULTS, as_json(results))


def read_results(folder: Path, kind: str) -> dict[str, Any] | None:
    """Derived results of a run of a kind; None if there are none.

    Raises
    ------
    InputError
        If they are not what that kind of run has.
    """
    try:
        return read_checked(folder / RESULTS, known(kind), "results", limits.RESULTS)
    except FileNotFoundError:
        return None
    except InputError as error:
        raise InputError(
            f"{error}; delete {RESULTS} and run the same command again, which computes it anew "
            "from the parts"
        ) from error


def read_about(folder: Path) -> dict[str, Any]:
    """Contents of a run's ``config.json``, checked against the schema of its kind.

    Raises
    ------
    InputError
        If the directory is no run, or the file is not what such a run has.
    """
    config = folder / CONFIG
    try:
        found = read_json(config, follow=False)
        kind = found.get("kind") if isinstance(found, dict) else None
        if not isinstance(kind, str):
            raise InputError(f"{config} is damaged: kind is {shortened(kind)}; it must be a string")
        check(found, known(kind), "config", str(config))
        check_folder(folder, PARTS)
    except FileNotFoundError as error:
        raise InputError(f"{folder} is not a run: it has no {CONFIG}") from error
    except NotADirectoryError as error:
        raise InputError(f"{folder} is not a run: it is no directory") from error
    except InputError as error:
        said = str(error)
        said = said if "is damaged" in said else f"{config} is damaged ({said})"
        raise InputError(f"{said}; restore it, or choose another directory") from error
    return dict(found)


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
    if compare_weights(stored, configuration) == "other type":
        different.append(f"  These are {said_of_types(stored, configuration)}.")
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
