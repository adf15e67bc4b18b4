"""The studies by name, their modules, and how a stored result of any of them is read."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import LARGE, open_regular, read_json
from esscher.core.validation import as_path
from esscher.runs.folder import CONFIG, Run, read_config
from esscher.runs.result import finish, read_result
from esscher.runs.study import stored_setup
from esscher.studies import STUDIES


@cache
def study_named(name: str, place: str = "") -> Any:
    """Return a study by its name.

    Parameters
    ----------
    name
        A key of :data:`esscher.studies.STUDIES`.
    place
        Where the name comes from, for the message.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name not in STUDIES:
        where = f"{place}: " if place else ""
        raise InputError(
            f"{where}there is no study {shortened(name)}; there are {', '.join(sorted(STUDIES))}"
        )
    module, _, title = STUDIES[name][0].partition(":")
    return getattr(import_module(module), title)


def name_of(study: type[Any]) -> str:
    """Return the name of a study: that of its line."""
    place = f"{study.__module__}:{study.__qualname__}"
    return next(name for name, (where, _) in STUDIES.items() if where == place)


def part_of(study: type[Any], part: str) -> Any:
    """Return the module ``view`` or ``charts`` of a study: beside its own, or its own.

    A study that is a single file is its own view.
    """
    module = f"{study.__module__.rpartition('.')[0]}.{part}"
    return import_module(module if find_spec(module) is not None else study.__module__)


def load(path: str | Path) -> Any:
    """Read a result: the directory of a run, complete or not, or a file that ``save`` wrote.

    Of a plan's JSON file it returns the :class:`esscher.results.Plan`.

    Raises
    ------
    InputError
        If there is neither, it is of an unknown kind, or it is damaged.
    """
    place = as_path(path, "path")
    if not place.exists():
        raise InputError(f"{place} does not exist; give the directory of a run, or a saved result")
    if not place.is_dir():
        if is_dataset(place):
            data = read_result(place)
            study = study_named(data.attrs["kind"], str(place))
            setup = stored_setup(study, json.loads(data.attrs["configuration"]), str(place))
            return study.result(study, setup, data)
        tree = read_json(place, LARGE)
        if not isinstance(tree, dict) or not isinstance(name := tree.get("kind"), str):
            raise InputError(f"{place} is damaged: it is no result")
        return study_named(name, str(place)).from_json(tree, str(place))
    config, path = read_config(place), str(place / CONFIG)
    kind = study_named(config.kind, path)
    setup = stored_setup(kind, config.configuration | config.request, path)
    return finish(kind, setup, Run(place, config, kind.cell))


def is_dataset(path: Path) -> bool:
    """Tell whether a file is a dataset rather than JSON: it begins with a length."""
    with open_regular(path) as file:
        return not file.read(8).lstrip().startswith(b"{")
