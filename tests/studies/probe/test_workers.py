"""A probe on worker processes: the same bytes as in this one, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from esscher.runs.executors import LocalPool
from esscher.studies.probe import probe
from tests.engine.models.folders import tiny, words
from tests.runs.stored import stored_bytes
from tests.studies.probe.sizes import SEQUENCES, SMALL


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_the_same_bytes_on_workers(mode: str, pool: LocalPool, tmp_path: Path) -> None:
    options = (SMALL if mode == "pooled" else SEQUENCES) | {"layers": [0, 1], "heads": [0, 3]}
    loaded, text = tiny("llama"), [words(2000)]
    here = probe(loaded, text, mode=mode, out=tmp_path / "here", **options)
    there = probe(loaded, text, mode=mode, out=tmp_path / "there", executor=pool, **options)
    assert stored_bytes(tmp_path / "here") == stored_bytes(tmp_path / "there")
    assert here.heads == there.heads
    assert not (tmp_path / "there" / "cloud").exists()
