"""A probe on worker processes: the same bytes as in this one, in both modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from esscher.runs.pool import LocalPool
from esscher.studies.probe import probe
from tests.engine.text.test_passages import words
from tests.studies.probe.test_probe import SEQUENCES, SMALL, tiny


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    """Two workers, who need seconds to start: torch is imported there."""
    with LocalPool(2) as found:
        yield found


def cells(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "parts").iterdir()}


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_the_same_bytes_on_workers(mode: str, pool: LocalPool, tmp_path: Path) -> None:
    options = (SMALL if mode == "pooled" else SEQUENCES) | {"layers": [0, 1], "heads": [0, 3]}
    loaded, text = tiny("llama"), [words(2000)]
    here = probe(loaded, text, mode=mode, out=tmp_path / "here", **options)
    there = probe(loaded, text, mode=mode, out=tmp_path / "there", executor=pool, **options)
    assert cells(tmp_path / "here") == cells(tmp_path / "there")
    assert here.heads == there.heads
    assert not (tmp_path / "there" / "cloud").exists()
