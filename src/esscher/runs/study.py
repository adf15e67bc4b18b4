"""A study: options, cells, and how cells become a result. How one is run is written here, once.

A study is a frozen dataclass. Its fields are the arguments of a function (``esscher.tails``), the
options of a command (``esscher tails``) and the configuration of a run on disk. It names its
cells, makes itself ready (reads the model and the text), and puts cells together.

What happens in between is the same for all: options are checked before anything is loaded, the run
directory is opened or resumed under a lock, missing cells are computed by this process, by worker
processes or by a cluster and stored as they come, and the result is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from inspect import Signature, cleandoc
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
)

import msgspec

from esscher.core.codec import Record, as_record, as_tree
from esscher.core.errors import InputError
from esscher.core.options import LISTS, AtMost, checked, option, options_of, plain_type
from esscher.runs.executors import CellExecutor, SchedulerLost, Task, chosen_executor, compute_cells
from esscher.runs.folder import LOG, Cell, CellRun, check_run_place, open_run, run_in_memory
from esscher.runs.progress import Reporter
from esscher.runs.result import Result, read_result

R = TypeVar("R", bound="Result[Any]")
R_co = TypeVar("R_co", bound="Result[Any]", covariant=True)
P = ParamSpec("P")


class Interrupted(KeyboardInterrupt):
    """A study was stopped. What it had stored is kept, and the same call resumes it.

    Attributes
    ----------
    done, unit
        How many of what were there.
    folder
        Directory of the run; None if there is none.
    reason
        Why it stopped, if not by Ctrl-C.
    """

    def __init__(self, done: int, unit: str, folder: Path | None, reason: str = "") -> None:
        super().__init__(f"{reason or 'stopped'} after {done} {unit}")
        self.done, self.unit, self.folder, self.reason = done, unit, folder, reason


class Work(Protocol):
    """A study that is ready: its model is loaded, its text is read."""

    @property
    def study(self) -> Study[Any]:
        """The study with nothing left open; records stand for model and text."""
        ...

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield tasks by the name of their cell; those of one batch are stored before the next.

        Cells that are stored already may be among them: they are not computed again. There may be
        more cells than the study names: those that depend on what earlier ones found.
        """
        ...


