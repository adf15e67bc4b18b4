"""``esscher deep`` and ``esscher deep-stack`` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher.cli.program import main
from esscher.runs.executors import Task
from tests.cli.printed import before_next
from tests.engine.models.folders import save, words

STACK = ("--depth", "3", "--dim", "2", "--horizon", "0.5", "--residual", "1",
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
    result = run("deep-stack", *STACK, "--out", str(out), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    assert "recursion" in result.output
    assert "…" not in result.output
    assert figure.stat().st_size > 10_000
    shown = run("show", str(out))
    assert shown.exit_code == 0
    assert before_next(shown.output) in result.output
    found = json.loads(run("deep-stack", *STACK, "--out", str(out), "--json").stdout)
    assert found == json.loads(run("show", str(out), "--json").stdout)
    assert [layer["layer"] for layer in found["layers"]] == [0, 1, 2]
    assert found["layers"][2]["error"]["map"]["mean"][0] > 0
    assert found["layers"][2]["growth"]["map"][-1]["factor"] > 0
    assert 0 < found["layers"][2]["fit"]["map"]["exponent"] < 1
    listed = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
    assert [(row["kind"], row["law"], row["state"]) for row in listed] == [
        ("deep-stack", "gaussian", "complete")
    ]


def test_a_model(model: tuple[str, ...], tmp_path: Path) -> None:
    out, figure = tmp_path / "run", tmp_path / "deep.svg"
    options = (*model, "--sizes", "4:24:3", "--keys", "both", "--terciles", "layer")
    result = run("deep", *options, "--out", str(out), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    for part in ("independent samples", "shared samples", "cosine", "Thirds of the heads"):
        assert part in result.output
    assert "…" not in result.output
    assert figure.stat().st_size > 10_000
    found = json.loads(run("show", str(out), "--json").stdout)
    assert found["sizes"] == [4, 10, 24]
    assert len(found["end"]["cosine"]["shared"]["mean"]) == 3
    assert found["terciles"]["scope"] == "layer"
    again = run("deep", *options, "--out", str(out), "--seed", "1")
    assert again.exit_code == 2
    assert "seed: stored 0, now 1" in again.output


def test_stopped(model: tuple[str, ...], tmp_path: Path, monkeypatch) -> None:
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Task, "__call__", stop)
    result = run("deep", *model, "--sizes", "4,8", "--out", str(tmp_path / "run"))
    assert result.exit_code == 130
    assert "Run the same command again to resume" in result.output
    shown = run("show", str(tmp_path / "run"))
    assert shown.exit_code == 0
    assert "Nothing has been measured yet" in shown.output
    monkeypatch.undo()
    done = run("deep", *model, "--sizes", "4,8", "--out", str(tmp_path / "run"))
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("deep-stack", "--passages", "4"), "No such option '--passages'"),
        (("deep-stack", "--horizon", "0"), "horizon is 0"),
        (("deep-stack", "--sizes", "9:3:2"), "--sizes is '9:3:2'"),
        (("deep-stack", "--sizes", "64"), "at least 2 sizes"),
        (("deep-stack", "--residual", "0", "--depth", "24"), "have collapsed"),
        (("deep-stack", "--figure", "x.gif"), "must end in"),
        (("deep", "{model}", "--depth", "3"), "No such option '--depth'"),
        (("deep", "{model}", "--sizes", "x"), "--sizes: 'x' is not a number"),
        (("deep", "{model}", "--sizes", "9:3:2"), "--sizes is '9:3:2'"),
        (("deep", "{model}", "--sizes", "4:4000:3"), "sizes go up to 4000"),
        (("deep", "{model}", "--passages", "99"), "99 are asked for"),
        (("deep", "nowhere/at/all"), "nowhere/at/all"),
        # a stack has a command of its own, whatever is given with it
        (("deep", "gaussian"), "esscher deep-stack (in Python esscher.deep_stack)"),
        (("deep", "gaussian", "--depth", "3"), "esscher deep-stack (in Python"),
    ],
)
def test_bad_commands(arguments, message, model, tmp_path) -> None:
    given = [a for x in arguments for a in (model if x == "{model}" else (x,))]
    result = run(*given, "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()
