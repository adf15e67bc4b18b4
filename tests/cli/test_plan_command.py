"""``esscher plan`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from esscher.cli.program import main
from esscher.engine.models.record import ModelRecord
from esscher.engine.text.documents import TextRecord
from esscher.show.tables import PlainConsole
from esscher.studies.plan import Keeping, Plan, PlanStudy
from esscher.studies.plan.printed import print_result
from esscher.studies.plan.result import Prediction, Total
from tests.engine.models.folders import WORDS, save

SMALL = ("--prefix", "40", "--passages", "2", "--check-passages", "3")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    save(folder / "model")
    for seed, name in enumerate(("a.txt", "b.txt")):
        rng = np.random.default_rng(seed)
        (folder / name).write_text(" ".join(rng.choice(WORDS, size=800)))
    return folder


def test_a_plan_from_the_command_line(place: Path, tmp_path: Path) -> None:
    asked = ("plan", str(place / "model"), "--text", str(place / "a.txt"), *SMALL)
    asked += ("--check", str(place / "b.txt"), "--budget", "0.5", "--out", str(tmp_path / "run"))
    figure, file = tmp_path / "plan.png", tmp_path / "plan.json"
    result = run(*asked, "--figure", str(figure), "--save", str(file))
    assert result.exit_code == 0, result.output
    assert figure.stat().st_size > 10_000
    found = json.loads(run(*asked, "--json").stdout)
    assert found == json.loads(file.read_text())
    assert found["headline"] in result.output
    rows = [line.split() for line in result.output.splitlines()]
    for name in ("planned", "uniform", "heavy"):
        (row,) = [row for row in rows if row[:1] == [name]]
        assert row[1].startswith(f"{found['check'][name]['cosine']['mean']:.5f}"[:4])
    assert {"mean", "interval"} <= set(found["check"]["planned"]["cosine"])
    assert np.array(found["budgets"]).shape == (3, 4)
    shown = run("show", str(tmp_path / "run"))
    assert shown.exit_code == 0
    assert found["headline"] in shown.output
    listed = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
    assert [(one["run"], one["kind"], one["state"]) for one in listed] == [
        ("run", "plan", "complete")
    ]


@pytest.mark.parametrize(
    ("tokens", "said", "title"),
    [
        (
            [50] * 36,
            "24 more keep as many tokens as the last of these",
            "12 of 36 key heads, which",
        ),
        ([90] * 12 + [50] * 3, "3 more keep fewer tokens", "The 12 key heads that keep most"),
        (
            [90] * 11 + [50] * 3 + [40],
            "2 more keep as many tokens as the last of these, 1 keep",
            "",
        ),
        ([90, 50], "", "All key heads"),
    ],
)
def test_what_is_said_of_key_heads_that_are_not_shown(
    tokens: list[int], said: str, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tuple((1.0,) for _ in tokens)
    model = ModelRecord(
        name="m", family="", architecture="", layers=len(tokens), heads=1, key_heads=1, head_dim=1,
        hidden=1, causal=True, max_positions=200, dtype="float32", note="positions are left out",
    )  # fmt: skip
    predicted = Prediction(
        unit="", effect=0.0, interval=None, uniform_effect=0.0, head_error=grid, price=None,
        gap=None,
    )  # fmt: skip
    found = Plan(
        study=PlanStudy(model, TextRecord(source="a", hash=""), budget=0.5), complete=True, cells=1,
        versions={}, created="", headline="Kept.", version=1, model=model, prefix=100,
        keeping=Keeping(sinks=1, recent=1), budgets=tuple((n,) for n in tokens), ratios=grid,
        powers=grid, total=Total(tokens=sum(tokens), ratio=0.5), predicted=predicted, check=None,
    )  # fmt: skip
    print_result(found, PlainConsole())
    output = capsys.readouterr().out
    assert output.startswith("Kept.\nNote: positions are left out.\n")
    assert title in output
    assert said in output
    assert ("--all shows them" in output) == bool(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--budget", "0.01"), "smallest possible budget"),
        ((), "either a budget"),
        (("--budget", "0.5", "--prefix", "4000"), "longest possible prefix"),
        (("--budget", "0.5", "--figure", "x.gif"), "must end in"),
        (("--budget", "0.5", "--check", "nowhere.txt"), "nowhere.txt"),
        (("--budget", "0.5", "--passages", "500"), "ask for at most 20 passages"),
    ],
)
def test_bad_requests(arguments: tuple[str, ...], said: str, place: Path, tmp_path: Path) -> None:
    asked = ("plan", str(place / "model"), "--text", str(place / "a.txt"), *SMALL)
    result = run(*asked, *arguments, "--out", str(tmp_path / "run"))
    assert result.exit_code == 2, result.output
    assert said in result.output.replace("\n", " ")
    assert not (tmp_path / "run").exists()
