"""``esscher theory --needle`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esscher.cli import main
from esscher.math.laws import standard_law
from esscher.math.theory import predict_needle

ASKED = ("--needle", "6", "--horizon", "1.2", "--sizes", "1e3:1e9:3")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["theory", *arguments])


def test_json_has_the_library_s_numbers() -> None:
    result = run(*ASKED, "--json")
    assert result.exit_code == 0, result.output
    exact = predict_needle(standard_law("gaussian", 1), 6, [1e3, 1e6, 1e9], spread=1.2)
    assert json.loads(result.output)["needle"] == exact.to_dict()


def test_tables_check_and_figure(tmp_path: Path) -> None:
    picture = tmp_path / "needle.png"
    result = run(*ASKED, "--scale", "3", "--check", "--figure", str(picture))
    assert result.exit_code == 0, result.output
    for words in ("simulated", "retrieving", "lost", "hardmax", "best scale 4.17"):
        assert words in result.output
    assert picture.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*ASKED, "--scale", "0"), "--scale is 0.0; it must be a positive"),
        (("--needle", "6", "--horizon", "1.2"), "--needle needs --sizes"),
        (("--needle", "6", "--horizon", "0", "--sizes", "10,20"), "logits that vary"),
        (("--needle", "nan", *ASKED[2:]), "--needle is nan"),
        (("--needle", "6", "--horizon", "1", "--sizes=-5:10"), "must start at n = 2"),
        (("--scale", "2", "--horizon", "1.2"), "--scale needs --needle"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
