"""Commands of studies, built from their options, and the options of a synthetic head."""

from __future__ import annotations

import re
from dataclasses import MISSING
from inspect import cleandoc, get_annotations
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from esscher.cli.printing import (
    BlockCommand,
    check_figure,
    check_output,
    finish,
    named_sources,
)
from esscher.core.errors import InputError
from esscher.core.options import LISTS, Option, listed, numbers, options_of, plain_type
from esscher.core.validation import STANDARD_LAWS, as_dim
from esscher.runs.executors import chosen_executor
from esscher.runs.registry import study_named
from esscher.runs.result import Result
from esscher.show.table_view import print_tables
from esscher.show.tables import PlainConsole

if TYPE_CHECKING:
    from esscher.math.heads import WeightHead

#: What describes a head besides its law, in the order of the arguments of :func:`synthetic_head`.
HEAD_OPTIONS = (
    click.Option(
        ["--horizon"], type=float, help="Attention horizon H, with all singular values equal."
    ),
    click.Option(
        ["--dim"], type=int, help="Dimension of the tokens (default: length of the spectrum, or 1)."
    ),
    click.Option(
        ["--spectrum"],
        metavar="LIST",
        help="Singular values of M instead of a horizon, such as 1.5,0.7,0.2.",
    ),
    click.Option(
        ["--tau"], metavar="LIST", help="Mean tilt; a single number is along the first axis."
    ),
    click.Option(
        ["--df"],
        type=float,
        default=5.0,
        show_default=True,
        help="Degrees of freedom of the law student.",
    ),
)
#: Names of what describes a head.
HEAD = ("law", "horizon", "dim", "spectrum", "tau", "df")


def synthetic_head(
    law: str,
    horizon: float | None,
    dim: int | None,
    spectrum: str | None,
    tau: str | None,
    df: float,
) -> WeightHead:
    """Build the head that the options describe, over a standard law."""
    from esscher.math.heads import law_head
    from esscher.math.laws import standard_law

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


def study_command(name: str) -> click.Command:
    """Build the command of a study: its subject, its own options, then those that all have."""
    study = study_named(name)
    annotated = get_annotations(study)
    options = sorted(
        options_of(study), key=lambda o: (o.name not in study.first, o.name not in annotated)
    )
    head = "head" in study.sources  # which the command line describes by a law and a few numbers
    if head:
        options = [option for option in options if option.name != "head"]
    default = study.command_defaults
    parameters = [
        *([click.Argument(["law"], metavar="LAW"), *HEAD_OPTIONS] if head else []),
        *(
            _parameter(option, default.get(option.name, option.default))
            for option in options
            if option.command is not None
        ),
        *OPTIONS,
        *([SAVE] if study.saves else []),
    ]
    paragraphs = [cleandoc(study.__doc__ or "")]
    if head:
        paragraphs.append(f"LAW: Law of the tokens: {', '.join(STANDARD_LAWS)}.")
    for option in options:
        if _is_argument(option) or (option.metavar or "").endswith("..."):
            paragraphs.append(f"{option.metavar}: {_help(option)}")
    paragraphs.append("With --out a run can be interrupted: run the same command again to resume.")
    paragraphs.append("\n".join(["\b", "Examples:", *(f"  {line}" for line in study.examples)]))
    lists = {o.name: o for o in options if o.metavar in (*LISTS, NAMED)}

    def call(
        *,
        scheduler: str | None,
        figure: Path | None,
        as_json: bool,
        save: Path | None = None,
        **values: Any,
    ) -> None:
        check_figure(figure)
        check_output(save, "--save")
        for name, option in lists.items():
            if values[name] is not None:
                if option.metavar == NAMED:
                    values[name] = named_sources(values[name], option.flag)
                else:
                    values[name] = listed(option, values[name], option.flag)
        if head:
            values["head"] = synthetic_head(**{name: values.pop(name) for name in HEAD})
        out = values["out"]
        workers = values.pop("workers")
        with chosen_executor(workers, scheduler=scheduler) as executor:
            result = study(**values, executor=executor).run()
        if figure is not None:
            result.plot().save(figure)
        if save is not None:
            result.save(save)
        finish(
            result.to_dict,
            lambda: print_result(result),
            as_json,
            out,
            {"Figure": figure, "Result": save},
            study.next_step,
        )

    return BlockCommand(name, callback=call, params=parameters, help="\n\n".join(paragraphs))


def print_result(result: Result[Any]) -> None:
    """Print a result for people: the question, the answer, and its tables."""
    console = PlainConsole()
    if result.study.asks:
        console.say(result.study.asks)
    console.say(result.headline, "bold")
    note = getattr(result.setup.records.get("model"), "note", "")
    if note:
        console.say(f"Note: {note}.")
    if result.cells:
        print_tables(result, console)


def _help(option: Option) -> str:
    """The type of an option on the command line, without its alternatives in Python."""
    return re.sub(r"; in Python [^;]*\.$", ".", option.help)


def _is_argument(option: Option) -> bool:
    return option.default is MISSING and option.metavar not in (None, NAMED, *LISTS)


def _parameter(option: Option, default: Any) -> click.Parameter:
    """Return an option of a study as one of its command."""
    flag, metavar = option.flag, option.metavar
    settings: dict[str, Any] = {"help": _help(option), "metavar": metavar}
    if metavar == NAMED:
        return click.Option([flag, option.name], multiple=True, **settings)
    if _is_argument(option):
        return click.Argument([option.name], metavar=metavar)
    if metavar and metavar.endswith("..."):
        return click.Argument([option.name], metavar=f"[{metavar}]", nargs=-1)
    kind = plain_type(option.type)
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        kind = str if str in parts else parts[0]  # numbers in words too, such as 64MB
    if kind is bool:
        both = f"{flag}/--no-{flag[2:]}" if default else flag
        return click.Option([both, option.name], is_flag=True, default=default, **settings)
    if option.default is MISSING:
        settings["required"] = True
    else:
        if metavar in LISTS and default is not None:
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
