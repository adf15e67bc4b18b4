"""Runs that are stopped at a chosen cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from esscher.runs.folder import Run


@contextmanager
def stopped_at(ending: str) -> Iterator[None]:
    """Ctrl-C when a cell whose name ends so is to be stored; the block must end by it."""
    written = Run.write

    def stops(run, name, cell):
        if name.endswith(ending):
            raise KeyboardInterrupt
        written(run, name, cell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "write", stops)
        with pytest.raises(KeyboardInterrupt):
            yield
