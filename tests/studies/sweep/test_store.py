"""Runs on disk: resuming, refusing, and damage that is noticed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import esscher
from esscher.core.atomic import write_atomically
from esscher.runs.lock import is_locked, run_lock
from esscher.runs.registry import load
from esscher.runs.study import Interrupted
from esscher.studies.sweep import Sweep, sweep, work
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.provenance import hash_of

SIZES = [8, 20]


def run(out: Path | None, replicates: int = 4, **change: object) -> Sweep:
    arguments: dict[str, object] = {
        "head": esscher.gaussian_head(0.7, 2),
        "sizes": SIZES,
        "scales": [0.5, 1.0],
        "seed": 3,
    }
    return sweep(replicates=replicates, out=out, **(arguments | change))  # type: ignore[arg-type]


def assert_same(one: Sweep, other: Sweep) -> None:
    assert one.numbers == other.numbers
    for metric in METRICS:
        np.testing.assert_array_equal(one.raw(metric), other.raw(metric))


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    curve = run(tmp_path / "deep" / "run")
    folder = tmp_path / "deep" / "run"
    config = json.loads((folder / "config.json").read_text())
    assert config["schema"] == 2
    assert config["configuration"]["sizes"] == SIZES
    assert config["configuration"]["seed"] == 3
    assert config["request"]["replicates"] == 4
    assert config["versions"]["numpy"] == np.__version__
    assert {"created", "git_revision"} <= config.keys()
    results = json.loads((folder / "results.json").read_text())
    assert results["complete"] is True
    assert results["scales"][1]["map"]["mean"] == curve.mean("map")[1].tolist()
    assert len(list((folder / "parts").glob("replicate-*.json"))) == 4
    assert "ended: 4 of 4 replicates" in (folder / "run.log").read_text()
    assert_same(curve, load(folder))
    assert load(folder).complete
    assert_same(curve, run(None))


def test_resuming_computes_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tmp_path / "run")
    parts = tmp_path / "run" / "parts"
    (parts / "replicate-000001.parquet").unlink()
    (parts / ".replicate-000002.parquet.77.tmp").write_bytes(b"half")
    assert not load(tmp_path / "run").complete
    measured = []
    original = work.measure_replicate
    monkeypatch.setattr(
        work, "measure_replicate", lambda plan, r: measured.append(r) or original(plan, r)
    )
    assert_same(first, run(tmp_path / "run"))
    assert measured == [1]
    assert not list(parts.glob(".*"))
    grown = run(tmp_path / "run", 6)
    assert measured == [1, 4, 5]
    assert_same(grown, run(None, 6))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["request"]["replicates"] == 6
    with pytest.raises(esscher.InputError, match="holds 6 replicates"):
        run(tmp_path / "run", 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "seed: stored 3, now 4"),
        ({"sizes": [8, 21]}, r"sizes: stored \[8, 20\], now \[8, 21\]"),
        ({"scales": [1.0]}, r"scales: stored \[0.5, 1.0\], now \[1.0\]"),
        ({"dtype": "float64"}, 'dtype: stored "float32", now "float64"'),
        ({"queries": "population"}, 'queries: stored "tokens"'),
        ({"head": esscher.gaussian_head(0.8, 2)}, "head.horizon: stored 0.7, now 0.8"),
        ({"head": esscher.gaussian_head(0.7, 2, tau=0.1)}, "head.sha256"),
    ],
)
def test_another_configuration_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    first = run(tmp_path / "run")
    with pytest.raises(esscher.InputError, match=words):
        run(tmp_path / "run", **change)
    assert_same(first, load(tmp_path / "run"))


def test_every_truncation_and_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    first = run(tmp_path / "run", 2)
    path = tmp_path / "run" / "parts" / "replicate-000001.parquet"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    lengths = [0, 1, 4, 12, len(whole) - 1, *rng.integers(len(whole), size=20).tolist()]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(esscher.InputError, match=r"replicate-000001.json is damaged.*delete"):
            run(tmp_path / "run", 2)
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
    assert_same(first, run(tmp_path / "run", 2))


def copied(source: Path, name: str, target: Path, other: str) -> None:
    """Copy the files of a cell."""
    for ending in ("json", "parquet"):
        data = (source / "parts" / f"{name}.{ending}").read_bytes()
        (target / "parts" / f"{other}.{ending}").write_bytes(data)


def test_a_part_of_another_run_or_replicate_is_noticed(tmp_path: Path) -> None:
    first, names = run(tmp_path / "run", 2), ("replicate-000000", "replicate-000001")
    run(tmp_path / "other", 2, seed=9)
    run(tmp_path / "kept", 2)
    copied(tmp_path / "other", names[0], tmp_path / "run", names[0])
    with pytest.raises(esscher.InputError, match="another configuration"):
        run(tmp_path / "run", 2)
    copied(tmp_path / "kept", names[1], tmp_path / "run", names[0])
    with pytest.raises(esscher.InputError, match=f"it holds '{names[1]}'"):
        run(tmp_path / "run", 2)
    copied(tmp_path / "kept", names[0], tmp_path / "run", names[0])
    assert_same(first, run(tmp_path / "run", 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.assign(n=table["n"] + 1), "rows are not those of replicate 1"),
        (lambda table: table.assign(replicate=0), "rows are not those of replicate 1"),
        (lambda table: table.drop(columns="map"), "no column 'map'"),
        (lambda table: table.iloc[1:], "rows are not those of replicate 1"),
        (lambda table: table.assign(cov="x"), "'cov' holds no numbers"),
        (lambda table: table.assign(cov=-1.0), "no errors at its 2 sizes"),
        (lambda table: table.assign(cov=np.nan), "no errors at its 2 sizes"),
    ],
)
def test_a_table_that_is_no_replicate_is_noticed(
    tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    run(tmp_path / "run", 2)
    (tmp_path / "run" / "results.json").unlink()
    path = tmp_path / "run" / "parts" / "replicate-000001.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)
    about = json.loads(path.with_suffix(".json").read_text())
    about["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(about))
    with pytest.raises(esscher.InputError, match=f"replicate-000001.json is damaged.*{words}"):
        load(tmp_path / "run")


@pytest.mark.parametrize("name", ["config.json", "parts/limit.json", "parts/predictions.json"])
def test_other_damage_is_a_clear_error(tmp_path: Path, name: str) -> None:
    run(tmp_path / "run", 2, predict=True)
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(esscher.InputError, match=f"{name} is damaged"):
        run(tmp_path / "run", 2, predict=True)


def test_replicates_without_configuration_are_only_those_of_the_same_sweep(tmp_path: Path) -> None:
    first = run(tmp_path / "run", 2)
    for name in ("config.json", "results.json"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(esscher.InputError, match="another configuration"):
        run(tmp_path / "run", 2, seed=9)
    (tmp_path / "run" / "config.json").unlink()
    assert_same(first, run(tmp_path / "run", 2))


@pytest.mark.parametrize("name", ["limit", "predictions"])
def test_what_stands_beside_the_replicates_is_computed_again(tmp_path: Path, name: str) -> None:
    law = esscher.law_head(esscher.laws.standard_law("mixture", 2), horizon=0.5)
    first = run(tmp_path / "run", 2, head=law, predict=True)
    assert "sampling" in first.notes[0]
    before = (tmp_path / "run" / "parts" / f"{name}.json").read_text()
    (tmp_path / "run" / "parts" / f"{name}.json").unlink()
    again = run(tmp_path / "run", 2, head=law, predict=True)
    assert (tmp_path / "run" / "parts" / f"{name}.json").read_text() == before
    assert again.to_dict() == first.to_dict()


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(esscher.InputError, match=r"not empty \(it contains thesis.tex"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(esscher.InputError, match="is a file"):
        run(tmp_path / "thesis.tex")
    with pytest.raises(esscher.InputError, match=r"thesis\.tex"):
        run(tmp_path / "thesis.tex" / "run")
    with pytest.raises(esscher.InputError, match="is not a run"):
        load(tmp_path)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", 2)
    assert not is_locked(tmp_path / "run")
    with run_lock(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
        with pytest.raises(esscher.InputError, match=f"another process .pid {os.getpid()} on"):
            run(tmp_path / "run", 3)
    assert run(tmp_path / "run", 3).replicates == 3


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run(tmp_path / "run", 2)
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
        run(tmp_path / "run", 8)
    monkeypatch.undo()
    folder = tmp_path / "run"
    assert not list(folder.rglob("*.tmp"))
    assert load(folder).replicates >= 2
    assert_same(run(folder, 8), run(None, 8))


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: original(handle, bytes(data)[:7]))
    write_atomically(tmp_path / "file", bytes(range(100)))
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def test_an_interrupt_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = work.measure_replicate

    def stopped(plan: object, r: int) -> object:
        if r == 2:
            raise KeyboardInterrupt
        return original(plan, r)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "measure_replicate", stopped)
    with pytest.raises(Interrupted) as stop:
        run(tmp_path / "run")
    assert stop.value.done == 2
    assert stop.value.folder == tmp_path / "run"
    assert stop.value.unit == "replicates"
    stopped_there = load(tmp_path / "run")
    assert not stopped_there.complete
    assert stopped_there.replicates == 2
    monkeypatch.undo()
    assert_same(run(tmp_path / "run"), run(None))


def test_an_interrupt_before_the_first_replicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(plan: object, r: int) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "measure_replicate", stopped)
    with pytest.raises(Interrupted):
        run(tmp_path / "run")
    curve = load(tmp_path / "run")
    assert curve.raw("mean").shape == (2, 0, 2)
    assert np.isnan(curve.mean("mean")).all()
    assert curve.to_dict()["scales"][0]["mean"]["median"] == [None, None]
    assert "0 replicates, not complete" in repr(curve)


def test_versions_that_changed_on_the_way_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "run", 2)
    monkeypatch.setattr(work, "versions", lambda: {"numpy": "9.9"})
    curve = run(tmp_path / "run", 3)
    assert any("different versions" in note for note in curve.notes)


def test_the_hash_sees_every_number_and_no_cache() -> None:
    head = esscher.gaussian_head(0.7, 2)
    before = hash_of(head)
    assert head.horizon == pytest.approx(0.7)  # fills the caches
    assert hash_of(head) == before == hash_of(esscher.gaussian_head(0.7, 2))
    assert hash_of(esscher.gaussian_head(np.nextafter(0.7, 1), 2)) != before
    assert hash_of(head.with_law(esscher.laws.standard_law("cube", 2))) != before
    tokens = np.random.default_rng(0).standard_normal((5, 2))
    other = tokens.copy()
    other[4, 1] += 1e-9
    assert hash_of(esscher.laws.FiniteTokens(tokens)) != hash_of(esscher.laws.FiniteTokens(other))
