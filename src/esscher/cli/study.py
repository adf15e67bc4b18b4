"""Commands of studies, built from their options, and the options of a synthetic head."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING
from functools import partial
from inspect import cleandoc, get_annotations
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click

from esscher.cli.endings import finish, resumable
from esscher.cli.printing import (
    BlockCommand,
    check_figure,
    check_output,
    named_sources,
    plain_console,
    say,
)
from esscher.core.errors import InputError
from esscher.core.options import LISTS, Option, listed, numbers, options_of
from esscher.core.validation import as_dim
from esscher.math.heads import WeightHead, law_head
from esscher.math.laws import STANDARD_LAWS, standard_law
from esscher.runs.executors import chosen_executor
from esscher.runs.model_study import WithModel
from esscher.runs.registry import has_part, part_of, study_named
from esscher.runs.result import Result
from esscher.runs.study import Study
from esscher.show.tables import as_table

HEAD_OPTIONS = (
    click.option(
        "--horizon", type=float, help="Attention horizon H, with all singular values equal."
    ),
    click.option(
        "--dim", type=int, help="Dimension of the tokens (default: length of the spectrum, or 1)."
    ),
    click.option(
        "--spectrum",
        metavar="LIST",
        help="Singular values of M instead of a horizon, such as 1.5,0.7,0.2.",
    ),
    click.option(
        "--tau", metavar="LIST", help="Mean tilt; a single number is along the first axis."
    ),
    click.option(
        "--df",
        type=float,
        default=5.0,
        show_default=True,
        help="Degrees of freedom of the law student.",
    ),
)


#: What describes a head: the law, and these options.
HEAD = ("law", "horizon", "dim", "spectrum", "tau", "df")


def head_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that :func:`synthetic_head` reads, in this order, to a command."""
    for option in reversed(HEAD_OPTIONS):
        command = option(command)
    return command


def head_parameters() -> list[click.Parameter]:
    """Return LAW and the options that :func:`synthetic_head` reads, for a command that is built."""

    def described() -> None:
        """Hold the options."""

    held: Any = head_options(described)
    law = click.Argument(["law"], metavar="LAW")
    return [law, *reversed(held.__click_params__)]


def synthetic_head(
    law: str,
    horizon: float | None,
    dim: int | None,
    spectrum: str | None,
    tau: str | None,
    df: float,
) -> WeightHead:
    """Build the head that the options describe, over a standard law."""
    if law not in STANDARD_LAWS:
        raise InputError(f"there is no law {law!r}; choose from {', '.join(STANDARD_LAWS)}")
    if (horizon is None) == (spectrum is None):
        raise InputError("give either --horizon or --spectrum, such as --horizon 1.5")
    values = None if spectrum is None else numbers(spectrum, "--spectrum")
    size = as_dim(dim, "--dim") if dim is not None else (1 if values is None else len(values))
    if values is not None and len(values) != size:
        raise InputError(f"--dim is {size} but --spectrum has {len(values)} values")
    return law_head(
        standard_law(law, size, df=df),
        horizon=horizon,
        spectrum=values,
        tau=None if tau is None else numbers(tau, "--tau"),
    )


#: Form of options that are given several times, each with a name.
NAMED = "NAME=SOURCE"
#: Options that all commands of studies have, besides those of the study.
OPTIONS: tuple[click.Parameter, ...] = (
    click.Option(
        ["--scheduler"],
        metavar="ADDRESS",
        help="Run on this Dask cluster, such as tcp://host:8786 or tls://host:8786.",
    ),
    click.Option(
        ["--figure"],
        type=click.Path(path_type=Path),
        help="Draw the main figure into this file: .png, .svg or .pdf.",
    ),
    click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of tables."),
)
SAVE = click.Option(
    ["--save"],
    type=click.Path(path_type=Path),
    help="Write the result into this file, as JSON.",
)
EVERYTHING = click.Option(
    ["--all", "everything"], is_flag=True, help="Print all rows, not only the first."
)


def study_command(name: str) -> click.Command:
    """Build the command of a study."""
    study = study_named(name)
    head = head_parameters() if _has_head(study) else []
    parameters = [_parameter(option, study) for option in _ordered(study)]
    return BlockCommand(
        name,
        callback=_callback(study),
        params=[
            *head,
            *(p for p in parameters if p is not None),
            *OPTIONS,
            *([SAVE] if study.saves else []),
            *([EVERYTHING] if study.abridged else []),
        ],
        help=_help(study),
    )


