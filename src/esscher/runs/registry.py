"""The studies there are. A new one is a folder below ``studies/`` and a line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from esscher.core.codec import as_record, schema_of
from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import limits, read_json
from esscher.core.validation import as_path
from esscher.runs.cells import read_run
from esscher.runs.folder import CONFIG
from esscher.runs.result import Header, Result, body_type, result_from
from esscher.runs.study import Study, configuration_type, finish, stored_study

#: Command, function and kind of run, and where the study is defined.
STUDIES = {
    "plan": "esscher.studies.plan.study:PlanStudy",
    "context": "esscher.studies.context.study:ContextStudy",
    "tails": "esscher.studies.tails.study:TailsStudy",
    "domains": "esscher.studies.domains.study:DomainsStudy",
}


@cache
def study_named(name: str) -> type[Study[Any]]:
    """Return a study by its name.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name not in STUDIES:
        raise InputError(
            f"there is no study {shortened(name)}; there are {', '.join(sorted(STUDIES))}"
        )
    module, _, title = STUDIES[name].partition(":")
    found: type[Study[Any]] = getattr(import_module(module), title)
    return found


def part_of(name: str, part: str) -> Any:
    """Return a module beside that of a study: ``charts``, ``page`` or ``printed``."""
    package = STUDIES[name].partition(":")[0].rpartition(".")[0]
    return import_module(f"{package}.{part}")


def load(path: str | Path) -> Result[Any]:
    """Read a result: the directory of a run, complete or not, or a file that ``save`` wrote.

    Raises
    ------
    InputError
        If there is neither, it is of an unknown kind, or it is damaged.
    """
    place = as_path(path, "path")
    if not place.exists():
        raise InputError(f"{place} is not there; give the directory of a run, or a saved result")
    if place.is_file():
        tree = read_json(place, limits.RESULTS)
        header = as_record(tree, Header, str(place))
        study = stored_study(study_named(header.kind), header.configuration, str(place))
        found: Result[Any] = result_from(tree, study, str(place), None)
        return found
    run = read_run(place)
    kind = study_named(run.kind)
    study = stored_study(kind, run.configuration, str(place / CONFIG))
    return finish(run.typed(kind.cell), study)


def schema_named(name: str) -> dict[str, Any]:
    """Return the JSON Schemas of a study's files: ``configuration``, ``cell`` and ``results``."""
    study = study_named(name)
    files = {
        "configuration": configuration_type(study),
        "cell": study.cell,
        "results": body_type(study.result),
    }
    return {file: schema_of(kind, f"{name}: {file}") for file, kind in files.items()}
