"""The studies there are. A new one is a folder below ``studies/`` and a line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esscher.core.codec import as_record
from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import limits, read_json
from esscher.core.validation import as_path
from esscher.runs.folder import CONFIG, CellRun, read_about
from esscher.runs.result import Header, Result, result_from
from esscher.runs.study import Study, finish, stored_study

#: Command, function and kind of run, and where the study is defined.
STUDIES = {
    "paper": "esscher.studies.paper.study:PaperStudy",
    "probe": "esscher.studies.probe.study:ProbeStudy",
    "sweep": "esscher.studies.sweep.study:SweepStudy",
    "deep": "esscher.studies.deep.study:DeepStudy",
    "deep-stack": "esscher.studies.deep.study:DeepStackStudy",
    "sparse": "esscher.studies.sparse.study:SparseStudy",
    "sparse-law": "esscher.studies.sparse.study:SparseLawStudy",
    "plan": "esscher.studies.plan.study:PlanStudy",
    "context": "esscher.studies.context.study:ContextStudy",
    "tails": "esscher.studies.tails.study:TailsStudy",
    "domains": "esscher.studies.domains.study:DomainsStudy",
}


@cache
def study_named(name: str, place: str = "") -> type[Study[Any]]:
    """Return a study by its name.

    Parameters
    ----------
    name
        A key of ``STUDIES``.
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
    module, _, title = STUDIES[name].partition(":")
    study: type[Study[Any]] = getattr(import_module(module), title)
    return study


def part_of(name: str, part: str) -> Any:
    """Return the module ``view`` or ``charts`` beside that of a study; None if it has none."""
    module = f"{STUDIES[name].partition(':')[0].rpartition('.')[0]}.{part}"
    return import_module(module) if find_spec(module) is not None else None


def load(path: str | Path) -> Result[Any]:
    """Read a result: the directory of a run, complete or not, or a file that ``save`` wrote.

    Raises
    ------
    InputError
        If there is neither, it is of an unknown kind, or it is damaged.
    """
    place = as_path(path, "path")
    if not place.exists():
        raise InputError(f"{place} does not exist; give the directory of a run, or a saved result")
    if place.is_file():
        return result_of(read_json(place, limits.RESULTS), str(place))
    about, config = read_about(place), str(place / CONFIG)
    kind = study_named(about.kind, config)
    study = stored_study(kind, about.configuration | about.request, config)
    return finish(CellRun(place, about, kind.cell), study)


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
