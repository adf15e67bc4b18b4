"""``esscher theory --simulate``, ``--regimes`` and ``--probe`` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher import gaussian_head
from esscher.cli import main
from esscher.math.simulation import simulate_map, simulate_mean
from tests.studies.probe.made import made_head, made_probe

FEW = ["--replicates", "40", "--seed", "3"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["theory", *arguments])


def test_json_has_the_library_s_numbers() -> None:
    asked = ("--horizon", "0.8", "--sizes", "1e3:1e12:2", "--queries", "population")
    result = run(*asked, "--simulate", *FEW, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["simulation"]
    head = gaussian_head(horizon=0.8, dim=1)
    assert found["map"] == simulate_map(head, [1e3, 1e12], 40, seed=3).to_dict()
    assert found["mean"] == simulate_mean(head, [1e3, 1e12], 40, seed=3).to_dict()
    assert found["map"]["n"] == [1e3, 1e12]
    assert all(error > 0 for error in found["map"]["rms_error"])


def test_table_stands_beside_the_prediction(tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    result = run(
        *("--horizon", "1.2", "--sizes", "1e3,1e9", "--queries", "tokens"),
        *("--simulate", *FEW, "--figure", str(picture)),
    )
    assert result.exit_code == 0, result.output
    for words in (
        "simulated from the extremes",
        "top key",
        "stable",
        "for population queries only",
    ):
        assert words in result.output
    assert picture.stat().st_size > 5000


@pytest.fixture
def probe_run(tmp_path: Path) -> Path:
    """A stored probe."""
    heads = [
        made_head(i, horizon=h, frobenius=f, tau=0.1, ess=10.0 - i, n=500)
        for i, (h, f) in enumerate([(0.4, 0.6), (0.9, 2.5), (1.6, 1.9), (6.0, 9.0)])
    ]
    made_probe(heads).save(tmp_path / "probe.json")
    return tmp_path / "probe.json"


def test_regimes_of_a_probe(probe_run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "regimes.svg"
    result = run("--regimes", str(picture), "--probe", str(probe_run))
    assert result.exit_code == 0, result.output
    assert picture.stat().st_size > 5000
    assert "tiny" in result.output
    result = run("--probe", str(probe_run), "--horizon", "1.5", "--json")
    found = json.loads(result.output)["regimes"]
    first = found["models"]["tiny"][0]
    assert (first["parametric"], first["stable"], first["frozen"]) == (1, 2, 1)
    assert found["head"]["1M"]["regime"] == "stable"
    result = run("--probe", str(probe_run), "--probe", str(probe_run), "--json")
    assert list(json.loads(result.output)["regimes"]["models"]) == ["tiny", "tiny (2)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--horizon", "1", "--simulate"], "need --sizes"),
        (["--horizon", "1", "--sizes", "1e3:1e6", "--simulate", "--replicates", "1"], "at least 2"),
        (["--horizon", "1", "--law", "cube", "--sizes", "1e3", "--simulate"], "not of --law cube"),
        (["--regimes", "figure.gif"], "must end in .png"),
        (["--regimes", "figure.png", "--sizes", "1e3"], "need a head"),
        (["--simulate", "--sizes", "1e3"], "--horizon"),
        (["--probe", "."], "not a run"),
    ],
)
def test_wrong_input_is_said_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())