@dataclass(frozen=True, eq=False)
class OneBatch:
    """Work whose cells do not need each other: all tasks at once, by the name of their cell."""

    study: Study[Any]
    tasks: Mapping[str, Task]

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield all tasks."""
        yield self.tasks


@dataclass(frozen=True, kw_only=True)
class Study(ABC, Generic[R_co]):
    """Base of all studies: how to run it."""

    #: Command, kind of run, and function (with ``_`` for ``-``).
    name: ClassVar[str]
    #: What a progress bar counts.
    unit: ClassVar[str] = "cells"
    #: What a cell says besides its table: a record, or a union of records with tags.
    cell: ClassVar[Any]
    #: What comes of it.
    result: ClassVar[type[Result[Any]]]
    #: The question that it answers: the first line that a terminal shows.
    asks: ClassVar[str] = ""
    #: The command that goes on from here: the last line that a terminal shows.
    next_step: ClassVar[str] = ""
    #: Lines that ``--help`` shows.
    examples: ClassVar[tuple[str, ...]] = ()
    #: Whether what is printed leaves something out, which ``--all`` prints.
    abridged: ClassVar[bool] = False
    #: Whether the result is a file of its own, which ``--save`` writes.
    saves: ClassVar[bool] = False
    #: Options that say what is studied: ``--help`` has them first.
    first: ClassVar[tuple[str, ...]] = ()
    #: Subjects that another study takes, and its name.
    instead: ClassVar[Mapping[str, str]] = {}

    out: Annotated[
        Path | None,
        option(
            "Store the run in this directory; run the same command again to resume it.",
            stored=False,
        ),
    ] = None
    workers: Annotated[
        int, option("Worker processes on this machine.", stored=False, ge=1, le=4096)
    ] = 1
    executor: Annotated[
        Any,  # a CellExecutor
        option(
            "Or a cluster: a ``distributed.Client``, or :func:`esscher.connect_cluster`; or an "
            "executor of ``concurrent.futures``.",
            stored=False,
            command=None,
        ),
    ] = None
    progress: Annotated[
        bool | None,
        option(
            "Whether to draw a bar; by default if standard error is a terminal.",
            stored=False,
            command=None,
        ),
    ] = None

    # -- written by every study

    @abstractmethod
    def cells(self) -> Sequence[str]:
        """Names of all cells of a study that is filled in, as far as they are known beforehand."""

    @abstractmethod
    def filled(self) -> Study[R_co]:
        """Return the study with the values of all options that were left out, checked.

        Nothing heavy is imported or read for it.
        """

    @abstractmethod
    def prepare(self, executor: CellExecutor) -> Work:
        """Read what the study is about."""

    @abstractmethod
    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> R_co:
        """Put the cells that are there together."""

    # -- the same for all

    def run(self) -> R_co:
        """Compute what is missing, and return the result.

        Raises
        ------
        InputError
            For options that cannot be used, before anything is loaded; a directory of another run;
            a damaged cell; cells that no worker could compute.
        Interrupted
            On Ctrl-C (it is a ``KeyboardInterrupt``), or if the scheduler of a cluster is lost.
        """
        asked = self.checked()
        with chosen_executor(asked.workers, asked.executor) as executor:
            ready = asked.filled()
            called = {o.key: o.name for o in options_of(type(self))}
            check_run_place(asked.out, self.name, ready.cell_configuration(known=True), called)
            work = ready.prepare(executor)
            study = work.study
            with study.opened(asked.out) as run:
                try:
                    log = run.folder / LOG if run.on_disk else None
                    with Reporter(log, asked.progress, self.unit) as reporter:
                        _compute(work, run, reporter, executor)
                except KeyboardInterrupt as stop:
                    reason = str(stop) if isinstance(stop, SchedulerLost) else ""
                    done = len(set(run.names()) - self.beside)
                    raise Interrupted(done, self.unit, asked.out, reason) from None
                found: R_co = finish(run, study, write=run.on_disk)
                return found

    @contextmanager
    def opened(self, out: Path | None) -> Iterator[CellRun]:
        """Open the run of a study with nothing left open: in a directory, or in memory."""
        about = self.name, self.subject, self.cell_configuration(), self.request()
        with run_in_memory(*about) if out is None else open_run(out, *about) as run:
            yield run.typed(self.cell)

    def checked(self) -> Self:
        """Return the study with every option of the type it is described by."""
        values = {
            o.name: checked(o, getattr(self, o.name))
            for o in options_of(type(self))
            if o.name not in self.sources and o.type is not Any
        }
        return replace(self, **values)

    @property
    def subject(self) -> str:
        """Name of what is measured, for lists of runs."""
        return self.name

    def configuration(self) -> dict[str, Any]:
        """Return all that the result is a function of, as JSON holds it."""
        return self.cell_configuration() | self.request()

    def check_stored(self, configuration: dict[str, Any], place: str) -> None:
        """Refuse a stored configuration that no such study has."""
        for name in self.configuration():
            if name not in configuration:
                raise InputError(f"{place} is damaged: configuration has no {name!r}")
        as_record(configuration, configuration_type(type(self)), place)

    def cell_configuration(self, known: bool = False) -> dict[str, Any]:
        """Return all that the cells are a function of: it stays when a run is resumed.

        Parameters
        ----------
        known
            Leave out what is known only when model and text have been read.
        """
        left_out = self.sources | self.unsettled if known else frozenset()
        stored = [
            o
            for o in options_of(type(self))
            if o.stored and not o.changeable
            if not (o.added and getattr(self, o.name) == o.default)
        ]
        return dict(
            as_tree({o.key: getattr(self, o.name) for o in stored if o.name not in left_out})
        )

    @property
    def unsettled(self) -> frozenset[str]:
        """Options that are settled when the text has been read: it may have less than a default."""
        return frozenset(
            o.name
            for o in options_of(type(self))
            if isinstance(value := getattr(self, o.name), AtMost)
            or (value is None and not o.takes_none)
        )

    def request(self) -> dict[str, Any]:
        """Return the options that may change when a run is resumed."""
        changeable = [o for o in options_of(type(self)) if o.stored and o.changeable]
        return dict(as_tree({o.key: getattr(self, o.name) for o in changeable}))

    def stored(self, run: CellRun) -> dict[str, Cell]:
        """Return the cells of a run that the result is made of, as far as they are there."""
        return {name: cell for name in self.cells() if (cell := run.read(name)) is not None}

    #: Options that name something to be read; in a run, a record of it stands in their place.
    sources: ClassVar[frozenset[str]] = frozenset()
    #: Cells that are not counted: something that others are compared with.
    beside: ClassVar[frozenset[str]] = frozenset()
    #: Options whose default on the command line is another one.
    command_defaults: ClassVar[Mapping[str, Any]] = {}


def stored_study(study: type[Study[R]], configuration: Any, place: str) -> Study[R]:
    """Return the study that a stored configuration stands for.

    Raises
    ------
    InputError
        If it is not what such a study has.
    """
    fields = as_record(configuration, configuration_type(study), place)
    return study(**{o.name: getattr(fields, o.key) for o in options_of(study) if o.stored})


@cache
def configuration_type(study: type[Study[Any]]) -> type[Any]:
    """Return the record of a study's configuration: its stored options, all of them definite."""
    fields = [
        (o.key, o.annotation, o.default) if o.changeable or o.added else (o.key, o.annotation)
        for o in options_of(study)
        if o.stored
    ]
    name = study.__name__.removesuffix("Study") + "Configuration"
    return msgspec.defstruct(name, fields, bases=(Record,), frozen=True, kw_only=True)


