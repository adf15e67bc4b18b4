"""A model as callers name it or hand it in: seen in outline first, loaded when all is checked.

Tasks in other processes get a model by its name: a worker loads it once and keeps it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

from esscher.core.errors import InputError
from esscher.core.shown import announce
from esscher.core.untrusted import shortened
from esscher.engine.models.outline import Outline, check_dtype, outline_of

if TYPE_CHECKING:
    import torch

    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.models.record import ModelRecord

#: What studies take for a model: its name or folder, a loaded one, or transformers' own. Once it is
#: chosen and read, a choice and a record stand in its place.
ModelLike: TypeAlias = (
    "str | os.PathLike[str] | LoadedModel | torch.nn.Module | ModelChoice | ModelRecord"
)
#: How tasks get a model: an object in memory, or its name to load it by.
AnyModel: TypeAlias = "LoadedModel | ModelReference"

#: In a worker, the model that it loaded last. One only: two might not fit into memory.
_LOADED: dict[ModelReference, LoadedModel] = {}
#: A model is read by one task at a time: attention is observed inside the model itself.
_LOCK = RLock()


@dataclass(frozen=True)
class ModelReference:
    """All that a worker needs to load a model itself and check that it is the same one.

    Attributes
    ----------
    name, device, dtype, revision, allow_pickle, allow_remote_code
        As :func:`esscher.load_model` takes them; folders and files by their full path.
    weight_hash
        Hash of the weights where the run is stored.
    """

    name: str
    device: str
    dtype: str
    revision: str | None
    allow_pickle: bool
    allow_remote_code: bool
    weight_hash: str


@dataclass(frozen=True, eq=False)
class ModelChoice:
    """A model, and how to load it.

    Attributes
    ----------
    model
        Name, folder or file; a loaded model; or one of transformers' own in memory.
    device, dtype, revision, allow_pickle, allow_remote_code
        As :func:`esscher.load_model` takes them; of no use for a model in memory.
    """

    model: ModelLike = field(repr=False)
    device: str = "cpu"
    dtype: str = "float32"
    revision: str | None = None
    allow_pickle: bool = False
    allow_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.is_named:
            check_dtype(self.dtype)
            if self.device != "cpu":
                from esscher.engine.models.load import (
                    as_device,  # brings torch, which knows devices
                )

                as_device(self.device)

    @property
    def is_named(self) -> bool:
        """Whether it is a name, and no object in memory."""
        return isinstance(self.model, (str, os.PathLike))

    @property
    def name(self) -> str:
        """What to call the model."""
        return str(self.model) if self.is_named else self.outline.name

    @cached_property
    def outline(self) -> Outline:
        """What requests are checked against; no weights are read for it.

        Raises
        ------
        InputError
            When there is no such model, or it is not supported.
        """
        if self.is_named:
            return outline_of(
                str(self.model), revision=self.revision, allow_remote_code=self.allow_remote_code
            )
        return self._in_memory.outline

    def load(self) -> LoadedModel:
        """The model itself."""
        if not self.is_named:
            return self._in_memory
        from esscher.engine.models.load import load_model

        return load_model(
            str(self.model),
            device=self.device,
            dtype=self.dtype,
            revision=self.revision,
            allow_pickle=self.allow_pickle,
            allow_remote_code=self.allow_remote_code,
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
        if self.is_named:
            announce(f"Loading {self.name}", progress)
        loaded = self.load()
        if not remote:
            return loaded, loaded
        if not self.is_named:
            return loaded, share(loaded)
        name = str(self.model)
        return loaded, ModelReference(
            str(Path(name).resolve()) if os.path.exists(name) else name,
            self.device,
            self.dtype,
            self.revision,
            self.allow_pickle,
            self.allow_remote_code,
            loaded.weight_hash,
        )

    @cached_property
    def _in_memory(self) -> LoadedModel:
        # what it is an instance of can only be known if its module is there already
        loaded = sys.modules.get("esscher.engine.models.loaded")
        if loaded is not None and isinstance(self.model, loaded.LoadedModel):
            found: LoadedModel = self.model
            return found
        if not hasattr(self.model, "config") or not hasattr(self.model, "named_parameters"):
            raise InputError(
                f"model is {shortened(self.model)}; it must be a hub name, a folder, a .gguf file, "
                "or a transformers model"
            )
        return with_tokenizer(self.model)


def with_tokenizer(model: Any) -> LoadedModel:
    """Wrap a transformers model in memory, with the tokenizer of the folder it was loaded from.

    Raises
    ------
    InputError
        If it came from no folder that is still there.
    """
    from esscher.engine.models.load import load_tokenizer
    from esscher.engine.models.loaded import wrap_model
    from esscher.engine.models.outline import checked_source

    loaded = wrap_model(model)
    place = str(getattr(model, "name_or_path", "") or "")
    if not place or not Path(place).is_dir():
        came = f"it came from {place!r}, which is no folder here" if place else "it has no name"
        raise InputError(
            f"the model is a {type(model).__name__} without a tokenizer, and {came}; hand both in "
            "together: esscher.wrap_model(model, tokenizer)"
        )
    source = checked_source(place, revision=None, allow_remote_code=False)
    return wrap_model(model, load_tokenizer(source), name=loaded.name)


@contextmanager
def opened_model(model: AnyModel) -> Iterator[LoadedModel]:
    """The model of a task, for this task alone while the block lasts.

    Raises
    ------
    InputError
        If it cannot be loaded here, or has other weights here.
    """
    with _LOCK:
        yield _load(model) if isinstance(model, ModelReference) else model


def _load(reference: ModelReference) -> LoadedModel:
    from esscher.engine.models.load import load_model

    if reference in _LOADED:
        return _LOADED[reference]
    _LOADED.clear()
    host = socket.gethostname()
    try:
        loaded = load_model(
            reference.name,
            device=reference.device,
            dtype=reference.dtype,
            revision=reference.revision,
            allow_pickle=reference.allow_pickle,
            allow_remote_code=reference.allow_remote_code,
        )
    except InputError as error:
        raise InputError(f"the worker on {host}: {error}") from error
    if loaded.weight_hash != reference.weight_hash:
        raise InputError(
            f"the model {reference.name!r} has other weights on the worker on {host} (hash "
            f"{loaded.weight_hash[:12]} instead of {reference.weight_hash[:12]}); install the same "
            "model on all machines of the cluster"
        )
    _LOADED[reference] = loaded
    return loaded
