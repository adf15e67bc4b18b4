"""Studies of a model, and of a model on a text: what they have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from esscher.core.errors import InputError
from esscher.core.options import option
from esscher.engine.models.choice import ModelChoice
from esscher.engine.models.outline import ModelRecord, Outline
from esscher.engine.text.documents import TextRecord, check_text
from esscher.runs.executors import CellExecutor
from esscher.runs.old_study import R_co, Study, Work

if TYPE_CHECKING:
    from esscher.engine.models.choice import AnyModel, ModelLike
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.engine.text.packing import PassageSet
else:
    # what is stored in the place of a model and a text; see Study.sources
    ModelLike, TextSource = ModelRecord, TextRecord


@dataclass(frozen=True, kw_only=True)
class WithModel(Study[R_co]):
    """Base of the studies that load a model."""

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
    device: Annotated[str, option("Device of PyTorch, such as cpu or cuda.", stored=False)] = "cpu"
    dtype: Annotated[
        str, option("Data type of the model's weights, such as bfloat16.", stored=False)
    ] = "float32"
    revision: Annotated[str | None, option("Revision of a model from a hub.", stored=False)] = None

    @abstractmethod
    def fill(self, model: Outline) -> Self:
        """Return the study with the values that depend on the model, checked against it."""

    @abstractmethod
    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> Work:
        """Read the text.

        Parameters
        ----------
        loaded
            The model.
        model
            The model as tasks take it.
        executor
            Who computes the tasks.
        """

    def filled(self) -> Self:
        """Fill in what depends on the model, from its configuration alone."""
        if isinstance(self.model, str) and self.model in self.instead:
            function = self.instead[self.model].replace("-", "_")
            raise InputError(
                f"{self.model!r} is not a model; for synthetic tokens call esscher.{function} in "
                "Python"
            )
        choice = self.choice
        study = self.fill(choice.outline)
        self.check_texts()
        return replace(study, model=choice)

    @abstractmethod
    def check_texts(self) -> None:
        """Refuse texts that cannot be read."""

    def prepare(self, executor: CellExecutor) -> Work:
        """Load the model and read the text."""
        loaded, model = self.choice.for_tasks(executor.remote, self.progress, executor.share)
        return self.fill(loaded.outline).read(loaded, model, executor)

    @property
    def choice(self) -> ModelChoice:
        """The model, and how to load it."""
        if isinstance(self.model, ModelChoice):
            return self.model
        return ModelChoice(self.model, self.device, self.dtype, self.revision)

    @property
    def model_record(self) -> ModelRecord:
        """The model of a study that has been read."""
        assert isinstance(self.model, ModelRecord)
        return self.model

    @property
    def subject(self) -> str:
        """Name of the model."""
        return self.model_record.name


@dataclass(frozen=True, kw_only=True)
class ModelStudy(WithModel[R_co]):
    """Base of the studies that read a text with a model."""

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
        str | None,
        option("Column of a table (.jsonl, .parquet, .csv) that holds the text.", stored=False),
    ] = None

    def check_texts(self) -> None:
        """Refuse a text that cannot be read."""
        check_text(self.text, self.column)

    def fitted(self, passages: PassageSet, model: Outline, /, **values: Any) -> Self:
        """Return the study with what the text has room for in the place of defaults, filled in.

        Raises
        ------
        InputError
            If that is too little for what is asked for.
        """
        try:
            return replace(self, **values).fill(model)
        except InputError as error:
            length = f"{passages.source!r} has only {passages.text_tokens} tokens"
            raise InputError(f"{length}: {error}") from error

    @property
    def text_record(self) -> TextRecord:
        """The text of a study that has been read."""
        assert isinstance(self.text, TextRecord)
        return self.text
