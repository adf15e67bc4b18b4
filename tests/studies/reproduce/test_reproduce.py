"""Experiments: what they write, that they resume, and that their numbers are those of theory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.math.heads import gaussian_head, law_head
from esscher.math.laws import standard_law
from esscher.math.theory import ball_bound, exponents
from esscher.runs.pool import LocalPool
from esscher.studies.reproduce import (
    EXPERIMENTS,
    ablation,
    ball,
    gaussian,
    hardmax,
    onepass,
    reproduce,
    sphere,
    universality,
)
from esscher.studies.reproduce.cells import compute_all
from esscher.studies.reproduce.finding import markdown_table
from esscher.studies.reproduce.study import Study, agreement, agrees

SIZES = (40, 80, 160, 320)


def small(name: str, head, horizons, **options) -> Study:
    return Study(name, name, head, SIZES, horizons, 6, options)


@pytest.fixture
def tiny(monkeypatch):
    """The experiments with sweeps, at a size for tests."""
    line = small("flat-1", gaussian_head(1.0, 1), (0.5, 2.0))
    monkeypatch.setattr(gaussian, "studies", lambda scale: [line])
    monkeypatch.setattr(
        ablation, "study", lambda scale: small("a", gaussian_head(0.5, 2), (0.1, 1.0))
    )
    ball_head = law_head(standard_law("sphere", 3), horizon=0.5)
    monkeypatch.setattr(sphere, "study", lambda scale: small("s", ball_head, (1.0, 4.0)))
    monkeypatch.setattr(
        universality,
        "studies",
        lambda scale: [
            small(
                law,
                law_head(standard_law(law, 2), spectrum=[1.0, 0.5]),
                (0.5, 1.0),
                predict=law == "gaussian",
            )
            for law in universality.LAWS
        ],
    )


@pytest.mark.parametrize(
    "name",
    [
        "gaussian",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("ablation", "sphere", "universality")),
    ],
)
def test_everything_is_written(name: str, tiny: None, tmp_path: Path) -> None:
    finding = reproduce(name, "quick", tmp_path, progress=False)
    folder = tmp_path / f"{name}-quick"
    page = (folder / f"{name}.md").read_text()
    assert finding.title in page
    assert "nan" not in page
    table = pd.read_csv(folder / f"{name}.csv")
    for column in ("H", "metric", "exponent", "low", "high", "predicted", "sharp",
                   "paper_reference", "paper_bound", "law", "trusted"):  # fmt: skip
        assert column in table
    assert ((table["low"] <= table["exponent"]) & (table["exponent"] <= table["high"])).all()
    for figure in finding.figures:
        for kind in ("png", "svg", "pdf"):
            assert (folder / f"{figure}.{kind}").stat().st_size > 5_000
        assert f"{figure}.png" in page
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.parquet")}
    assert before
    again = reproduce(name, "quick", tmp_path, progress=False)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.parquet")} == before
    pd.testing.assert_frame_equal(again.tables[name], finding.tables[name])


def test_cells_on_worker_processes(tmp_path: Path) -> None:
    keys = [{"d": d, "sizes": [1e3, 1e6], "replicates": 50, "seed": 3} for d in (1, 2)]
    here = compute_all(tmp_path / "here", "hardmax", keys, hardmax._measure)
    with LocalPool(2) as pool:
        assert compute_all(tmp_path / "there", "hardmax", keys, hardmax._measure, pool) == here


def test_horizons_carry_the_square_root_of_the_dimension() -> None:
    """The published setting: covariance 0.1 I and A = alpha I / sqrt(50)."""
    study = gaussian.published((100, 200), [1.0], 2)
    assert study.head.horizon == pytest.approx(0.1 / np.sqrt(50))
    assert study.head.frobenius == pytest.approx(0.1)


def test_the_ball_and_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = reproduce("ball", "quick", tmp_path)
    table = finding.tables["ball"]
    assert (table["measured"] + 4 * table["standard_error"] <= 2.0).all()
    for row in table.to_dict("records"):
        assert row["bound"] == pytest.approx(float(ball_bound(1.0, row["T"], 0.0).at(row["n"])))
        assert row["measured"] < row["bound"]
    assert "says nothing from radius 4" in finding.text
    stored = sorted((tmp_path / "ball-quick" / "cells").iterdir())
    assert len(stored) == len(table)
    stored[0].write_text("{")  # damaged: computed again
    monkeypatch.setattr(ball, "_measure", lambda key: pytest.fail("computed again"))
    with pytest.raises(pytest.fail.Exception):
        reproduce("ball", "quick", tmp_path)
    monkeypatch.undo()
    again = reproduce("ball", "quick", tmp_path)
    pd.testing.assert_frame_equal(again.tables["ball"], table)


def test_one_pass_against_the_formula(tiny: None, tmp_path: Path) -> None:
    """k-hat within four of its standard errors (0.1 at n = 2000, see rates) of the formula."""
    found = onepass._measure({"d": 1, "H": 1.0, "n": 2000, "draw": 0, "seed": 0})
    assert abs(found["khat"] - exponents(1.0).khat) < 0.4
    assert found["exponent"] == pytest.approx(min(0.5, max(0.0, 1 - found["khat"])))
    assert found["sinks"] == 0


def test_cells(tmp_path: Path) -> None:
    calls = []

    def compute(key):
        calls.append(key["n"])
        return {"value": 0.1 + 0.2 + key["n"]}

    (first,) = compute_all(tmp_path, "a", [{"n": 1}], compute)
    assert first == {"value": 0.1 + 0.2 + 1}
    assert compute_all(tmp_path, "a", [{"n": 2}, {"n": 1}], compute)[1] == first
    assert calls == [1, 2]


def test_agreement() -> None:
    assert agrees(0.5, 0.4, 0.6, 0.45)
    assert agrees(0.5, 0.49, 0.51, 0.529)
    assert not agrees(0.5, 0.49, 0.51, 0.54)
    table = pd.DataFrame({"predicted": [0.5, np.nan, 0.1], "agrees": [True, False, False]})
    assert agreement(table) == (1, 2)


def test_markdown() -> None:
    table = pd.DataFrame({"a": [0.5, np.nan], "b": [True, False], "c": ["x", None]})
    assert markdown_table(table).splitlines() == [
        "| a | b | c |", "|---|---|---|", "| 0.5 | yes | x |", "|  | no |  |",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command(tiny: None, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["reproduce", "gaussian", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "gaussian.md" in result.output
    as_json = CliRunner().invoke(main, ["reproduce", "gaussian", "--out", str(tmp_path), "--json"])
    (experiment,) = json.loads(as_json.stdout)["experiments"]
    assert Path(experiment["finding"]).exists()
    assert all(Path(figure).exists() for figure in experiment["figures"])


@pytest.mark.parametrize("name", ["nothing", "Gaussian"])
def test_unknown_experiments(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["reproduce", name, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "choose from gaussian" in result.output
    with pytest.raises(InputError, match="choose from"):
        reproduce(name, "quick", tmp_path)
    with pytest.raises(InputError, match="scale is"):
        reproduce("ball", "huge", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_knows_all_experiments() -> None:
    from esscher.cli.reproduce import EXPERIMENTS as NAMES

    assert tuple(EXPERIMENTS) == NAMES
