"""``esscher plan`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from esscher.cli.program import main
from tests.engine.models.folders import WORDS, decoder_tokenizer, save

SMALL = ("--prefix", "40", "--query-count", "8", "--passages", "2", "--check-passages", "3")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    save(folder / "model", "llama")
    decoder_tokenizer().save_pretrained(folder / "model")
    for seed, name in enumerate(("a.txt", "b.txt")):
        rng = np.random.default_rng(seed)
        (folder / name).write_text(" ".join(rng.choice(WORDS, size=800)))
    return folder


def test_a_plan_from_the_command_line(place: Path, tmp_path: Path) -> None:
    asked = ("plan", str(place / "model"), "--text", str(place / "a.txt"), *SMALL)
    asked += ("--check", str(place / "b.txt"), "--budget", "0.5", "--against", "streaming")
    asked += ("--out", str(tmp_path / "run"))
    figure, file = tmp_path / "plan.png", tmp_path / "plan.json"
    result = run(*asked, "--figure", str(figure), "--save", str(file))
    assert result.exit_code == 0, result.output
    assert figure.stat().st_size > 10_000
    found = json.loads(run(*asked, "--json").stdout)
    assert found == json.loads(file.read_text())
    assert found["headline"] in result.output
    rows = [line.split() for line in result.output.splitlines()]
    for name in ("planned", "uniform", "streaming"):
        (row,) = [row for row in rows if row[:1] == [name]]
        mean, half = found["check"][name]["kl"]["mean"], found["check"][name]["kl"]["interval"][1]
        assert mean - half <= float(row[1].partition("(")[0]) <= mean + half
    assert {"mean", "interval"} <= set(found["check"]["planned"]["kl"])
    assert np.array(found["budgets"]).shape == (3, 2)
    shown = run("show", str(tmp_path / "run"))
    assert shown.exit_code == 0
    assert found["headline"] in shown.output
    listed = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
    assert [(one["run"], one["kind"], one["state"]) for one in listed] == [
        ("run", "plan", "complete")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--budget", "0.01"), "smallest possible budget"),
        ((), "either a budget"),
        (("--budget", "0.5", "--prefix", "4000"), "longest possible prefix"),
        (("--budget", "0.5", "--figure", "x.gif"), "must end in"),
        (("--budget", "0.5", "--check", "nowhere.txt"), "nowhere.txt"),
        (("--budget", "0.5", "--passages", "500"), "ask for at most 16 passages"),
    ],
)
def test_bad_requests(arguments: tuple[str, ...], said: str, place: Path, tmp_path: Path) -> None:
    asked = ("plan", str(place / "model"), "--text", str(place / "a.txt"), *SMALL)
    result = run(*asked, *arguments, "--out", str(tmp_path / "run"))
    assert result.exit_code == 2, result.output
    assert said in result.output.replace("\n", " ")
    assert not (tmp_path / "run").exists()
