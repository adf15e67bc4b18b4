"""Directories of runs: what is refused, noticed and kept, with sweeps as an example."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

import esscher
from esscher.runs.folder import is_locked, run_lock
from esscher.runs.registry import load
from esscher.runs.study import Interrupted
from esscher.studies.sweep import measure
from tests.studies.sweep.small import assert_same, small_sweep


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(esscher.InputError, match=r"not empty \(it contains thesis.tex"):
        small_sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(esscher.InputError, match="is a file"):
        small_sweep(tmp_path / "thesis.tex")
    with pytest.raises(esscher.InputError, match=r"thesis\.tex"):
        small_sweep(tmp_path / "thesis.tex" / "run")
    with pytest.raises(esscher.InputError, match="is not a run"):
        load(tmp_path)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    small_sweep(tmp_path / "run", 2)
    assert not is_locked(tmp_path / "run")
    with run_lock(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
        with pytest.raises(esscher.InputError, match=f"another process .pid {os.getpid()} on"):
            small_sweep(tmp_path / "run", 3)
    assert small_sweep(tmp_path / "run", 3).data.sizes["replicate"] == 3


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    small_sweep(tmp_path / "run", 2)
    original, calls = getattr(os, call), []

    def full(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if call == "write":
            return original(arguments[0], bytes(arguments[1])[:1000])  # type: ignore[call-overload]
        return original(*arguments)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(esscher.InputError, match=r"No space left on device.*same command again"):
        small_sweep(tmp_path / "run", 8)
    monkeypatch.undo()
    folder = tmp_path / "run"
    assert not list(folder.rglob("*.tmp"))
    assert load(folder).data.sizes["replicate"] >= 2
    assert_same(small_sweep(folder, 8), small_sweep(None, 8))


def test_every_truncation_and_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    first = small_sweep(tmp_path / "run", 2)
    path = tmp_path / "run" / "parts" / "replicate-000001.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    lengths = [0, 1, 4, 12, len(whole) - 1, *rng.integers(len(whole), size=20).tolist()]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(
            esscher.InputError, match=r"replicate-000001.safetensors is damaged.*delete"
        ):
            small_sweep(tmp_path / "run", 2)
    noticed = 0
    for place in rng.integers(len(whole), size=150):
        flipped = bytearray(whole)
        flipped[place] ^= int(rng.integers(1, 256))
        path.write_bytes(flipped)
        try:
            read = load(tmp_path / "run")
        except esscher.InputError:
            noticed += 1
        else:
            assert_same(first, read)  # the byte carries no number
    assert noticed > 50
    path.unlink()
    assert_same(first, small_sweep(tmp_path / "run", 2))


def copied(source: Path, name: str, target: Path, other: str) -> None:
    """Copy the file of a cell."""
    data = (source / "parts" / f"{name}.safetensors").read_bytes()
    (target / "parts" / f"{other}.safetensors").write_bytes(data)


def test_a_part_of_another_run_or_replicate_is_noticed(tmp_path: Path) -> None:
    first, names = small_sweep(tmp_path / "run", 2), ("replicate-000000", "replicate-000001")
    small_sweep(tmp_path / "other", 2, seed=9)
    small_sweep(tmp_path / "kept", 2)
    copied(tmp_path / "other", names[0], tmp_path / "run", names[0])
    with pytest.raises(
        esscher.InputError, match="belongs to another cell, or to a run with other settings"
    ):
        small_sweep(tmp_path / "run", 2)
    copied(tmp_path / "kept", names[1], tmp_path / "run", names[0])
    with pytest.raises(esscher.InputError, match="belongs to another cell"):
        small_sweep(tmp_path / "run", 2)
    copied(tmp_path / "kept", names[0], tmp_path / "run", names[0])
    assert_same(first, small_sweep(tmp_path / "run", 2))


def test_an_interrupt_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = measure.measure_replicate

    def stopped(plan: object, r: int) -> object:
        if r == 2:
            raise KeyboardInterrupt
        return original(plan, r)  # type: ignore[arg-type]

    monkeypatch.setattr(measure, "measure_replicate", stopped)
    with pytest.raises(Interrupted) as stop:
        small_sweep(tmp_path / "run")
    assert stop.value.done == 2
    assert stop.value.folder == tmp_path / "run"
    assert stop.value.unit == "replicates"
    stopped_there = load(tmp_path / "run")
    assert not stopped_there.complete
    assert stopped_there.data.sizes["replicate"] == 2
    monkeypatch.undo()
    assert_same(small_sweep(tmp_path / "run"), small_sweep(None))


def test_an_interrupt_before_the_first_replicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(plan: object, r: int) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure_replicate", stopped)
    with pytest.raises(Interrupted):
        small_sweep(tmp_path / "run")
    curve = load(tmp_path / "run")
    assert not curve.complete
    assert repr(curve) == "Nothing has been measured yet."
    assert curve.table().empty
