"""Studies of a model, and of a model on a text: what they have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from esscher.core.codec import Record
from esscher.core.errors import InputError
from esscher.core.options import option
from esscher.core.variables import Data
from esscher.engine.models.choice import ModelChoice, opened_model
from esscher.engine.models.outline import ModelRecord, Outline
from esscher.engine.text.documents import TextRecord, check_text
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.study import Setup, Study, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.choice import AnyModel, ModelLike
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.engine.text.packing import Passage, PassageSet
else:  # types of options are evaluated, and these need torch
    ModelLike = TextSource = Any

S = TypeVar("S", bound=Record)


@dataclass(frozen=True, kw_only=True)
class WithModel(Study[S]):
    """Base of the studies that load a model."""

    records: ClassVar = {"model": ModelRecord}
    sources: ClassVar[frozenset[str]] = frozenset({"model"})
    first: ClassVar[tuple[str, ...]] = ("model",)

    model: Annotated[
        ModelLike,
        option(
            "Hub name, folder, GGUF file, demo:minilm or demo:smollm2; in Python also a model in "
            "memory, alone or with its tokenizer (esscher.wrap_model).",
            metavar="MODEL",
        ),
    ] = field(kw_only=False)
    device: Annotated[str, option("Device of PyTorch, such as cpu or cuda.")] = "cpu"
    dtype: Annotated[str, option("Data type of the model's weights, such as bfloat16.")] = "float32"
    revision: Annotated[str | None, option("Revision of a model from a hub.")] = None

    @abstractmethod
    def resolve(self, model: Outline) -> S:
        """Return the settings for a model, checked against it.

        A number that a text may fall short of is an :class:`esscher.core.options.AtMost`.
        """

    @abstractmethod
    def read(
        self, settings: S, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
    ) -> Work:
        """Read the text, and say what is to be computed.

        Parameters
        ----------
        settings
            What the options amount to for the model.
        loaded
            The model.
        model
            The model as tasks take it.
        executor
            Who computes the tasks.
        """

    @abstractmethod
    def check_texts(self) -> None:
        """Refuse texts that cannot be read."""

    def known(self) -> S:
        """Fill in what depends on the model, from its configuration alone."""
        settings = self.resolve(self.choice.outline)
        self.check_texts()
        return settings

    def prepare(self, executor: CellExecutor) -> Work:
        """Load the model and read the text."""
        loaded, model = self.choice.for_tasks(executor.remote, self.progress, executor.share)
        return self.read(self.resolve(loaded.outline), loaded, model, executor)

    @property
    def choice(self) -> ModelChoice:
        """The model, and how to load it."""
        return ModelChoice(self.model, self.device, self.dtype, self.revision)


@dataclass(frozen=True, kw_only=True)
class ModelStudy(WithModel[S]):
    """Base of the studies that read a text with a model."""

    records: ClassVar = {"model": ModelRecord, "text": TextRecord}
    sources: ClassVar[frozenset[str]] = frozenset({"model", "text"})
    first: ClassVar[tuple[str, ...]] = ("model", "text", "column")

    text: Annotated[
        TextSource,
        option(
            "Text: a file, a folder, - for standard input, demo:docs, demo:code or hf:NAME; in "
            "Python also a list of strings."
        ),
    ] = field(default="demo:docs", kw_only=False)
    column: Annotated[
        str | None, option("Column of a table (.jsonl, .parquet, .csv) that holds the text.")
    ] = None

    def check_texts(self) -> None:
        """Refuse a text that cannot be read."""
        check_text(self.text, self.column)

    def fitted(self, text: PassageSet, model: Outline, **values: Any) -> S:
        """Return the settings with what a text has room for in the place of defaults.

        Raises
        ------
        InputError
            If that is too little for what is asked for.
        """
        try:
            return replace(self, **values).resolve(model)
        except InputError as error:
            length = f"{text.source!r} has only {text.text_tokens} tokens"
            raise InputError(f"{length}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class PassageStudy(ModelStudy[S]):
    """Base of the studies that measure a few passages of a text, each by itself.

    Their settings have ``passages``, how many, and ``context``, tokens of each; a default
    (:class:`esscher.core.options.AtMost`) is what a text may fall short of.
    """

    unit: ClassVar[str] = "passages"

    @staticmethod
    @abstractmethod
    def measure(setup: Setup[S], loaded: LoadedModel, passage: Passage) -> Data:
        """Measure one passage, in this process or in another one: a cell."""

    @staticmethod
    def cells(setup: Setup[S]) -> list[str]:
        """One cell per passage."""
        settings: Any = setup.settings
        return [f"passage-{i}" for i in range(settings.passages)]

    def read(
        self, settings: Any, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
    ) -> Work:
        """Take passages from the beginning of the text."""
        from esscher.engine.text.packing import first_passages

        text = first_passages(loaded, self.text, settings.passages, settings.context, self.column)
        settings = self.fitted(text, loaded.outline, passages=len(text), context=text.context)
        setup: Setup[S] = Setup(settings, {"model": loaded.record, "text": text.record})
        tasks = {
            name: Task(name, _measured, (type(self), setup, model, passage))
            for name, passage in zip(self.cells(setup), text, strict=True)
        }
        return setup, lambda run: [tasks]


def _measured(
    study: type[PassageStudy[S]], setup: Setup[S], model: AnyModel, passage: Passage
) -> xr.Dataset:
    with opened_model(model) as loaded:
        return study.measure(setup, loaded, passage).dataset
