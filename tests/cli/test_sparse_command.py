"""``esscher sparse`` and ``esscher sparse-law`` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher.cli import main
from tests.cli.printed import before_next

SMALL = (
    "--horizon", "0.5", "--dim", "2", "--tokens", "400", "--replicates", "8", "--query-count", "12",
    "--budgets", "8:64:4", "--patterns", "window,corrected,linformer",
)  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_tables_json_and_stored_runs_say_the_same(tmp_path: Path) -> None:
    out, figure = tmp_path / "runs" / "one", tmp_path / "figures" / "one.png"
    result = run("sparse-law", "gaussian", *SMALL, "--out", str(out), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    for words in ("gaussian tokens, independent, H = 0.5, d = 2", "Random selection", "corrected",
                  "does not converge to dense", "10% relative error takes", str(out)):  # fmt: skip
        assert words in result.output.replace("\n", " ")
    assert figure.stat().st_size > 20_000
    shown = run("show", str(out))
    assert shown.exit_code == 0
    assert before_next(shown.output) in result.output
    stored = json.loads(run("show", str(out), "--json").stdout)
    again = run("sparse-law", "gaussian", *SMALL, "--out", str(out), "--json")
    assert json.loads(again.stdout) == stored
    assert stored["kind"] == "sparse-law"
    assert stored["budgets"] == [8, 16, 32, 64]
    assert stored["patterns"]["window"]["fit"]["map"]["law"] in ("power", "floor", "logarithmic")
    assert stored["patterns"]["random"]["verdict"] == "baseline"
    assert stored["headline"]
    listed = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
    assert [(row["kind"], row["law"], row["state"]) for row in listed] == [
        ("sparse-law", "gaussian", "complete")
    ]
    assert listed[0]["sizes"] == [8, 16, 32, 64]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gaussian",), "either a horizon or a spectrum"),
        (("gaussian", "--horizon", "1", "--budgets", "8:9000:4"), "only 8192 keys"),
        (("gaussian", "--horizon", "1", "--budgets", "8:x:4"), "--budgets"),
        (("gaussian", "--horizon", "1", "--patterns", "windows"), "no pattern 'windows'"),
        (
            ("gaussian", "--horizon", "1", "--correlation", "1"),
            "correlation is 1.0; it must be a number below 1",
        ),
        (("cube", "--horizon", "1", "--correlation", "0.5"), "Gaussian tokens only"),
        (("gaussian", "--horizon", "1", "--context", "512"), "No such option '--context'"),
        (("gaussian", "--horizon", "1", "--tokens", "10"), "tokens is 10"),
        (("gaussian", "--spectrum", "1,2", "--dim", "3"), "dim is 3, but spectrum has 2"),
        (("gaussian", "--horizon", "1", "--tau", "1,x"), "--tau: 'x' is not a number"),
        (("gaussian", "--horizon", "nan"), "horizon is nan"),
        (("student", "--horizon", "1", "--df", "2"), "df is 2"),
        (("gauss", "--horizon", "1"), "no standard law called 'gauss'"),
        (("gaussian", "--horizon", "1", "--replicates", "2"), "at least 8"),
        (("gaussian", "--horizon", "1", "--figure", "curves.txt"), "must end in"),
        (("gaussian", "--horizon", "-1"), "horizon is -1"),
        (("gaussian", "--horizon", "1", "--spectrum", "1,2"), "either a horizon"),
    ],
)
def test_wrong_input_is_one_message(arguments: tuple[str, ...], message: str, tmp_path) -> None:
    refused("sparse-law", *arguments, message=message, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-folder/model",), "no-such-folder/model"),
        # laws have a command of their own, whatever is given with them
        (("gaussian",), "esscher sparse-law (in Python esscher.sparse_law)"),
        (("gaussian", "--horizon", "1"), "esscher sparse-law (in Python esscher.sparse_law)"),
        (("--horizon", "1", "student"), "'student' is not a model"),
        (("demo:minilm", "--horizon", "1"), "No such option '--horizon'"),
    ],
)
def test_models_only(arguments: tuple[str, ...], message: str, tmp_path) -> None:
    refused("sparse", *arguments, message=message, out=tmp_path / "run")


def refused(*words: str, message: str, out: Path) -> None:
    result = run(*words, "--out", str(out))
    assert result.exit_code == 2, result.output
    # long messages are folded
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not out.exists()


def test_help_begins_with_the_subject() -> None:
    lines = run("sparse-law", "--help").output
    order = [lines.index(word) for word in ("LAW:", "  --horizon", "  --patterns", "  --out")]
    assert order == sorted(order)
    assert "sphere" in lines


def test_laws_without_a_limit_are_compared_with_dense_only(tmp_path: Path) -> None:
    result = run("sparse-law", "student", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["dense_against_limit"] is None
    assert list(found["patterns"]["window"]["curve"]) == ["dense"]
    assert "fit_limit" not in found["patterns"]["window"]


def test_stopped_and_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = tmp_path / "esscher"
    script.write_text("from esscher.cli import main\n\nmain()\n")
    command = [sys.executable, str(script), "sparse-law", "gaussian", *SMALL, "--out", str(out)]
    # so many that it cannot end before it is interrupted, however late that is
    command[command.index("--replicates") + 1] = "100000"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:  # fmt: skip
        try:
            end = time.monotonic() + 240  # starting takes long on a machine that is busy
            while len(list((out / "parts").glob("*.json"))) < 2:
                assert time.monotonic() < end
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            stderr = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 130, stderr
    assert "Run the same command again to resume" in stderr
    assert "Traceback" not in stderr
    found = json.loads(run("show", str(out), "--json").stdout)
    assert not found["complete"]
    assert found["cells"] >= 2