def finish(run: CellRun, study: Study[R], write: bool = False) -> R:
    """Put the cells of a run together; results that are there already are not computed again."""
    cells = study.stored(run)
    stored: R | None = read_result(run, study)
    if stored is not None and stored.cells == len(cells):
        return stored.with_cells(cells, run)
    result = study.assemble(cells, run)
    if write:
        run.write_results(result.to_dict())
    return result


def function_of(study: Callable[P, Study[R]]) -> Callable[P, R]:
    """Return the function that runs a study: ``tails(...)`` for ``TailsStudy(...).run()``."""
    kind: Any = study
    name, signature = kind.name.replace("-", "_"), _signature(kind)

    def run(*arguments: P.args, **options: P.kwargs) -> R:
        _check_arguments(name, signature, arguments, options)
        return study(*arguments, **options).run()

    run.__name__ = run.__qualname__ = name
    run.__module__ = kind.__module__.rpartition(".")[0]
    run.__doc__ = _documentation(kind)
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _check_arguments(
    name: str, signature: Signature, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    """Refuse arguments that the function does not have, with the nearest that it has."""
    known = list(signature.parameters)
    for given in options:
        if given not in known:
            near = get_close_matches(given, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise TypeError(f"{name}() has no argument {given!r}; {remedy}")
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None


def _signature(study: type[Study[Any]]) -> Signature:
    parameters = []
    for name, parameter in Signature.from_callable(study).parameters.items():
        found = next(o for o in options_of(study) if o.name == name)
        kind = Any if name in study.sources else plain_type(found.type)
        if found.metavar in LISTS:
            kind = kind | str
        if found.default is None and kind is not Any:
            kind = kind | None
        parameters.append(parameter.replace(annotation=kind))
    return Signature(parameters, return_annotation=study.result)


def _documentation(study: type[Study[Any]]) -> str:
    """The study's docstring, and its options as parameters."""
    by_name = {o.name: o for o in options_of(study)}
    listed = "".join(
        f"{name}\n    {by_name[name].help}\n" for name in Signature.from_callable(study).parameters
    )
    text = cleandoc(study.__doc__ or "")
    return f"{text}\n\nParameters\n----------\n{listed}"


def _compute(work: Work, run: CellRun, reporter: Reporter, executor: CellExecutor) -> None:
    names = dict.fromkeys(work.study.cells())
    reporter.expect(len(names), len(names) - len(run.missing(list(names))))
    for batch in work.batches(replace(run, doing=reporter.doing)):
        if not batch.keys() <= names.keys():
            names |= dict.fromkeys(batch)
            reporter.expect(len(names), len(names) - len(run.missing(list(names))))
        compute_cells(run, batch, reporter, executor)
