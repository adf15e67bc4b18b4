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
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from inspect import Signature, cleandoc
from pathlib import Path
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    get_args,
)

import msgspec

from esscher.core.atomic import write_atomically
from esscher.core.codec import Record, as_json, as_record, as_tree
from esscher.core.errors import InputError
from esscher.core.options import LISTS, AtMost, checked, option, options_of, plain_type
from esscher.runs.executors import CellExecutor, Task, chosen_executor
from esscher.runs.folder import (
    LOG,
    RESULTS,
    Cell,
    CellRun,
    check_run_place,
    open_run,
)
from esscher.runs.old_result import Result, read_stored, result_from
from esscher.runs.progress import Reporter
from esscher.runs.study import Interrupted

R = TypeVar("R", bound="Result[Any]")
R_co = TypeVar("R_co", bound="Result[Any]", covariant=True)
P = ParamSpec("P")


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
            "Or a cluster: a ``distributed.Client``; or an executor of ``concurrent.futures``.",
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
            a damaged cell; cells that no worker could compute, after all others are stored.
        Interrupted
            On Ctrl-C (it is a ``KeyboardInterrupt``), or if the scheduler of a cluster is lost.
        """
        options = self.checked()
        with chosen_executor(options.workers, options.executor) as executor:
            ready = options.filled()
            called = {o.key: o.name for o in options_of(type(self))}
            check_run_place(options.out, self.name, ready.cell_configuration(known=True), called)
            work = ready.prepare(executor)
            study = work.study
            with study.opened(options.out) as run:
                log = run.folder / LOG if run.on_disk else None
                try:
                    with Reporter(log, options.progress, self.unit) as reporter:
                        _compute(work, run, reporter, executor)
                except KeyboardInterrupt as stop:
                    reason = stop.reason if isinstance(stop, Interrupted) else str(stop)
                    done = len(set(run.names()) - self.auxiliary)
                    raise Interrupted(done, self.unit, options.out, reason) from None
                result: R_co = finish(run, study, write=run.on_disk)
                return result

    def opened(self, out: Path | None) -> AbstractContextManager[CellRun]:
        """Open the run of a study with nothing left open: in a directory, or in memory."""
        configuration, request = self.cell_configuration(), self.request()
        return open_run(out, self.name, self.subject, configuration, request, self.cell)

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

    def cell_configuration(self, known: bool = False) -> dict[str, Any]:
        """Return all that the cells are a function of: it stays when a run is resumed.

        Parameters
        ----------
        known
            Leave out what is known only when model and text have been read.
        """
        stored: dict[str, Any] = {}
        for o in options_of(type(self)):
            value = getattr(self, o.name)
            if not o.stored or o.changeable or (o.added and value == o.default):
                continue
            # a text may have less than a default; what is None yet depends on the model
            takes_none = o.type is Any or NoneType in get_args(o.type)
            settled = not isinstance(value, AtMost) and (value is not None or takes_none)
            if not known or (settled and o.name not in self.sources):
                stored[o.key] = value
        return dict(as_tree(stored))

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
    auxiliary: ClassVar[frozenset[str]] = frozenset()
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
    """Put the cells of a run together; results that are there already are not computed again.

    Raises
    ------
    InputError
        If a cell or the stored result is damaged.
    """
    cells, path = study.stored(run), run.folder / RESULTS
    stored: R | None = None
    try:
        tree, header = read_stored(run)
        if header is not None:
            wanted = study.configuration()
            for name in wanted:
                if name not in header.configuration:
                    raise InputError(f"{path} is damaged: configuration has no {name!r}")
            as_record(header.configuration, configuration_type(type(study)), str(path))
            if header.configuration == wanted:
                stored = result_from(tree, study, str(path), run.folder)
    except InputError as error:
        reason = str(error)
        reason = reason if "is damaged" in reason else f"{path} is damaged ({reason})"
        raise InputError(
            f"{reason}; delete {RESULTS} and run the same command again, which recomputes it "
            "from the parts"
        ) from error
    if stored is not None and stored.cells == len(cells):
        return stored.with_cells(cells, run)
    result = study.assemble(cells, run)
    if write:
        write_atomically(run.folder / RESULTS, as_json(result.to_dict()))
    return result


def function_of(study: Callable[P, Study[R]]) -> Callable[P, R]:
    """Return the function that runs a study: ``tails(...)`` for ``TailsStudy(...).run()``."""
    kind: Any = study
    name = kind.name.replace("-", "_")
    options = {o.name: o for o in options_of(kind)}
    parameters = []
    for parameter in Signature.from_callable(kind).parameters.values():
        option = options[parameter.name]
        hint = Any if parameter.name in kind.sources else plain_type(option.type)
        if option.metavar in LISTS:
            hint = hint | str
        if option.default is None and hint is not Any:
            hint = hint | None
        parameters.append(parameter.replace(annotation=hint))
    signature = Signature(parameters, return_annotation=kind.result)
    known = list(signature.parameters)

    def run(*arguments: P.args, **given: P.kwargs) -> R:
        for argument in given:
            if argument not in known:
                near = get_close_matches(argument, known, n=1)
                remedy = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
                raise TypeError(f"{name}() has no argument {argument!r}; {remedy}")
        try:
            signature.bind(*arguments, **given)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        return study(*arguments, **given).run()

    run.__name__ = run.__qualname__ = name
    run.__module__ = kind.__module__.rpartition(".")[0]
    listed = "".join(f"{name}\n    {options[name].help}\n" for name in known)
    run.__doc__ = f"{cleandoc(kind.__doc__ or '')}\n\nParameters\n----------\n{listed}"
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _compute(work: Work, run: CellRun, reporter: Reporter, executor: CellExecutor) -> None:
    """Compute the cells that are missing, and store each as it arrives."""
    names = dict.fromkeys(work.study.cells())
    reporter.expect(len(names), len(names) - len(run.missing(list(names))))
    for batch in work.batches(replace(run, doing=reporter.doing)):
        if not batch.keys() <= names.keys():
            names |= dict.fromkeys(batch)
            reporter.expect(len(names), len(names) - len(run.missing(list(names))))
        cell: Cell
        for name, cell in executor.run([batch[name] for name in run.missing(list(batch))]):
            run.write(name, cell)
            reporter.advance()
