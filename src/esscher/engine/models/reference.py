"""Models by name, for tasks in other processes: a worker loads one once and keeps it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock

from esscher.core.errors import InputError
from esscher.engine.models.load import load_model
from esscher.engine.models.loaded import LoadedModel


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


#: How tasks get a model: an object in memory, or its name to load it by.
AnyModel = LoadedModel | ModelReference

#: In a worker, the model that it loaded last. One only: two might not fit into memory.
_LOADED: dict[ModelReference, LoadedModel] = {}
#: A model is read by one task at a time: attention is observed inside the model itself.
_LOCK = RLock()


@contextmanager
def opened_model(model: AnyModel) -> Iterator[LoadedModel]:
    """The model of a task, for this task alone while the block lasts.

    Raises
    ------
    InputError
        If it cannot be loaded here, or has other weights here.
    """
    with _LOCK:
        yield model if isinstance(model, LoadedModel) else _load(model)


def _load(reference: ModelReference) -> LoadedModel:
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
