"""``esscher sweep``, ``ls`` and ``show`` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import esscher
from esscher.cli import main
from esscher.cli.sweep import geometric_scales
from esscher.runs.lock import run_lock
from esscher.sweeping import load_curve, pool
from esscher.sweeping import sweep as run_sweep

SMALL = ("--dim", "2", "--horizon", "0.5", "--sizes", "10:90:3", "--replicates", "3")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_sweep_prints_json() -> None:
    result = run("sweep", "gaussian", *SMALL, "--alpha", "0.5:2:3", "--seed", "4", "--json")
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert out["sizes"] == [10, 30, 90]
    assert out["law"] == "gaussian"
    assert out["replicates"] == 3
    assert [scale["alpha"] for scale in out["scales"]] == pytest.approx([0.5, 1.0, 2.0])
    assert [scale["horizon"] for scale in out["scales"]] == pytest.approx([0.25, 0.5, 1.0])
    head = esscher.gaussian_head(0.5, 2)
    curve = run_sweep(head, [10, 30, 90], 3, 4, scales=np.geomspace(0.5, 2, 3))
    for metric in ("mean", "cov", "map"):
        entry = out["scales"][1][metric]
        assert entry["mean"] == curve.mean(metric)[1].tolist()
        assert entry["median"] == curve.median(metric)[1].tolist()
        assert entry["standard_error"] == curve.standard_error(metric)[1].tolist()


def test_sweep_prints_a_table_and_show_the_same(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    result = run("sweep", "gaussian", *SMALL, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "3 replicates of gaussian tokens" in result.output
    assert "H = 0.5" in result.output
    assert str(out) in result.output
    shown = run("show", str(out))
    assert shown.exit_code == 0
    assert shown.output.strip() in result.output
    as_json = run("sweep", "gaussian", *SMALL, "--out", str(out), "--json")
    assert json.loads(as_json.stdout) == json.loads(run("show", str(out), "--json").stdout)


def test_ls_lists_runs_and_their_states(tmp_path: Path) -> None:
    assert "no runs" in run("ls", str(tmp_path)).output
    run("sweep", "sphere", *SMALL, "--out", str(tmp_path / "a" / "one"))
    precise = ("--precision", "0.001", "--max-replicates", "5", "--alpha", "0.5,1")
    run("sweep", "signs", *SMALL, *precise, "--out", str(tmp_path / "b"))
    (tmp_path / "b" / "parts" / "000002.parquet").unlink()
    run("sweep", "cube", *SMALL, "--out", str(tmp_path / "c"))
    (tmp_path / "d" / "parts").mkdir(parents=True)
    (tmp_path / "d" / "config.json").write_text("{")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.json").write_text("{}")
    with run_lock(tmp_path / "c"):
        rows = json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"]
        table = run("ls", str(tmp_path)).output
    assert [(row["run"], row["law"], row["state"]) for row in rows] == [
        ("a/one", "sphere", "complete"),
        ("b", "signs", "stopped"),
        ("c", "cube", "running"),
        ("d", None, "damaged"),
    ]
    assert rows[1]["horizons"] == [0.25, 0.5]
    done = len(list((tmp_path / "b" / "parts").iterdir()))
    assert [rows[1][key] for key in ("done", "asked", "precision")] == [done, None, 0.001]
    for words in ("a/one", "3 of 3", f"{done} for +-0.001", "0.25:0.5:2", "10:90:3"):
        assert words in table


@pytest.mark.parametrize("law", ["mixture", "sphere", "cube", "signs", "laplace", "student"])
def test_other_laws_can_be_swept(law: str) -> None:
    extra = ("--queries", "population", "--query-count", "20", "--dtype", "float64")
    result = run("sweep", law, *SMALL, *extra, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["configuration"]["head"]["law"] == law


def test_spectrum_and_tau(tmp_path: Path) -> None:
    shape = ("--spectrum", "1.5,0.7", "--tau", "0.5", "--sizes", "10,20", "--replicates", "2")
    out = json.loads(run("sweep", "gaussian", *shape, "--json").stdout)
    assert out["scales"][0]["horizon"] == pytest.approx(1.5)


def test_scale_grids() -> None:
    np.testing.assert_allclose(geometric_scales("0.01:10:4"), [0.01, 0.1, 1.0, 10.0])
    np.testing.assert_allclose(geometric_scales("1,3"), [1.0, 3.0])


BAD = [
    (("sweep", "gaussian", "--horizon", "1"), "--sizes"),
    (("sweep", "cauchy", *SMALL), "no law 'cauchy'"),
    (("sweep", "gaussian", "--sizes", "10,20"), "--horizon"),
    (("sweep", "student", *SMALL, "--reference-tokens", "20"), "reference_tokens is 20"),
    (("sweep", "gaussian", *SMALL, "--alpha", "1:2"), "1:2"),
    (("sweep", "gaussian", *SMALL, "--alpha", "0:2:3"), "above 0"),
    (("sweep", "gaussian", *SMALL, "--alpha", "1:2:1.5"), "whole number"),
    (("sweep", "gaussian", *SMALL, "--alpha", "x:2:3"), "'x' is not a number"),
    (("sweep", "gaussian", *SMALL, "--alpha=-1,1"), "positive"),
    (("sweep", "gaussian", *SMALL, "--seed", "-1"), "seed is -1"),
    (("sweep", "gaussian", *SMALL, "--workers", "0"), "workers is 0"),
    (("sweep", "gaussian", *SMALL, "--device", "abacus"), "abacus"),
    (("sweep", "gaussian", *SMALL, "--dtype", "float16"), "float16"),
    (("sweep", "gaussian", *SMALL, "--precision", "0"), "precision is 0"),
    (("show", "nowhere"), "nowhere"),
    (("ls", "nowhere"), "nowhere"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_clear_error(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Error:" in result.output
    assert words in result.output
    assert "Traceback" not in result.output


def test_another_configuration_and_a_damaged_part_are_clear_errors(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    assert run("sweep", "gaussian", *SMALL, *out).exit_code == 0
    result = run("sweep", "gaussian", *SMALL, *out, "--seed", "5")
    assert result.exit_code == 2
    assert "seed: stored 0, now 5" in result.output
    part = tmp_path / "run" / "parts" / "000001.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    for arguments in (("sweep", "gaussian", *SMALL, *out), ("show", str(tmp_path / "run"))):
        result = run(*arguments)
        assert result.exit_code == 2
        assert f"{part} is damaged" in result.output
    part.unlink()
    assert run("sweep", "gaussian", *SMALL, *out).exit_code == 0


def test_every_command_has_help_with_an_example() -> None:
    for name in ("sweep", "ls", "show"):
        result = run(name, "--help")
        assert result.exit_code == 0
        assert "Example" in result.output
        assert f"esscher {name}" in result.output


CHILD = """
from esscher.cli import main
from esscher.cli.sweep import sweep

if __name__ == "__main__":
    main.add_command(sweep)
    main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_stopped_sweep_says_how_to_resume(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    script, out = tmp_path / "esscher", tmp_path / "a run"
    script.write_text(CHILD)
    shape = ["--dim", "8", "--horizon", "1", "--sizes", "100,1500", "--replicates", "500"]
    child = subprocess.Popen(
        [sys.executable, str(script), "sweep", "gaussian", *shape, "--out", str(out)],
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(esscher.__file__).parents[1])},
    )
    end = time.monotonic() + 60
    while len(list((out / "parts").glob("*.parquet"))) < 2:
        assert time.monotonic() < end
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(number)
    error = child.communicate(timeout=30)[1].decode()
    assert child.returncode == code, error
    assert "Traceback" not in error
    done = len(load_curve(out).replicates)
    assert f"Stopped with {done} replicates stored in {out}" in error
    assert f"esscher sweep gaussian {' '.join(shape)} --out '{out}'" in error


def test_a_stopped_sweep_without_a_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(plan: object, replicate: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "measure_replicate", stopped)
    result = run("sweep", "gaussian", *SMALL)
    assert result.exit_code == 130
    assert "Nothing is stored" in result.output
