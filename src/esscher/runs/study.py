"""A study: options, settings, cells, and one labelled dataset. How one is run is written here.

A study is a frozen dataclass. Its fields are the *options*: the arguments of a function
(``esscher.tails``) and of a command (``esscher tails``). Options never change. What they amount to
for a model and a text are the *settings*, a record with nothing left open; settings, model and text
are the :class:`Setup`, all that the numbers of a run are a function of, which ``config.json``
holds. Cells, tasks and results see nothing else.

What happens in between is the same for all: options are checked before anything is loaded, the run
directory is opened or resumed under a lock, missing cells are computed by this process, by worker
processes or by a cluster and stored as they come, and the result is combined and written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from inspect import Signature, cleandoc
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
)

from esscher.core.codec import Record, as_record, as_tree
from esscher.core.errors import InputError
from esscher.core.options import LISTS, AtMost, checked, option, options_of, plain_type
from esscher.core.variables import Data
from esscher.runs.executors import CellExecutor, Task, chosen_executor
from esscher.runs.folder import LOG, Run, check_run_place, open_run
from esscher.runs.progress import Reporter
from esscher.runs.result import Result, finish

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.outline import ModelRecord
    from esscher.engine.text.documents import TextRecord

S = TypeVar("S", bound=Record)
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


@dataclass(frozen=True, eq=False)
class Setup(Generic[S]):
    """Everything that the numbers of a run depend on.

    Attributes
    ----------
    settings
        The options with nothing left open.
    records
        What was read, by name: ``model``, ``text``.
    """

    settings: S
    records: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> ModelRecord:
        """The model."""
        record: ModelRecord = self.records["model"]
        return record

    @property
    def text(self) -> TextRecord:
        """The text."""
        record: TextRecord = self.records["text"]
        return record

    def configuration(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return dict(as_tree(dict(self.records)) | as_tree(self.settings))


#: Tasks by the name of their cell, batch by batch: those of one batch are stored before the next is
#: asked for. A task returns the cell, a dataset. Cells that are stored already may be among them:
#: they are not computed again.
Batches: TypeAlias = Callable[[Run], Iterable[Mapping[str, Task]]]
#: A study whose model is loaded and whose text is read: the setup on which the numbers depend, and
#: what is to be computed.
Work: TypeAlias = tuple[Setup[Any], Batches]


@dataclass(frozen=True, kw_only=True)
class Study(ABC, Generic[S]):
    """Base of all studies: how to run it."""

    #: Record of the settings, and of what is read, by name.
    settings: ClassVar[type[Record]]
    records: ClassVar[Mapping[str, Any]] = {}
    #: Variables of the result, and of a cell; by the first word of its name if there are several.
    data: ClassVar[type[Data]]
    cell: ClassVar[type[Data] | Mapping[str, type[Data]]]
    #: Class of the result.
    result: ClassVar[type[Result[Any]]] = Result
    #: Unit that the progress bar counts.
    unit: ClassVar[str] = "cells"
    #: The question that it answers: the first line that a terminal shows.
    asks: ClassVar[str] = ""
    #: The command that goes on from here: the last line that a terminal shows.
    next_step: ClassVar[str] = ""
    #: Lines that ``--help`` shows.
    examples: ClassVar[tuple[str, ...]] = ()
    #: Whether ``--save`` writes the result as a file of its own.
    saves: ClassVar[bool] = False
    #: Options that say what is studied: ``--help`` has them first.
    first: ClassVar[tuple[str, ...]] = ()
    #: Options that name something to be read, which are checked when it is.
    sources: ClassVar[frozenset[str]] = frozenset()
    #: Options whose default on the command line is another one.
    command_defaults: ClassVar[Mapping[str, Any]] = {}
    #: Cells that are not counted: something that others are compared with.
    auxiliary: ClassVar[frozenset[str]] = frozenset()

    out: Annotated[
        Path | None,
        option("Store the run in this directory; run the same command again to resume it."),
    ] = None
    workers: Annotated[int, option("Worker processes on this machine.", ge=1, le=4096)] = 1
    executor: Annotated[
        Any,  # a CellExecutor
        option(
            "Or a cluster: a ``distributed.Client``; or an executor of ``concurrent.futures``.",
            command=None,
        ),
    ] = None
    progress: Annotated[
        bool | None,
        option("Whether to draw a bar; by default if standard error is a terminal.", command=None),
    ] = None

    # -- written by every study

    @abstractmethod
    def known(self) -> S:
        """Return the settings as far as they are known before anything heavy is read, checked.

        A number that a text may fall short of is an :class:`esscher.core.options.AtMost`.
        """

    @abstractmethod
    def prepare(self, executor: CellExecutor) -> Work:
        """Read what the study is about."""

    @staticmethod
    @abstractmethod
    def cells(setup: Setup[S]) -> list[str]:
        """Name all cells."""

    @staticmethod
    @abstractmethod
    def combine(setup: Setup[S], cells: Mapping[str, xr.Dataset]) -> Data:
        """Put the cells that are there together; there is at least one."""

    @staticmethod
    def subject(setup: Setup[S]) -> str:
        """Name what is measured, for lists of runs."""
        return setup.model.name if "model" in setup.records else ""

    @classmethod
    def from_json(cls, tree: dict[str, Any], place: str) -> Any:
        """Return what a JSON file of this study stands for: of most studies there is none."""
        raise InputError(f"{place} is of an earlier layout; make the result again")

    # -- the same for all

    @classmethod
    def stored(cls, setup: Setup[S], run: Run) -> tuple[dict[str, xr.Dataset], bool]:
        """Return the cells of a result that are there, by name, and whether these are all.

        Raises
        ------
        InputError
            If one is damaged.
        """
        names = cls.cells(setup)
        cells = {name: cell for name in names if (cell := run.read(name)) is not None}
        return cells, len(cells) == len(names)

    @classmethod
    def name(cls) -> str:
        """Return its name: that of its line in the registry."""
        from esscher.runs.registry import name_of

        return name_of(cls)

    def run(self) -> Result[S]:
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
            known = options.known()
            check_run_place(options.out, self.name(), self.definite(known))
            setup, batches = options.prepare(executor)
            with self.opened(setup, options.out) as run:
                log = run.folder / LOG if run.on_disk else None
                try:
                    with Reporter(log, options.progress, self.unit) as reporter:
                        # compute the cells that are missing, and store each as it arrives
                        names = self.cells(setup)
                        reporter.expect(len(names), len(names) - len(run.missing(names)))
                        for batch in batches(replace(run, doing=reporter.doing)):
                            missing = [batch[name] for name in run.missing(batch)]
                            for name, data in executor.run(missing):
                                run.write(name, data)
                                reporter.advance()
                except KeyboardInterrupt as stop:
                    reason = stop.reason if isinstance(stop, Interrupted) else str(stop)
                    done = len(set(run.names()) - self.auxiliary)
                    raise Interrupted(done, self.unit, options.out, reason) from None
                return finish(type(self), setup, run, write=run.on_disk)

    def checked(self) -> Self:
        """Return the study with every option of the type it is described by."""
        values = {
            o.name: checked(o, getattr(self, o.name))
            for o in options_of(type(self))
            if o.name not in self.sources and o.type is not Any
        }
        return replace(self, **values)

    def settings_with(self, **values: Any) -> S:
        """Return the settings: these values, and the options of the same names for all others."""
        names = self.settings.__struct_fields__
        options = {name: getattr(self, name) for name in names if name not in values}
        settings: Any = self.settings(**values, **options)
        return settings  # type: ignore[no-any-return]

    @classmethod
    def changeable(cls) -> frozenset[str]:
        """Return the settings on which no cell depends: a run is resumed with other values."""
        return frozenset(o.name for o in options_of(cls) if o.changeable)

    @classmethod
    def definite(cls, known: S) -> dict[str, Any]:
        """Return those settings of the cells that do not depend on what is still to be read."""
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        return {
            name: as_tree(value)
            for name, value in fields.items()
            if name not in cls.changeable()
            and value not in (None, ())
            and type(value) is not AtMost
        }

    @classmethod
    def opened(cls, setup: Setup[S], out: Path | None) -> AbstractContextManager[Run]:
        """Open the run of a study that has been read: in a directory, or in memory."""
        stored, changeable = setup.configuration(), cls.changeable()
        request = {name: stored.pop(name) for name in list(stored) if name in changeable}
        return open_run(out, cls.name(), cls.subject(setup), stored, request, cls.cell)


def stored_setup(study: type[Study[Any]], configuration: Any, place: str) -> Setup[Any]:
    """Return what a stored configuration stands for.

    Raises
    ------
    InputError
        If it is not what such a study has.
    """
    settings = as_record(configuration, study.settings, place)
    records = {
        name: as_record(configuration.get(name), kind, f"{place}: {name}")
        for name, kind in study.records.items()
    }
    return Setup(settings, records)


def function_of(study: Callable[P, Study[S]]) -> Callable[P, Result[S]]:
    """Return the function that runs a study: ``tails(...)`` for ``TailsStudy(...).run()``."""
    kind: Any = study
    name = kind.name().replace("-", "_")
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

    def run(*arguments: P.args, **given: P.kwargs) -> Result[S]:
        try:
            signature.bind(*arguments, **given)
        except TypeError as error:
            raise TypeError(
                f"{name}(): {error}; it has {', '.join(signature.parameters)}"
            ) from None
        return study(*arguments, **given).run()

    run.__name__ = run.__qualname__ = name
    run.__module__ = kind.__module__.rpartition(".")[0]
    listed = "".join(f"{name}\n    {options[name].help}\n" for name in signature.parameters)
    run.__doc__ = f"{cleandoc(kind.__doc__ or '')}\n\nParameters\n----------\n{listed}"
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run
