"""A model given by name or as an object: its outline first, its weights once all is checked.

Tasks in other processes get a model by its name: a worker loads it once and keeps it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, TypeAlias

from esscher.core.errors import InputError
from esscher.core.shown import announce, shortened
from esscher.engine.models.outline import Outline, check_dtype, outline_of
from esscher.engine.models.sources import find_model

if TYPE_CHECKING:
    import torch

    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.models.outline import ModelRecord

#: What studies take for a model: its name or folder, a loaded one, or transformers' own. Once it is
#: chosen and read, a choice and a record stand in its place.
ModelLike: TypeAlias = (
    "str | os.PathLike[str] | LoadedModel | torch.nn.Module | ModelChoice | ModelRecord"
)
#: How tasks get a model: an object in memory, or its name to load it by.
AnyModel: TypeAlias = "LoadedModel | ModelChoice"

#: In a worker, the model that it loaded last. One only: two might not fit into memory.
_LOADED: dict[ModelChoice, LoadedModel] = {}
#: A model is read by one task at a time: attention is observed inside the model itself.
_LOCK = RLock()


@dataclass(frozen=True)
class ModelChoice:
    """A model, and how to load it.

    Attributes
    ----------
    model
        Name, folder or file; a loaded model; or one of transformers' own in memory.
    device, dtype, revision
        As :func:`esscher.load_model` takes them; of no use for a model in memory.
    weight_hash
        Hash of the weights that a worker has to find under this name; empty if any will do.
    """

    model: ModelLike = field(repr=False)
    device: str = "cpu"
    dtype: str = "float32"
    revision: str | None = None
    weight_hash: str = ""

    def __post_init__(self) -> None:
        if self.by_name:
            check_dtype(self.dtype)
            if self.device != "cpu":
                from esscher.engine.models.load import (
                    as_device,  # brings torch, which knows devices
                )

                as_device(self.device)

    @property
    def by_name(self) -> bool:
        """Whether the model is given by name or folder, not as an object in memory."""
        return isinstance(self.model, (str, os.PathLike))

    @property
    def name(self) -> str:
        """Name of the model."""
        return str(self.model) if self.by_name else self.outline.name

    @cached_property
    def outline(self) -> Outline:
        """The outline, against which requests are checked; no weights are read.

        Raises
        ------
        InputError
            When there is no such model, or it is not supported.
        """
        if self.by_name:
            outline = outline_of(str(self.model), revision=self.revision)
            return replace(outline, weights=self.dtype)
        return self._in_memory.outline

    def load(self) -> LoadedModel:
        """The model itself."""
        if not self.by_name:
            return self._in_memory
        from esscher.engine.models.load import load_model

        return load_model(
            str(self.model),
            device=self.device,
            dtype=self.dtype,
            revision=self.revision,
        )

    def for_tasks(
        self,
        remote: bool,
        progress: bool | None,
        share: Callable[[LoadedModel], AnyModel],
    ) -> tuple[LoadedModel, AnyModel]:
        """Return the model itself, and as tasks take it: remote ones load it by its name.

        Parameters
        ----------
        remote
            Whether tasks run in other processes.
        progress
            Whether to say what is being loaded; None says it if standard error is a terminal.
        share
            Sends a model in memory, which has no name, to where tasks run.
        """
        if self.by_name:
            announce(f"Loading {self.name}", progress)
        loaded = self.load()
        if not remote:
            return loaded, loaded
        if not self.by_name:
            return loaded, share(loaded)
        name = str(self.model)
        place = str(Path(name).resolve()) if os.path.exists(name) else name
        return loaded, replace(self, model=place, weight_hash=loaded.weight_hash)

    @cached_property
    def _in_memory(self) -> LoadedModel:
        # what it is an instance of can only be known if its module is there already
        loaded = sys.modules.get("esscher.engine.models.loaded")
        if loaded is not None and isinstance(self.model, loaded.LoadedModel):
            model: LoadedModel = self.model
            return model
        if not hasattr(self.model, "config") or not hasattr(self.model, "named_parameters"):
            raise InputError(
                f"model is {shortened(self.model)}; it must be a hub name, a folder, a .gguf file, "
                "or a transformers model"
            )
        from esscher.engine.models.load import load_tokenizer
        from esscher.engine.models.loaded import wrap_model

        # with the tokenizer of the folder that it was loaded from
        name = wrap_model(self.model).name
        place = str(getattr(self.model, "name_or_path", "") or "")
        if not place or not Path(place).is_dir():
            came = f"it came from {place!r}, which is no folder here" if place else "it has no name"
            raise InputError(
                f"the model is a {type(self.model).__name__} without a tokenizer, and {came}; hand "
                "both in together: esscher.wrap_model(model, tokenizer)"
            )
        return wrap_model(self.model, load_tokenizer(find_model(place)), name=name)


@contextmanager
def opened_model(model: AnyModel) -> Iterator[LoadedModel]:
    """The model of a task, for this task alone while the block lasts.

    Raises
    ------
    InputError
        If it cannot be loaded here, or has other weights here.
    """
    with _LOCK:
        if not isinstance(model, ModelChoice):
            yield model
            return
        if model not in _LOADED:
            _LOADED.clear()
            host = socket.gethostname()
            try:
                loaded = model.load()
            except InputError as error:
                raise InputError(f"the worker on {host}: {error}") from error
            if loaded.weight_hash != model.weight_hash:
                raise InputError(
                    f"the model {model.name!r} has other weights on the worker on {host} (hash "
                    f"{loaded.weight_hash[:12]} instead of {model.weight_hash[:12]}); install the "
                    "same model on all machines of the cluster"
                )
            _LOADED[model] = loaded
        yield _LOADED[model]
