"""The studies by name, their modules, and how a stored result of any of them is read."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esscher.core.codec import as_record
from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import LARGE, open_regular, read_json
from esscher.core.validation import as_path
from esscher.runs.folder import CONFIG, CellRun, Run, read_about
from esscher.runs.old_result import Header, Result, result_from
from esscher.runs.old_study import finish, stored_study
from esscher.runs.result import finish as finish_dataset
from esscher.runs.result import read_result
from esscher.runs.study import Study as DatasetStudy
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
        name = tree.get("kind") if isinstance(tree, dict) else None
        if isinstance(name, str) and issubclass(study_named(name, str(place)), DatasetStudy):
            return study_named(name).from_json(tree, str(place))
        return result_of(tree, str(place))
    about, config = read_about(place), str(place / CONFIG)
    kind = study_named(about.kind, config)
    if issubclass(kind, DatasetStudy):
        setup = stored_setup(kind, about.configuration | about.request, config)
        return finish_dataset(kind, setup, Run(place, about, kind.cell))
    options: Any = stored_study(kind, about.configuration | about.request, config)
    return finish(CellRun(place, about, kind.cell), options)


def is_dataset(path: Path) -> bool:
    """Tell whether a file is a dataset rather than JSON: it begins with a length."""
    with open_regular(path) as file:
        return not file.read(8).lstrip().startswith(b"{")


def result_of(tree: Any, place: str) -> Result[Any]:
    """Return the result that ``to_dict`` gave, of any study.

    Parameters
    ----------
    tree
        Plain numbers, lists and strings.
    place
        Where they come from, for the message.

    Raises
    ------
    InputError
        If they are not those of a result.
    """
    header = as_record(tree, Header, place)
    study = stored_study(study_named(header.kind, place), header.configuration, place)
    result: Result[Any] = result_from(tree, study, place, None)
    return result
