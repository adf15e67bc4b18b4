"""Commands of studies, built from their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from inspect import cleandoc, get_annotations
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click

from esscher.cli.cluster import chosen_cluster
from esscher.cli.endings import finish, save_figure
from esscher.cli.options import (
    check_figure,
    check_output,
    geometric_sizes,
    named_sources,
    numbers,
    plain_console,
    whole_numbers,
)
from esscher.cli.stopping import resumable
from esscher.core.options import Option, options_of
from esscher.runs.registry import part_of, study_named
from esscher.runs.result import Result
from esscher.runs.study import Study
from esscher.show.tables import as_table

#: Form of options that are given several times, each with a name of its own.
NAMED = "NAME=SOURCE"
#: Options that all commands of studies have, besides those of the study.
OPTIONS: tuple[click.Parameter, ...] = (
    click.Option(
        ["--scheduler"],
        metavar="ADDRESS",
        help="Run on this Dask cluster, such as tcp://host:8786 or tls://host:8786.",
    ),
    click.Option(
        ["--cluster"],
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Start a cluster that this file describes (SLURM and others).",
    ),
    click.Option(
        ["--figure"], type=click.Path(path_type=Path), help="Main figure: .png, .svg or .pdf."
    ),
    click.Option(["--save"], type=click.Path(path_type=Path), help="File for the result, as JSON."),
    click.Option(["--all", "everything"], is_flag=True, help="Print everything, not the worst."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
)


def study_command(name: str) -> click.Command:
    """Build the command of a study."""
    study = study_named(name)
    parameters = [_parameter(option) for option in _ordered(study)]
    return click.Command(
        name,
        callback=_callback(study),
        params=[p for p in parameters if p is not None] + list(OPTIONS),
        help=_help(study),
    )


def print_result(found: Result[Any], everything: bool = False) -> None:
    """Print a result for people: as its study does, or the headline and the tables."""
    console = plain_console()
    try:
        own = part_of(found.study.name, "printed")
    except ModuleNotFoundError as error:
        if not (error.name or "").endswith(".printed"):
            raise
        console.say(found.headline, "bold")
        for frame in found.shown():
            console.print(as_table(frame))
        return
    own.print_result(found, console, everything)


def _help(study: type[Study[Any]]) -> str:
    """The study's docstring, how to resume, and examples as they are."""
    subjects = [
        f"{option.metavar}: {option.help}" for option in options_of(study) if _is_argument(option)
    ]
    resumes = "Stopped or killed, the same command with --out resumes."
    examples = "\n".join(["\b", "Examples:", *(f"  {line}" for line in study.examples)])
    return "\n\n".join([cleandoc(study.__doc__ or ""), *subjects, resumes, examples])


def _is_argument(option: Option) -> bool:
    return option.default is MISSING and option.metavar not in (None, NAMED)


def _ordered(study: type[Study[Any]]) -> list[Option]:
    """Its subject, its own options, then those that all studies have."""
    own = get_annotations(study)
    first = (*study.sources, "column")
    return sorted(options_of(study), key=lambda o: (o.name not in first, o.name not in own))


def _parameter(option: Option) -> click.Parameter | None:
    if option.command is None:
        return None
    kind = _plain_type(option.type)
    flag = f"--{(option.command or option.name).replace('_', '-')}"
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if option.metavar == NAMED:
        return click.Option([flag, option.name], multiple=True, **settings)
    if _is_argument(option):
        return click.Argument([option.name], metavar=option.metavar)
    if kind is bool:
        both = f"{flag}/--no-{flag[2:]}" if option.default else flag
        return click.Option([both, option.name], is_flag=True, default=option.default, **settings)
    if option.default is MISSING:
        settings["required"] = True
    else:
        settings |= {"default": option.default, "show_default": option.default is not None}
    if get_origin(kind) is Literal:
        settings["type"] = click.Choice([str(value) for value in get_args(kind)])
    elif kind is Path:
        settings["type"] = click.Path(path_type=Path)
    elif kind in (int, float):
        settings["type"] = kind
    return click.Option([flag, option.name], **settings)


def _plain_type(kind: Any) -> Any:
    """The type of a value that is given: without bounds, without None."""
    if get_origin(kind) is Annotated:
        return _plain_type(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _plain_type(next(part for part in get_args(kind) if part is not NoneType))
    return kind


def _callback(study: type[Study[Any]]) -> Callable[..., None]:
    lists = {o.name: o for o in options_of(study) if o.metavar in ("LIST", "A:B:K", NAMED)}

    def call(
        *,
        scheduler: str | None,
        cluster: Path | None,
        figure: Path | None,
        save: Path | None,
        everything: bool,
        as_json: bool,
        **options: Any,
    ) -> None:
        check_figure(figure)
        check_output(save, "--save")
        for name, option in lists.items():
            options[name] = _listed(option, options[name])
        out = options["out"]
        workers = options.pop("workers")
        with resumable(out), chosen_cluster(scheduler, cluster, workers) as executor:
            found = study(**options, executor=executor).run()
        save_figure(study.name, found, figure)
        if save is not None:
            found.save(save)
        finish(
            found.to_dict,
            lambda: print_result(found, everything),
            as_json,
            out,
            {"Figure": figure, "Result": save},
        )

    return call


def _listed(option: Option, text: Any) -> Any:
    """The values that an option such as ``0-5``, ``64:2048:6`` or ``wiki=a.txt`` stands for."""
    if text is None:
        return None
    flag = f"--{(option.command or option.name).replace('_', '-')}"
    if option.metavar == NAMED:
        return named_sources(text, flag)
    if option.metavar == "A:B:K":
        return geometric_sizes(text, option=flag)
    whole = _plain_type(get_args(_plain_type(option.type))[0]) is int
    return whole_numbers(text, flag) if whole else numbers(text, flag)