def print_result(found: Result[Any], everything: bool = False) -> None:
    """Print a result for people: the question, the answer, and what its study prints, or tables."""
    console = plain_console()
    if found.study.asks:
        console.say(found.study.asks)
    console.say(found.answer(), "bold")
    if isinstance(found.study, WithModel):
        console.say_note(found.study.model_record.note)
    if has_part(found.study.name, "printed"):
        more = [everything] if found.study.abridged else []
        part_of(found.study.name, "printed").print_result(found, console, *more)
        return
    for frame in found.shown():
        console.print(as_table(frame))


def _help(study: type[Study[Any]]) -> str:
    """The study's docstring, how to resume, and examples as they are."""
    subjects = [
        f"{option.metavar}: {_said(option)}"
        for option in options_of(study)
        if _is_argument(option) or (option.metavar or "").endswith("...")
    ]
    if _has_head(study):
        subjects.insert(0, f"LAW: Law of the tokens: {', '.join(STANDARD_LAWS)}.")
    resumes = "With --out a run can be interrupted: run the same command again to resume."
    examples = "\n".join(["\b", "Examples:", *(f"  {line}" for line in study.examples)])
    return "\n\n".join([cleandoc(study.__doc__ or ""), *subjects, resumes, examples])


def _said(option: Option) -> str:
    """What an option means on the command line: not what it may be in Python besides."""
    return re.sub(r"; in Python [^;]*\.$", ".", option.help)


def _is_argument(option: Option) -> bool:
    return option.default is MISSING and option.metavar not in (None, NAMED, *LISTS)


def _has_head(study: type[Study[Any]]) -> bool:
    """Whether it is about a head, which the command line describes by a law and a few numbers."""
    return "head" in study.sources


def _ordered(study: type[Study[Any]]) -> list[Option]:
    """Its subject, its own options, then those that all studies have."""
    own = get_annotations(study)
    return sorted(options_of(study), key=lambda o: (o.name not in study.first, o.name not in own))


def _parameter(option: Option, study: type[Study[Any]]) -> click.Parameter | None:
    if option.command is None:
        return None
    if option.name == "head" and _has_head(study):
        return None
    default = study.command_defaults.get(option.name, option.default)
    kind = _plain_type(option.type)
    flag = option.flag
    settings: dict[str, Any] = {"help": _said(option), "metavar": option.metavar}
    if option.metavar == NAMED:
        return click.Option([flag, option.name], multiple=True, **settings)
    if _is_argument(option):
        return click.Argument([option.name], metavar=option.metavar)
    if option.metavar and option.metavar.endswith("..."):
        return click.Argument([option.name], metavar=f"[{option.metavar}]", nargs=-1)
    if kind is bool:
        both = f"{flag}/--no-{flag[2:]}" if default else flag
        return click.Option([both, option.name], is_flag=True, default=default, **settings)
    if option.default is MISSING:
        settings["required"] = True
    else:
        if option.metavar in LISTS and default is not None:
            default = ",".join(f"{value:g}" for value in default)
        elif isinstance(default, tuple):
            default = ",".join(default) or None  # names
        settings |= {"default": default, "show_default": default is not None}
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
    lists = {o.name: o for o in options_of(study) if o.metavar in (*LISTS, NAMED)}

    def call(
        *,
        scheduler: str | None,
        figure: Path | None,
        as_json: bool,
        save: Path | None = None,
        everything: bool = False,
        **options: Any,
    ) -> None:
        check_figure(figure)
        check_output(save, "--save")
        for name, option in lists.items():
            if name in options:
                options[name] = _listed(option, options[name])
        if _has_head(study):
            options["head"] = synthetic_head(**{name: options.pop(name) for name in HEAD})
        out = options["out"]
        workers = options.pop("workers")
        to_user = partial(say, err=True)
        with resumable(out), chosen_executor(workers, scheduler=scheduler, say=to_user) as executor:
            found = study(**options, executor=executor).run()
        if figure is not None:
            found.plot().save(figure)
        if save is not None:
            found.save(save)
        finish(
            found.to_dict,
            lambda: print_result(found, everything),
            as_json,
            out,
            {"Figure": figure, "Result": save},
            study.next_step,
        )

    return call


def _listed(option: Option, text: Any) -> Any:
    """The values that an option such as ``0-5``, ``64:2048:6`` or ``wiki=a.txt`` stands for."""
    if text is None:
        return None
    flag = option.flag
    if option.metavar == NAMED:
        return named_sources(text, flag)
    return listed(option, text, flag)
