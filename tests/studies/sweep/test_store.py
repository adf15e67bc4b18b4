"""Runs on disk: resuming, refusing, and damage that is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import esscher
from esscher.core.dataset_file import from_bytes, to_bytes
from esscher.runs.registry import load
from esscher.runs.result import RESULTS
from esscher.studies.sweep import measure
from esscher.studies.sweep.measure import hash_of
from tests.studies.sweep.small import assert_same, small_sweep


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    curve = small_sweep(tmp_path / "deep" / "run")
    folder = tmp_path / "deep" / "run"
    assert len(list((folder / "parts").glob("replicate-*.safetensors"))) == 4
    assert (folder / RESULTS).exists()
    assert "ended: 4 of 4 replicates" in (folder / "run.log").read_text()
    assert_same(curve, load(folder))
    assert load(folder).complete
    assert_same(curve, small_sweep(None))


def test_resuming_computes_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = small_sweep(tmp_path / "run")
    parts = tmp_path / "run" / "parts"
    (parts / "replicate-000001.safetensors").unlink()
    (parts / ".replicate-000002.safetensors.77.tmp").write_bytes(b"half")
    assert not load(tmp_path / "run").complete
    measured = []
    original = measure.measure_cell
    monkeypatch.setattr(measure, "measure_cell", lambda s, r: measured.append(r) or original(s, r))
    assert_same(first, small_sweep(tmp_path / "run"))
    assert measured == [1]
    assert not list(parts.glob(".*"))
    grown = small_sweep(tmp_path / "run", 6)
    assert measured == [1, 4, 5]
    assert_same(grown, small_sweep(None, 6))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["request"]["replicates"] == 6
    with pytest.raises(esscher.InputError, match="holds 6 replicates"):
        small_sweep(tmp_path / "run", 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "seed: stored 3, now 4"),
        ({"alpha": [1.0]}, r"alpha: stored \[0.5, 1.0\], now \[1.0\]"),
        ({"queries": "population"}, 'queries: stored "tokens"'),
        ({"head": esscher.gaussian_head(0.8, 2)}, "head.horizon: stored 0.7, now 0.8"),
        ({"head": esscher.gaussian_head(0.7, 2, tau=0.1)}, "head.sha256"),
    ],
)
def test_another_configuration_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    first = small_sweep(tmp_path / "run")
    with pytest.raises(esscher.InputError, match=words):
        small_sweep(tmp_path / "run", **change)
    assert_same(first, load(tmp_path / "run"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cell: cell.assign_coords(size=[8, 21]), "labels of 'size'"),
        (lambda cell: cell.assign_coords(replicate=[0]), "labels of 'replicate'"),
        (lambda cell: cell.drop_vars("error"), "error is missing"),
        (lambda cell: cell - 10.0, "an error is missing or below 0"),
        (lambda cell: cell.where(cell["size"] < 20), "an error is missing or below 0"),
        (lambda cell: cell / 0.0, "error holds an infinite number"),
    ],
)
def test_a_file_that_is_no_replicate_is_noticed(
    tmp_path: Path, change: Callable[[xr.Dataset], xr.Dataset], words: str
) -> None:
    """Whatever its checksum."""
    small_sweep(tmp_path / "run", 2)
    (tmp_path / "run" / RESULTS).unlink()
    path = tmp_path / "run" / "parts" / "replicate-000001.safetensors"
    cell = from_bytes(path.read_bytes(), "")
    path.write_bytes(to_bytes(change(cell).assign_attrs(cell.attrs)))
    with pytest.raises(esscher.InputError, match=f"{path.name} is damaged.*{words}"):
        load(tmp_path / "run")


def test_other_damage_is_a_clear_error(tmp_path: Path) -> None:
    small_sweep(tmp_path / "run", 2, predict=True)
    for name in ("parts/predictions.safetensors", "parts/limit.safetensors", "config.json"):
        path = tmp_path / "run" / name
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(esscher.InputError, match=f"{name} is damaged"):
            small_sweep(tmp_path / "run", 2, predict=True)


@pytest.mark.parametrize("name", ["limit", "predictions"])
def test_cells_beside_the_replicates_are_computed_again(tmp_path: Path, name: str) -> None:
    law = esscher.law_head(esscher.laws.standard_law("mixture", 2), horizon=0.5)
    first = small_sweep(tmp_path / "run", 2, head=law, predict=True)
    path = tmp_path / "run" / "parts" / f"{name}.safetensors"
    before = path.read_bytes()
    path.unlink()
    assert not load(tmp_path / "run").complete
    again = small_sweep(tmp_path / "run", 2, head=law, predict=True)
    assert path.read_bytes() == before
    assert again.data.identical(first.data)


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
