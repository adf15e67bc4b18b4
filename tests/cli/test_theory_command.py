"""``esscher theory``, and what all commands have in common."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import esscher
from tests.cli.printed import run


def test_theory_prints_json() -> None:
    result = run("theory", "--horizon", "1.5", "--json")
    assert result.exit_code == 0
    out = json.loads(result.output)
    beta = out["exponents"]
    assert out["horizon"] == 1.5
    assert out["frobenius"] == pytest.approx(1.5)
    assert out["tail_index"] == pytest.approx(1 + 1 / 2.25)
    assert out["burn_in"] == pytest.approx(np.exp(2.25))
    assert beta["mean"] == beta["cov"] == pytest.approx(1 / 3.25)
    assert "curve" not in out


def test_theory_curves_are_the_library_s() -> None:
    command = "theory --spectrum 0.9,0.4,0.4 --tau 0.5 --sizes 1e3:1e12 --queries population --json"
    result = run(*command.split())
    assert result.exit_code == 0, result.output
    out = json.loads(result.output)
    assert out["curve"]["n"] == [10.0**k for k in range(3, 13)]
    head = esscher.gaussian_head(spectrum=[0.9, 0.4, 0.4], tau=0.5)
    np.testing.assert_allclose(
        out["curve"]["map_rms"], esscher.theory.map_curve(head, out["curve"]["n"]).error
    )
    assert out["tau"] == pytest.approx(0.5)
    assert out["constants"]["mean"] == pytest.approx(
        np.trace(esscher.theory.mean_constant(head, "population"))
    )


def test_a_law_without_limit_is_an_answer() -> None:
    result = run("theory", "--law", "laplace", "--horizon", "0.5", "--json")
    assert result.exit_code == 0
    out = json.loads(result.output)
    # tilt 0.5 x, b = 1/sqrt(2): no limit once |x| >= 2 sqrt(2), that is with probability e^-4
    assert out["limit"]["exists"] is False
    share = np.exp(-4)
    error = (share * (1 - share) / 65536) ** 0.5
    assert out["limit"]["fraction"] == pytest.approx(share, abs=4 * error)
    assert out["exponents"] is None
    student = json.loads(run("theory", "--law", "student", "--horizon", "0.5", "--json").output)
    assert student["limit"]["fraction"] == 1.0


BAD = [
    (("theory",), "--horizon 1.5"),
    (("theory", "--horizon", "-1"), "horizon is -1.0"),
    (("theory", "--horizon", "1", "--spectrum", "1"), "either"),
    (("theory", "--spectrum", "1,2", "--dim", "3"), "--dim is 3"),
    (("theory", "--horizon", "1", "--dim", "0"), "--dim is 0"),
    (("theory", "--horizon", "1", "--law", "cauchy"), "cauchy"),
    (("theory", "--horizon", "1", "--law", "student", "--df", "2"), "df is 2"),
    (("theory", "--horizon", "1", "--tau", "1,2"), "tau"),
    (("theory", "--horizon", "1", "--sizes", "1:100"), "1:100"),
    (("theory", "--horizon", "1", "--sizes", "1"), "n = 1"),
    (("theory", "--horizon", "1", "--sizes", "100:10"), "100:10"),
    (("theory", "--horizon", "1", "--sizes", "10:100:1.5"), "whole number"),
    (("nonsense",), "nonsense"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_clear_error(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error:" in result.output
    assert words in result.output
    assert "Traceback" not in result.output


def test_the_installed_command_runs() -> None:
    script = Path(sys.executable).with_name("esscher")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert esscher.__version__ in done.stdout
