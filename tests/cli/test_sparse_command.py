"""``esscher sparse`` as a user meets it."""

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

SMALL = (
    "--horizon", "0.5", "--dim", "2", "--tokens", "400", "--replicates", "8", "--queries", "12",
    "--budgets", "8:64:4", "--patterns", "window,corrected,linformer",
)  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_tables_json_and_stored_runs_say_the_same(tmp_path: Path) -> None:
    out, figure = tmp_path / "runs" / "one", tmp_path / "figures" / "one.png"
    result = run("sparse", "gaussian", *SMALL, "--out", str(out), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    for words in ("gaussian tokens, independent, H = 0.5, d = 2", "Random selection", "corrected",
                  "does not converge to dense", "10% relative error takes", str(out)):  # fmt: skip
        assert words in result.output.replace("\n", " ")
    assert figure.stat().st_size > 20_000
    shown = run("show", str(out))
    assert shown.exit_code == 0
    assert shown.output.strip() in result.output
    stored = json.loads(run("show", str(out), "--json").stdout)
    again = run("sparse", "gaussian", *SMALL, "--out", str(out), "--json")
    assert json.loads(again.stdout) == stored
    assert stored["kind"] == "sparse"
    assert stored["budgets"] == [8, 16, 32, 64]
    assert stored["patterns"]["window"]["fit"]["map"]["law"] in ("power", "floor", "logarithmic")
    assert stored["patterns"]["random"]["verdict"] == "baseline"
    assert stored["headline"]
    listed = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
    assert [(row["kind"], row["law"], row["state"]) for row in listed] == [
        ("sparse", "gaussian", "complete")
    ]
    assert listed[0]["sizes"] == [8, 16, 32, 64]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gaussian",), "either a horizon or a spectrum"),
        (("gaussian", "--horizon", "1", "--budgets", "8:9000:4"), "only 8192 keys"),
        (("gaussian", "--horizon", "1", "--budgets", "8:x:4"), "--budgets"),
        (("gaussian", "--horizon", "1", "--patterns", "windows"), "no pattern 'windows'"),
        (("gaussian", "--horizon", "1", "--correlation", "1"), "between -1 and 1"),
        (("cube", "--horizon", "1", "--correlation", "0.5"), "Gaussian tokens only"),
        (("gaussian", "--horizon", "1", "--context", "512"), "context is given"),
        (("gaussian", "--horizon", "1", "--text", "demo:docs"), "text is given"),
        (("gaussian", "--horizon", "1", "--replicates", "2"), "at least 8"),
        (("gaussian", "--horizon", "1", "--figure", "curves.txt"), "must end in"),
        (("gaussian", "--horizon", "-1"), "horizon is -1"),
        (("gaussian", "--horizon", "1", "--spectrum", "1,2"), "either a horizon"),
        (("no-such-folder/model",), "no-such-folder/model"),
    ],
)
def test_wrong_input_is_one_message(arguments: tuple[str, ...], message: str, tmp_path) -> None:
    out = tmp_path / "run"
    result = run("sparse", *arguments, "--out", str(out))
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not out.exists()


def test_laws_without_a_limit_are_compared_with_dense_only(tmp_path: Path) -> None:
    result = run("sparse", "student", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["dense_against_limit"] is None
    assert list(found["patterns"]["window"]["curve"]) == ["dense"]
    assert "fit_limit" not in found["patterns"]["window"]


def test_stopped_and_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = tmp_path / "esscher"
    script.write_text("from esscher.cli import main\n\nmain()\n")
    command = [sys.executable, str(script), "sparse", "gaussian", *SMALL, "--out", str(out)]
    command[command.index("--replicates") + 1] = "400"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    end = time.monotonic() + 60
    while len(list((out / "parts").glob("*.json"))) < 2:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 130, stderr
    assert "Run the same command again to resume" in stderr
    assert "Traceback" not in stderr
    found = json.loads(run("show", str(out), "--json").stdout)
    assert not found["complete"]
    assert found["cells"] >= 2
