"""Experiments: what they write, that they resume, and that their numbers are those of theory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy import stats

from esscher.cli.program import main
from esscher.cli.reproduce import print_finding
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.math.heads import gaussian_head, law_head
from esscher.math.laws import standard_law
from esscher.math.statistics import fit_rate
from esscher.math.theory import ball_bound, exponents
from esscher.runs.folder import run_lock
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
from esscher.studies.reproduce.joint import band, joint_exponents
from esscher.studies.reproduce.study import (
    COLUMNS,
    Study,
    about_the_paper,
    agreement_table,
    inside,
)

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
    # with a few replicates hardly a law is decided: the table has the verdicts, not the fits
    assert set(table["law"]) <= {"power", "floor", "logarithmic", "as predicted", "undecided"}
    assert (table["law"] != "power").any()
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


ROWS = {"metric": "map", "exponent": 0.5, "low": 0.49, "high": 0.51, "joint_low": 0.45,
        "joint_high": 0.55, "paper_bound": 0.1}  # fmt: skip


def test_only_what_is_inside_the_interval_agrees() -> None:
    lines = {"sharp": 0.5, "paper_reference": 0.4}
    table = pd.DataFrame(
        [ROWS | lines | {"predicted": value} for value in (0.505, 0.52, 0.6, np.nan)]
    )
    assert inside(table, "predicted") == (1, 3)  # 0.02 off is off, if the interval says so
    assert inside(table, "predicted", joint=True) == (2, 3)
    assert inside(table, "half") == (4, 4)
    assert inside(table, "paper_reference") == (0, 4)
    shown = agreement_table(table.assign(metric=["map", "map", "mean", "cov"]))
    assert shown["predicted"].tolist()[:2] == ["1 of 2", "2 of 2"]
    assert "0.020 (0.0200 to 0.020)" in shown.iloc[0].tolist()


def test_what_is_said_about_the_paper() -> None:
    rows = [ROWS | {"metric": m, "paper_reference": 0.4} for m in ("map", "mean", "cov")]
    text = about_the_paper(pd.DataFrame(rows))
    assert "excluded by the interval at map 1 of 1 (1 by the band)" in text
    assert "bound is not contradicted: no band lies below" in text
    slow = [row | {"joint_high": 0.05, "study": "d = 50"} for row in rows]
    text = about_the_paper(pd.DataFrame(slow))
    assert "At 3 of 3 points (d = 50) the whole band lies below the exponent" in text
    assert "does not contradict it" in text


def test_bands_hold_all_horizons_at_once() -> None:
    """Exponents that share half of their noise: the band holds all seven, intervals do not."""
    horizons = np.linspace(0.3, 3, 7)
    held, held_slope, alone, studies = 0, 0, 0, 200
    for study in range(studies):
        rng = random_stream(study, "bands")
        shared = rng.standard_normal((24, 1))
        moved = 0.1 * (shared + rng.standard_normal((24, 7)))
        estimate = moved.mean(axis=0)  # the truth is 0
        found = band(estimate, moved - estimate, horizons, study)
        held += bool(np.all((found.low <= 0) & (found.high >= 0)))
        held_slope += found.slope_interval[0] <= 0 <= found.slope_interval[1]
        half = stats.t.ppf(0.975, 23) * moved.std(axis=0, ddof=1) / np.sqrt(24)
        alone += bool(np.all(np.abs(estimate) <= half))
    low, high = stats.binom.ppf([0.001, 0.999], studies, 0.95)
    assert low <= held <= high
    assert low <= held_slope <= high
    assert alone < low
    one = band(np.zeros(2), np.zeros((1, 2)), np.array([1.0, 2.0]), 0)
    assert not np.isfinite(one.low).any()


def test_exponents_of_a_band_are_those_of_the_fits() -> None:
    rng = random_stream(0, "joint")
    errors = SIZES ** -np.array([[[0.5]], [[0.3]]]) * np.exp(0.2 * rng.standard_normal((2, 16, 4)))
    rates = [fit_rate(own, SIZES) for own in errors]
    found = joint_exponents(errors, SIZES, rates, np.array([0.5, 1.0]), 0)
    for s, rate in enumerate(rates):
        assert (found.low[s] + found.high[s]) / 2 == pytest.approx(rate.exponent)
        # two scales at once: wider than one interval, narrower than twice as wide
        assert 0.9 < (found.high[s] - found.low[s]) / (rate.interval[1] - rate.interval[0]) < 1.6
    assert found.slope == pytest.approx((rates[1].exponent - rates[0].exponent) / 0.5)


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


@pytest.mark.parametrize("columns", [60, 80])
def test_no_number_of_a_finding_is_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of fourteen columns, as that of Gaussian tokens: some are left out, and named."""
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ["study", "H", "metric", "exponent", "low", "high", "joint_low", "joint_high",
             "predicted", "sharp", "paper_reference", "paper_bound", "law", "trusted"]  # fmt: skip
    row = ["d = 8", 0.5, "mean", *np.linspace(0.4123, 0.5678, 9), "as predicted", True]
    table = pd.DataFrame([row, row], columns=names).rename(columns=COLUMNS)
    print_finding("Title", f"Words.\n\n{markdown_table(table)}\n\nEnd.", Path("x"), "gaussian")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines[: lines.index("End.")])) <= columns
    assert not any("…" in line for line in lines)
    written = {f"{x:.3f}".rstrip("0") for x in row if isinstance(x, float)}
    shown = {word for line in lines for word in line.split() if word.startswith("0.")}
    assert "0.412" in shown
    assert shown <= written
    text = " ".join(lines)
    assert "Left out for lack of room: " in text
    missing = text.split("Left out")[1]
    assert "bound" in missing
    # the verdict stays where there is room for it, and is never left out in silence
    assert text.count("as predicted") == 2 or (columns < 80 and "law" in missing)


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


def test_two_at_a_time_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "hardmax-quick").mkdir()
    with run_lock(tmp_path / "hardmax-quick"):
        words = ["reproduce", "hardmax", "--out", str(tmp_path)]
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert f"is working on {tmp_path / 'hardmax-quick'}" in done.stderr
    assert [path.name for path in (tmp_path / "hardmax-quick").iterdir()] == ["lock"]


@pytest.mark.parametrize(("seed", "words"), [(-1, "seed is -1"), (10**400, "1329 bits")])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_seed_out_of_range_leaves_nothing(name: str, seed: int, words: str, tmp_path) -> None:
    with pytest.raises(InputError, match=words):
        reproduce(name, out=tmp_path, seed=seed)
    assert not list(tmp_path.iterdir())
