"""``esscher sweep``, ``ls`` and ``show`` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esscher.runs.folder import run_lock
from tests.cli.printed import before_next, run, table_of

SMALL = ("--dim", "2", "--horizon", "0.5", "--sizes", "10:90:3", "--replicates", "3")
#: The same without predictions, which take most of the time.
MEASURED = (*SMALL, "--no-predict")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_sweep_prints_a_table_and_show_the_same(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    result = run("sweep", "gaussian", *SMALL, "--out", str(out))
    assert result.exit_code == 0, result.output
    question, answer, *_ = result.output.splitlines()
    assert question == "How fast does attention over n tokens reach its limit?"
    assert answer.startswith("At H = 0.5 the error of the mean output falls with exponent ")
    setup = "3 replicates of gaussian tokens, d = 2, H = 0.5, queries: tokens, seed 0."
    assert setup in result.output.splitlines()
    assert f"\nRun: {out}\n" in result.output
    shown = run("show", str(out))
    assert shown.exit_code == 0
    assert result.output.startswith(before_next(shown.output))
    as_json = run("sweep", "gaussian", *SMALL, "--out", str(out), "--json")
    data = json.loads(as_json.stdout)
    assert data == json.loads(run("show", str(out), "--json").stdout)


def test_ls_lists_runs_and_their_states(tmp_path: Path) -> None:
    assert "no runs" in run("ls", str(tmp_path)).output
    run("sweep", "sphere", *MEASURED, "--out", str(tmp_path / "a" / "one"))
    run("sweep", "signs", *MEASURED, "--out", str(tmp_path / "b"))
    (tmp_path / "b" / "parts" / "replicate-000002.safetensors").unlink()
    run("sweep", "cube", *MEASURED, "--out", str(tmp_path / "c"))
    (tmp_path / "d" / "parts").mkdir(parents=True)
    (tmp_path / "d" / "config.json").write_text("{")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.json").write_text("{}")
    with run_lock(tmp_path / "c"):
        rows = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
        table = run("ls", str(tmp_path)).output
    names = ("run", "kind", "subject", "done", "unit", "state")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("a/one", "sweep", "sphere", 3, "replicates", "complete"),
        ("b", "sweep", "signs", 2, "replicates", "stopped"),
        ("c", "sweep", "cube", 3, "replicates", "running"),
        ("d", None, None, None, None, "damaged"),
    ]
    assert [row["measured"] for row in table_of(table, "Runs in")] == [
        "3 replicates",
        "2 replicates",
        "3 replicates",
        "",
    ]


@pytest.mark.parametrize("law", ["mixture", "sphere", "cube", "signs", "laplace", "student"])
def test_other_laws_can_be_swept(law: str) -> None:
    shape = ("--spectrum", "1.5,0.7", "--tau", "0.5", "--sizes", "10,20", "--replicates", "2")
    result = run("sweep", law, *shape, "--queries", "population", "--json")
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert out["configuration"]["head"]["law"] == law
    assert out["variables"]["horizon"]["values"] == [pytest.approx(1.5)]


BAD = [
    (("sweep", "gaussian", "--horizon", "1"), "--sizes"),
    (("sweep", "cauchy", *SMALL), "no law 'cauchy'"),
    (("sweep", "gaussian", "--sizes", "10,20"), "--horizon"),
    (("sweep", "gaussian", *SMALL, "--alpha", "1:2"), "1:2"),
    (("sweep", "gaussian", *SMALL, "--alpha", "0:2:3"), "above 0"),
    (("sweep", "gaussian", *SMALL, "--alpha", "1:2:1.5"), "whole number"),
    (("sweep", "gaussian", *SMALL, "--workers", "0"), "workers is 0"),
    (("sweep", "gaussian", *SMALL, "--workers", "100000"), "workers is 100000, but"),
    (("ls", "nowhere"), "nowhere"),
    (("sweep", "gaussian", *SMALL, "--sizes", "100:1e18:2"), "a sample of that"),
    (("sweep", "gaussian", *SMALL, "--seed", "9" * 41), "seed is a whole number of 137 bits"),
    (("sweep", "gaussian", *SMALL, "--scheduler", "foo://x"), "there is no scheduler at foo://x"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_clear_error_before_anything_is_written(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path / "run")) if arguments[0] == "sweep" else ()
    result = run(*arguments, *out)
    assert result.exit_code == 2, result.output
    assert "Error:" in result.output
    assert words in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())
