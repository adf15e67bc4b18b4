"""``esscher deep`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher.cli.program import main
from esscher.runs.executors import Task
from tests.engine.models.folders import save
from tests.engine.text.test_passages import words

STACK = ("gaussian", "--depth", "3", "--dim", "2", "--horizon", "0.5", "--residual", "1",
         "--sizes", "16:128:4", "--replicates", "6")  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    save(place / "model")
    (place / "text.txt").write_text(words(400))
    return (str(place / "model"), "--text", str(place / "text.txt"), "--context", "40",
            "--passages", "2", "--draws", "2")  # fmt: skip


def test_a_stack(tmp_path: Path) -> None:
    out, figure = tmp_path / "run", tmp_path / "deep.png"
    result = run("deep", *STACK, "--out", str(out), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    assert "recursion" in result.output
    assert "…" not in result.output
    assert figure.stat().st_size > 10_000
    shown = run("show", str(out))
    assert shown.exit_code == 0
    assert shown.output.strip() in result.output
    found = json.loads(run("deep", *STACK, "--out", str(out), "--json").stdout)
    assert found == json.loads(run("show", str(out), "--json").stdout)
    assert [layer["layer"] for layer in found["layers"]] == [0, 1, 2]
    assert found["layers"][2]["error"]["map"]["mean"][0] > 0
    assert found["layers"][2]["growth"]["map"][-1]["factor"] > 0
    assert 0 < found["layers"][2]["fit"]["map"]["exponent"] < 1
    listed = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
    assert [(row["kind"], row["law"], row["state"]) for row in listed] == [
        ("deep", "gaussian", "complete")
    ]


def test_a_model(model: tuple[str, ...], tmp_path: Path) -> None:
    out, figure = tmp_path / "run", tmp_path / "deep.svg"
    options = (*model, "--budgets", "4:24:3", "--mode", "both", "--terciles", "layer")
    result = run("deep", *options, "--out", str(out), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    for part in ("independent samples", "shared samples", "cosine", "Thirds of the heads"):
        assert part in result.output
    assert "…" not in result.output
    assert figure.stat().st_size > 10_000
    found = json.loads(run("show", str(out), "--json").stdout)
    assert found["budgets"] == [4, 10, 24]
    assert len(found["end"]["cosine"]["shared"]["mean"]) == 3
    assert found["terciles"]["scope"] == "layer"
    again = run("deep", *options, "--out", str(out), "--seed", "1")
    assert again.exit_code == 2
    assert "seed: stored 0, now 1" in again.output


def test_stopped(model: tuple[str, ...], tmp_path: Path, monkeypatch) -> None:
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Task, "__call__", stop)
    result = run("deep", *model, "--budgets", "4,8", "--out", str(tmp_path / "run"))
    assert result.exit_code == 130
    assert "Run the same command again to resume" in result.output
    shown = run("show", str(tmp_path / "run"))
    assert shown.exit_code == 0
    assert "Nothing has been measured yet" in shown.output
    monkeypatch.undo()
    done = run("deep", *model, "--budgets", "4,8", "--out", str(tmp_path / "run"))
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gaussian", "--budgets", "4:8:2"), "budgets is for models"),
        (("gaussian", "--horizon", "0"), "horizon is 0"),
        (("gaussian", "--sizes", "9:3:2"), "--sizes is '9:3:2'"),
        (("gaussian", "--residual", "0", "--depth", "24"), "have collapsed"),
        (("gaussian", "--figure", "x.gif"), "must end in"),
        (("{model}", "--depth", "3"), "depth is for Gaussian stacks"),
        (("{model}", "--budgets", "x"), "--budgets: 'x' is not a number"),
        (("{model}", "--budgets", "9:3:2"), "--budgets is '9:3:2'"),
        (("{model}", "--budgets", "4:4000:3"), "budgets go up to 4000"),
        (("{model}", "--passages", "99"), "99 are asked for"),
        (("nowhere/at/all",), "nowhere/at/all"),
    ],
)
def test_bad_commands(arguments, message, model, tmp_path) -> None:
    given = [a for x in arguments for a in (model if x == "{model}" else (x,))]
    result = run("deep", *given, "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()
