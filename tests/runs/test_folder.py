"""Directories of runs: what is refused, noticed and kept."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.runs.folder import is_locked, read_config, run_lock
from esscher.runs.registry import load
from esscher.runs.study import Interrupted
from esscher.studies.deep import stack as measure


def small(out: Path | None, replicates: int = 3, seed: int = 0) -> Any:
    """Measure a stack of two layers."""
    return esscher.deep_stack(
        depth=2, dim=2, horizon=0.4, sizes=[32, 64], replicates=replicates, seed=seed, out=out
    )


def same(first: Any, second: Any) -> bool:
    """Whether two results have the same numbers."""
    return bool(first.data.drop_attrs().identical(second.data.drop_attrs()))


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"not empty \(it contains thesis.tex"):
        small(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        small(tmp_path / "thesis.tex")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        small(tmp_path / "thesis.tex" / "run")
    with pytest.raises(InputError, match="is not a run"):
        load(tmp_path)


def test_another_configuration_or_study_is_refused(tmp_path: Path) -> None:
    small(tmp_path / "run")
    with pytest.raises(InputError, match="seed: stored 0, now 1"):
        small(tmp_path / "run", seed=1)
    with pytest.raises(InputError, match="kind 'deep-stack', not 'sparse-law'"):
        esscher.sparse_law("gaussian", horizon=0.5, dim=2, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "has layout version 1; this version of Esscher reads 4"),
        ({"kind": "dream"}, "there is no study 'dream'"),
        ({"created": 5}, "created is 5; it must be a string"),
        (None, "config.json is damaged"),
    ],
)
def test_a_damaged_configuration_is_named(change: Any, message: str, tmp_path: Path) -> None:
    small(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text("{" if change is None else json.dumps(config | change))
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    small(tmp_path / "run")
    assert not is_locked(tmp_path / "run")
    with run_lock(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
        with pytest.raises(InputError, match=f"another process .pid {os.getpid()} on"):
            small(tmp_path / "run")


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    original, calls = getattr(os, call), []

    def full(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if call == "write":
            return original(arguments[0], bytes(arguments[1])[:1000])  # type: ignore[call-overload]
        return original(*arguments)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(InputError, match=r"No space left on device.*same command again"):
        small(tmp_path / "run", 8)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.tmp"))
    assert same(small(tmp_path / "run", 8), small(None, 8))


@pytest.mark.parametrize("name", ["results.safetensors", "parts/replicate-1.safetensors"])
def test_every_truncation_and_every_flipped_byte_is_noticed(name: str, tmp_path: Path) -> None:
    first = small(tmp_path / "run")
    path = tmp_path / "run" / name
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    (tmp_path / "run" / "results.safetensors").unlink(missing_ok="parts" in name)
    damaged = [whole[:length] for length in (0, 1, 7, 12, len(whole) - 1)]
    for place in rng.integers(len(whole), size=100):
        flipped = bytearray(whole)
        flipped[place] ^= int(rng.integers(1, 256))
        damaged.append(bytes(flipped))
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(InputError, match=rf"{path.name} (is damaged|cannot be read).*; delete"):
            load(tmp_path / "run")
    path.unlink()  # as the message says
    assert same(first, small(tmp_path / "run"))


def test_a_cell_of_another_run_or_place_is_noticed(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    first, _ = small(run), small(other, seed=9)
    (run / "results.safetensors").unlink()
    cells = [f"parts/replicate-{number}.safetensors" for number in range(2)]
    for source in (other / cells[0], run / cells[1]):
        kept = (run / cells[0]).read_bytes()
        shutil.copy(source, run / cells[0])
        with pytest.raises(InputError, match="it belongs to another cell, or to a run with other"):
            small(run)
        (run / cells[0]).write_bytes(kept)
    assert same(first, small(run))


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "", "A", "x" * 500, "x\0"])
def test_names_of_cells_lead_nowhere(name: str, tmp_path: Path) -> None:
    from esscher.runs.folder import Run

    small(tmp_path)
    run = Run(tmp_path, read_config(tmp_path), measure.Replicate)
    with pytest.raises(InputError, match="is not a cell name"):
        run.read(name)


@pytest.mark.parametrize("done", [0, 2])
def test_an_interrupt_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    original = measure.measure_replicate

    def stopped(source: Any, sizes: Any, replicate: int, seed: int) -> Any:
        if replicate == done:
            raise KeyboardInterrupt
        return original(source, sizes, replicate, seed)

    monkeypatch.setattr(measure, "measure_replicate", stopped)
    with pytest.raises(Interrupted) as stop:
        small(tmp_path / "run")
    monkeypatch.undo()
    assert (stop.value.done, stop.value.unit) == (done, "replicates")
    result = load(tmp_path / "run")
    assert not result.complete
    assert len(result.cells) == (done if done > 1 else 0)
    assert "Nothing has been measured yet" in repr(result) or done
    assert same(small(tmp_path / "run"), small(None))
