"""Runs made of cells: what is stored comes back, what is damaged or foreign is refused."""

import json

import pandas as pd
import pytest

from esscher.core.errors import InputError
from esscher.runs import Cell, open_run, read_run
from esscher.runs.old_result import read_stored

CONFIGURATION = {"seed": 0, "sizes": (1, 2), "model": {"name": "m"}}
TABLE = pd.DataFrame({"n": [1, 2], "error": [0.5, 0.25], "unit": ["a", "b"]})


def start(folder):
    return open_run(folder, "trial", "a model", CONFIGURATION)


def test_cells_and_results_come_back(tmp_path):
    with start(tmp_path / "run") as run:
        assert run.missing(["layer-0", "layer-1"]) == ["layer-0", "layer-1"]
        run.write("layer-0", Cell({"norm": 2.0}, TABLE))
        run.write("layer-1", Cell({}))
    stored = read_run(tmp_path / "run", "trial")
    assert stored.names() == ["layer-0", "layer-1"]
    assert stored.about.kind == "trial"
    cell = stored.read("layer-0")
    assert cell.about == {"norm": 2.0}
    pd.testing.assert_frame_equal(cell.table, TABLE)
    assert stored.read("layer-1").table.empty
    assert stored.read("layer-2") is None
    assert read_stored(stored) == ({}, None)
    assert stored.about.configuration["sizes"] == [1, 2]


def test_the_same_configuration_resumes_another_is_refused(tmp_path):
    with start(tmp_path) as run:
        run.write("layer-0", Cell({}, TABLE))
    with start(tmp_path) as run:
        assert run.missing(["layer-0", "layer-1"]) == ["layer-1"]
    other = CONFIGURATION | {"seed": 1}
    with pytest.raises(InputError, match="seed: stored 0, now 1"):  # noqa: SIM117
        with open_run(tmp_path, "trial", "a model", other):
            pass
    with pytest.raises(InputError, match="kind 'trial', not 'deep'"):  # noqa: SIM117
        with open_run(tmp_path, "deep", "a model", CONFIGURATION):
            pass


def test_two_processes_do_not_work_on_one_run(tmp_path):
    with start(tmp_path), pytest.raises(InputError, match="another process"), start(tmp_path):
        pass


@pytest.mark.parametrize("damage", ["parquet", "json", "schema"])
def test_a_damaged_cell_is_named_with_the_remedy(damage, tmp_path):
    with start(tmp_path) as run:
        run.write("layer-0", Cell({"x": 1}, TABLE))
    path = tmp_path / "parts" / f"layer-0.{'parquet' if damage == 'parquet' else 'json'}"
    if damage == "schema":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    else:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"layer-0.json is damaged .*; delete layer-0.json"):
        read_run(tmp_path).read("layer-0")


def test_a_run_of_another_layout_is_refused_by_its_number(tmp_path):
    with start(tmp_path):
        pass
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 1}))
    with pytest.raises(InputError, match="has layout version 1; this version of Esscher reads 4"):
        read_run(tmp_path)


def test_a_foreign_directory_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with (
        pytest.raises(InputError, match=r"not empty \(it contains precious.txt\)"),
        start(tmp_path),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious.txt"]
    with pytest.raises(InputError, match="is not a run"):
        read_run(tmp_path)


def test_a_damaged_configuration_is_named(tmp_path):
    with start(tmp_path):
        pass
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        read_run(tmp_path)
