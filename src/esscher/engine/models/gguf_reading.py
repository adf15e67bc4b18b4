"""Read the header of a GGUF file once while transformers loads a model from it.

transformers reads it three times, for configuration, weights and tokenizer; every time an object is
made of each word of the vocabulary. It also makes the table of all tensor names once for every
module of the model. On SmolLM2 that was two thirds of the time it took to load.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from esscher.engine.models.transformers_library import transformers_module

#: What is replaced belongs to the package: one model at a time.
_ONE = threading.Lock()


@contextlib.contextmanager
def gguf_read_once() -> Iterator[None]:
    """While this is entered, gguf reads a file once, and makes a table of names once."""
    gguf = transformers_module("gguf")
    with _ONE:
        own = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
        gguf.GGUFReader = functools.cache(_faster(gguf.GGUFReader))
        gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
        try:
            yield
        finally:
            for name, value in own.items():
                setattr(gguf, name, value)


def _faster(reader: Any) -> Any:
    """A reader of plain arrays: taking a slice of a ``numpy.memmap`` costs several times more."""

    class Reader(reader):  # type: ignore[misc]
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = np.asarray(mapped)

    return Reader
